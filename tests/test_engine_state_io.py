"""State out of real contexts and back: `state_io`, `state_probe`, and what `Context` does for them.

Exact means: the logits after the prompt and those of every token decoded behind it are equal, bit for bit.
"""

from __future__ import annotations

import contextlib
import mmap
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from llmcli.base.errors import LlmcliError
from llmcli.engine.buffers import address_of
from llmcli.engine.context import PLACEHOLDER, SEQUENCE, Context
from llmcli.engine.kv_description import UnknownLayoutError
from llmcli.engine.kv_layout import ATTENTION, SCRATCH, STATE, WINDOW, CellLayout, Rows, StateLayout, Structure
from llmcli.engine.session import Session
from llmcli.engine.state_io import Block, ExportFailedError, RestoreFailedError, StateMover
from llmcli.engine.state_probe import confirm, memory_kinds, probe
from tests.fixtures.engines import open_session
from tests.fixtures.fuzz_bases import ZERO_MODELS
from tests.fixtures.random_models import SLIDING_WINDOW

GRID = 64
KINDS = ("plain", "iswa", "hybrid", "mamba")
MODES = (("on", "f16"), ("off", "f16"), ("on", "q8_0"), ("on", "q4_0"))
ALL = [(kind, fa, kv) for kind in KINDS for fa, kv in (MODES if kind != "mamba" else MODES[:2])]
CUTTABLE = [case for case in ALL if case[0] in ("plain", "iswa")]
RandomModel = Callable[[str], Path]


def prompt(count: int, seed: int = 3) -> list[int]:
    return [(7 * i * i + seed * i + 11) % 127 for i in range(count)]


def prefill(session: Session, ids: Sequence[int]) -> None:
    """As a cold run that cuts its last piece on the grid: what a restore leaves to do is then a piece of its own."""
    last = (len(ids) - 1) // GRID * GRID
    if last > len(session.tokens):
        session.prefill(ids[len(session.tokens) : last])
    session.prefill(ids[len(session.tokens) :])


def answer(session: Session, count: int = 6) -> list[bytes]:
    """The logits of the last token and of `count` more, the same in every run."""
    found = [bytes(session.context.logits())]
    for i in range(count):
        session.decode((13 * i + 5) % 127)
        found.append(bytes(session.context.logits()))
    return found


def cold(session: Session, ids: Sequence[int], count: int = 6) -> list[bytes]:
    session.cut(0)
    prefill(session, ids)
    return answer(session, count)


@dataclass
class Stored:
    """Parts of one prompt, as a store would keep them, and which of them were read."""

    structure: Structure
    blocks: list[tuple[int, tuple[int, ...], dict[str, bytes]]] = field(default_factory=list)
    read: list[tuple[int, str]] = field(default_factory=list)

    def chain(self) -> list[Block]:
        return [Block(start, tokens, self._reader(start, parts)) for start, tokens, parts in self.blocks]

    def _reader(self, start: int, parts: dict[str, bytes]) -> Callable[[str], memoryview]:
        def read(name: str) -> memoryview:
            self.read.append((start, name))
            return memoryview(parts[name])

        return read


def store(session: Session, ids: Sequence[int], ends: Sequence[int]) -> Stored:
    """Prefill an emptied session up to the last of `ends`, taking out a block at each."""
    structure = probe(session.context)
    session.tokens.clear()
    mover, stored = StateMover(session.context, structure), Stored(structure)
    for end in ends:
        start = len(session.tokens)
        session.prefill(ids[start:end])
        parts = mover.export(start, ids[start:end], state=True)
        stored.blocks.append((start, tuple(ids[start:end]), {name: bytes(data) for name, data in parts.items()}))
    return stored


def restore(session: Session, stored: Stored, end: int, ids: Sequence[int]) -> None:
    session.tokens.clear()
    StateMover(session.context, stored.structure).restore(stored.chain(), end)
    session.tokens.extend(ids[:end])


def warm(session: Session, stored: Stored, end: int, ids: Sequence[int], count: int = 6) -> list[bytes]:
    restore(session, stored, end, ids)
    prefill(session, ids)
    return answer(session, count)


def opened(model: Path, fa: str, kv: str, **changes: Any) -> contextlib.AbstractContextManager[Session]:
    return open_session(model, **{"flash_attn": fa, "type_k": kv, "type_v": kv, "n_ctx": 1024, **changes})


# Exactness


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(("kind", "fa", "kv"), ALL)
def test_a_restored_prefix_answers_as_a_cold_run(
    kind: str, fa: str, kv: str, threads: int, random_model: RandomModel
) -> None:
    ids = prompt(812)
    with opened(random_model(kind), fa, kv, n_threads=threads, n_threads_batch=threads) as session:
        stored = store(session, ids, (256, 512, 768))
        expected = cold(session, ids)
        assert warm(session, stored, 768, ids) == expected  # the context was used and cleared before
        assert warm(session, stored, 768, ids) == expected  # what was read is still there
    with opened(random_model(kind), fa, kv, n_threads=threads, n_threads_batch=threads) as session:
        assert warm(session, stored, 768, ids) == expected  # and in a new one


@pytest.mark.parametrize("end", [704, 576, 512, 448, 320, 64])
@pytest.mark.parametrize(("kind", "fa", "kv"), CUTTABLE)
def test_part_of_the_prompt_and_a_diverging_prompt(
    kind: str, fa: str, kv: str, end: int, random_model: RandomModel
) -> None:
    ids = prompt(812)
    with opened(random_model(kind), fa, kv) as session:
        stored = store(session, ids, (256, 512, 768))
        stored.blocks = [block for block in stored.blocks if block[0] < end]
        for other in (ids[: end + 1], ids[: end + GRID], ids[:end] + prompt(70, seed=5)):
            expected = cold(session, other)
            assert warm(session, stored, end, other) == expected


@pytest.mark.parametrize("kind", ["hybrid", "mamba"])
@pytest.mark.parametrize("fa", ["on", "off"])
def test_recurrent_states_at_boundaries(kind: str, fa: str, random_model: RandomModel) -> None:
    """A state at 64, 192 and 320, cut out of the grid of 256."""
    ids = prompt(400)
    with opened(random_model(kind), fa, "f16") as session:
        stored = store(session, ids, (64, 192, 320))
        for count in (3, 2, 1):
            stored.blocks = stored.blocks[:count]
            end = (64, 192, 320)[count - 1]
            for other in (ids, ids[: end + 1], ids[:end] + prompt(70, seed=5)):
                assert warm(session, stored, end, other) == cold(session, other)


@pytest.mark.parametrize(("kind", "fa", "kv"), ALL)
def test_another_context_size_and_other_thread_counts(kind: str, fa: str, kv: str, random_model: RandomModel) -> None:
    ids = prompt(600)
    with opened(random_model(kind), fa, kv, n_ctx=640, n_threads=1, n_threads_batch=1) as session:
        stored = store(session, ids, (256, 512))
    for changes in ({"n_ctx": 2048, "n_threads": 2, "n_threads_batch": 1}, {"n_ctx": 768, "n_threads_batch": 2}):
        with opened(random_model(kind), fa, kv, **changes) as session:
            assert warm(session, stored, 512, ids) == cold(session, ids)


@pytest.mark.parametrize(("kind", "fa", "kv"), ALL)
def test_what_is_computed_behind_a_restored_prefix_can_be_stored(
    kind: str, fa: str, kv: str, random_model: RandomModel
) -> None:
    ids = prompt(812)
    with opened(random_model(kind), fa, kv) as session:
        stored = store(session, ids, (256, 512, 768))
        first = Stored(stored.structure, stored.blocks[:2])
        restore(session, first, 512, ids)
        session.prefill(ids[512:768])
        again = StateMover(session.context, stored.structure).export(512, ids[512:768], state=True)
        assert {name: bytes(data) for name, data in again.items()} == stored.blocks[2][2]


@pytest.mark.parametrize(("kind", "fa", "kv"), CUTTABLE)
def test_blocks_of_any_length(kind: str, fa: str, kv: str, random_model: RandomModel) -> None:
    """Tails, and blocks that begin off the grid: windows are cut in pieces of their own."""
    ids = prompt(500)
    with opened(random_model(kind), fa, kv) as session:
        stored = store(session, ids, (64, 192, 197, 198, 320, 384))
        restore(session, stored, 384, ids)
        prefill(session, ids)
        found = answer(session)
        session.cut(0)
        for start, end in ((0, 64), (64, 192), (192, 197), (197, 198), (198, 320), (320, 384)):
            session.prefill(ids[start:end])
        prefill(session, ids)
        assert found == answer(session)


def test_a_comparison_of_logits_can_fail(random_model: RandomModel) -> None:
    """One changed row in one part is enough."""
    ids = prompt(300)
    for kind, name in (("plain", ATTENTION), ("iswa", WINDOW), ("hybrid", STATE), ("mamba", STATE)):
        with opened(random_model(kind), "on", "f16") as session:
            stored = store(session, ids, (256,))
            expected = cold(session, ids)
            start, tokens, parts = stored.blocks[0]
            data = bytearray(parts[name])
            data[-32:] = bytes(32)
            stored.blocks[0] = (start, tokens, {**parts, name: bytes(data)})
            assert warm(session, stored, 256, ids) != expected


# Sliding windows


def test_only_the_window_is_read(random_model: RandomModel) -> None:
    ids = prompt(812)
    with opened(random_model("iswa"), "on", "f16") as session:
        stored = store(session, ids, (256, 512, 768))
        restore(session, stored, 768, ids)
        assert stored.read == [(0, ATTENTION), (256, ATTENTION), (512, ATTENTION), (512, WINDOW)]
        assert session.context.first_position() == 512
        stored.read.clear()
        restore(session, stored, 512 + SLIDING_WINDOW - 1, ids)
        assert stored.read[-3:] == [(256, WINDOW), (512, ATTENTION), (512, WINDOW)]


def test_rows_of_a_window_stand_where_a_cold_run_has_them(
    random_model: RandomModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With 3 threads, decoding splits 768 cells at 256 and 512: rows that begin at cell 0 are summed otherwise."""
    ids = prompt(556)
    with opened(random_model("iswa"), "on", "f16", n_threads=3) as session:
        stored = store(session, ids, (256, 512))
        expected = cold(session, ids)
        assert warm(session, stored, 512, ids) == expected
        monkeypatch.setattr(StateMover, "_place", lambda self, _block: memoryview(self._without_rows))
        moved = warm(session, stored, 512, ids)
        assert moved[0] == expected[0] and moved[1:] != expected[1:]


def test_a_window_that_is_not_whole_is_not_gone_on_with(random_model: RandomModel) -> None:
    ids = prompt(812)
    with opened(random_model("iswa"), "on", "f16") as session:
        stored = store(session, ids, (256, 512, 768))
        restore(session, stored, 768, ids)
        session.cut(640)  # the window of 640 begins at 576: it is there
        assert session.tokens == ids[:640]
        prefill(session, ids)
        assert answer(session) == cold(session, ids)
        restore(session, stored, 768, ids)
        session.cut(512 + SLIDING_WINDOW)
        assert len(session.tokens) == 512 + SLIDING_WINDOW
        session.cut(512 + SLIDING_WINDOW - 1)
        assert session.tokens == [] and session.context.length() == 0


def test_a_shift_drops_no_row_that_is_still_seen(random_model: RandomModel) -> None:
    ids = prompt(812)
    with opened(random_model("iswa"), "on", "f16") as session:
        stored = store(session, ids, (256, 512, 768))
        restore(session, stored, 768, ids)
        with pytest.raises(LlmcliError, match="cannot drop"):
            session.drop(400, 710)  # 58 rows would be left of a window of 64
        assert session.context.length() == 768
        session.drop(10, 300)
        assert session.context.length() == 478 and session.context.first_position() == 222
        assert session.context.first_position(PLACEHOLDER) == -1
        session.decode(5)


def test_a_window_that_is_not_kept_in_full_cannot_be_stored(random_model: RandomModel) -> None:
    with opened(random_model("iswa"), "on", "f16", swa_full=False) as session:
        assert not session.context.can_move_blocks
        with pytest.raises(UnknownLayoutError, match="not kept in full"):
            probe(session.context)


# Failures


def damaged(stored: Stored, number: int, name: str, offset: int) -> Stored:
    blocks = list(stored.blocks)
    start, tokens, parts = blocks[number]
    data = bytearray(parts[name])
    data[offset] ^= 1
    blocks[number] = (start, tokens, {**parts, name: bytes(data)})
    return Stored(stored.structure, blocks)


def empty(context: Context) -> bool:
    sequences = (SEQUENCE, SCRATCH, PLACEHOLDER) if context.model.window_tokens else (SEQUENCE, SCRATCH)
    return context.length() == 0 and all(context.first_position(sequence) == -1 for sequence in sequences)


@pytest.mark.parametrize(("kind", "fa", "kv"), ALL)
def test_a_damaged_part_is_a_failed_restore_and_an_empty_context(
    kind: str, fa: str, kv: str, random_model: RandomModel
) -> None:
    ids = prompt(600)
    with opened(random_model(kind), fa, kv) as session:
        stored = store(session, ids, (256, 512))
        expected = cold(session, ids)
        for name in stored.blocks[1][2]:
            for offset in (0, 4, 8, 12, 20):
                broken = damaged(stored, 1, name, offset)
                with pytest.raises(RestoreFailedError) as failure:
                    restore(session, broken, 512, ids)
                assert failure.value.block == 1 and empty(session.context)
        session.tokens.clear()
        prefill(session, ids)
        assert answer(session) == expected


@pytest.mark.parametrize("kind", KINDS)
def test_a_reader_that_fails_leaves_an_empty_context(kind: str, random_model: RandomModel) -> None:
    def read(name: str) -> memoryview:
        raise OSError(f"no {name}")

    ids = prompt(512)
    with opened(random_model(kind), "on", "f16") as session:
        stored = store(session, ids, (256, 512))
        chain = stored.chain()
        chain[1] = Block(256, ids[256:], read)
        with pytest.raises(OSError, match="no "):
            StateMover(session.context, stored.structure).restore(chain, 512)
        assert empty(session.context)


@pytest.mark.parametrize("kind", KINDS)
def test_a_chain_must_be_whole_and_fit(kind: str, random_model: RandomModel) -> None:
    ids = prompt(512)
    with opened(random_model(kind), "on", "f16") as session:
        stored = store(session, ids, (256, 512))
        mover, chain = StateMover(session.context, stored.structure), stored.chain()
        wrong = [([], 0), ([], 64), (chain[1:], 512), (chain, 513), (chain, 256), (chain, 0), (chain[::-1], 512)]
        wrong.append(([Block(0, (), chain[0].read)], 0))
        if kind in ("hybrid", "mamba"):
            wrong.append((chain, 448))
        for blocks, end in wrong:
            with pytest.raises(RestoreFailedError):
                mover.restore(blocks, end)
            assert empty(session.context)
    with (
        opened(random_model(kind), "on", "f16", n_ctx=300) as session,
        pytest.raises(RestoreFailedError, match="cannot be restored to 512"),
    ):
        StateMover(session.context, stored.structure).restore(stored.chain(), 512)


def test_a_block_that_has_no_room_is_a_failed_restore(random_model: RandomModel) -> None:
    """The tokens fit, the cells behind them that would be cut do not."""
    ids = prompt(600)
    with opened(random_model("plain"), "on", "f16") as session:
        stored = store(session, ids, (256, 300, 556))
    with opened(random_model("plain"), "on", "f16", n_ctx=512) as session:
        with pytest.raises(RestoreFailedError, match="refused the attn part") as failure:
            restore(session, stored, 512, ids)
        assert failure.value.block == 2 and empty(session.context)


def test_parts_of_another_context_are_refused_by_llama_cpp_too(random_model: RandomModel) -> None:
    ids = prompt(256)
    variants = [("on", "f16"), ("off", "f16"), ("on", "q8_0"), ("on", "q4_0")]
    for saved in variants:
        with opened(random_model("plain"), *saved) as session:
            stored = store(session, ids, (256,))
        for used in variants:
            if used != saved:
                with opened(random_model("plain"), *used) as session:
                    assert not confirm(session.context, stored.structure)
                    with pytest.raises(RestoreFailedError, match="refused the attn part"):
                        restore(session, stored, 256, ids)
                    assert empty(session.context)


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_not_there_cannot_be_taken_out(kind: str, random_model: RandomModel) -> None:
    ids = prompt(300)
    with opened(random_model(kind), "on", "f16") as session:
        mover = StateMover(session.context, probe(session.context))
        session.prefill(ids)
        for start, tokens in ((256, [*ids[256:], 1]), (0, []), (300, [1])):
            with pytest.raises(ExportFailedError):
                mover.export(start, tokens, state=False)
        if mover.structure.recurrent:
            with pytest.raises(ExportFailedError, match="not at 256"):
                mover.export(0, ids[:256], state=True)
        before = bytes(session.context.logits())
        assert session.context.length() == 300 and session.context.first_position(SCRATCH) == -1
        session.cut(0)
        session.prefill(ids)
        assert bytes(session.context.logits()) == before


def test_rows_of_a_window_that_were_not_restored_cannot_be_taken_out(random_model: RandomModel) -> None:
    ids = prompt(600)
    with opened(random_model("iswa"), "on", "f16") as session:
        stored = store(session, ids, (256, 512))
        restore(session, stored, 512, ids)
        with pytest.raises(ExportFailedError, match="window rows"):
            StateMover(session.context, stored.structure).export(0, ids[:256])


@pytest.mark.parametrize("kind", KINDS)
def test_taking_out_changes_nothing(kind: str, random_model: RandomModel) -> None:
    ids = prompt(600)
    with opened(random_model(kind), "on", "f16") as session:
        expected = cold(session, ids)
        mover = StateMover(session.context, probe(session.context))
        session.tokens.clear()
        session.prefill(ids[:512])
        mover.export(256, ids[256:512], state=True)
        prefill(session, ids)
        if mover.structure.attention:
            mover.export(0, ids[:256])
        found = [bytes(session.context.logits())]
        for i in range(6):
            session.decode((13 * i + 5) % 127)
            if mover.structure.attention:
                mover.export(256, ids[256:512])
            found.append(bytes(session.context.logits()))
        assert found == expected


# Probing


F16_ROW = Rows(1, 64)


def test_structures_of_the_random_models(random_model: RandomModel) -> None:
    def structure(kind: str, fa: str, kv: str = "f16") -> Structure:
        with opened(random_model(kind), fa, kv) as session:
            found = probe(session.context)
            assert empty(session.context) and found.kind in memory_kinds(session.context.model)
            return found

    two, one, five = (F16_ROW,) * 2, (F16_ROW,), (F16_ROW,) * 5
    assert structure("plain", "on") == Structure("plain", attention=CellLayout(False, "none", two, two))
    column = Rows(1, 2, 32)
    assert structure("plain", "off").attention == CellLayout(True, "none", two, (column,) * 2)
    assert structure("plain", "on", "q8_0").attention == CellLayout(
        False, "none", (Rows(8, 34),) * 2, (Rows(8, 34),) * 2
    )
    assert structure("iswa", "on") == Structure(
        "window", 64, CellLayout(False, "none", one, one), CellLayout(False, "none", five, five)
    )
    short_convolution = StateLayout(4, (Rows(0, 512),) * 2 + (Rows(0, 0),) * 2)
    assert structure("hybrid", "on") == Structure(
        "hybrid", attention=CellLayout(False, "none", two, two), recurrent=short_convolution
    )
    assert structure("mamba", "on") == Structure(
        "recurrent", recurrent=StateLayout(2, (Rows(0, 1536),) * 2 + (Rows(0, 8192),) * 2)
    )


@pytest.mark.parametrize(
    ("name", "kind", "extra", "has_values"),
    [
        ("latent attention", "plain", "none", False),
        ("delta net", "hybrid", "position", True),
        ("mamba2", "recurrent", None, None),
        ("rwkv7", "recurrent", None, None),
    ],
)
def test_other_memories_keep_every_byte(
    name: str, kind: str, extra: str | None, has_values: bool | None, tmp_path: Path
) -> None:
    ids = [i % 30 for i in range(100)]
    with opened(ZERO_MODELS[name]().write(tmp_path / "model.gguf"), "on", "f16", n_ctx=256) as session:
        structure = probe(session.context)
        assert structure.kind == kind and confirm(session.context, structure)
        if structure.attention:
            assert structure.attention.cell_extra == extra and bool(structure.attention.values) == has_values
        stored = store(session, ids, (64, 96))
        restore(session, stored, 96, ids)
        again = StateMover(session.context, structure).export(64, ids[64:96], state=True)
        assert {part: bytes(data) for part, data in again.items()} == stored.blocks[1][2]


def test_a_structure_is_confirmed_in_its_own_context_only(random_model: RandomModel) -> None:
    cases = [("plain", *mode) for mode in MODES]
    cases += [("iswa", "on", "f16"), ("iswa", "off", "f16"), ("hybrid", "on", "f16"), ("mamba", "on", "f16")]
    found = {}
    for case in cases:
        with opened(random_model(case[0]), *case[1:]) as session:
            found[case] = probe(session.context)
    for case in cases:
        with opened(random_model(case[0]), *case[1:]) as session:
            session.prefill(prompt(10))
            assert [other for other in cases if confirm(session.context, found[other])] == [case]
            assert empty(session.context)


def test_a_structure_of_another_window_is_not_confirmed(random_model: RandomModel) -> None:
    with opened(random_model("iswa"), "on", "f16") as session:
        found = probe(session.context)
        other = Structure("window", 32, found.attention, found.window)
        assert confirm(session.context, found) and not confirm(session.context, other)


def test_probing_works_with_the_smallest_batch(random_model: RandomModel) -> None:
    with opened(random_model("plain"), "on", "f16", n_ubatch=1) as session:
        assert probe(session.context).kind == "plain"


# The context


@pytest.mark.parametrize(("kind", "fa", "kv"), ALL)
def test_more_sequences_change_no_logits(
    kind: str, fa: str, kv: str, random_model: RandomModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = prompt(300)
    with opened(random_model(kind), fa, kv) as session:
        assert session.context._lib.llama_n_seq_max(session.context.handle) == (3 if kind == "iswa" else 2)
        expected = cold(session, ids)
    monkeypatch.setattr(Context, "_sequences", lambda _self: 1)
    with opened(random_model(kind), fa, kv) as session:
        assert session.context._lib.llama_n_seq_max(session.context.handle) == 1
        assert cold(session, ids) == expected


def test_addresses_of_read_only_and_of_mapped_bytes(tmp_path: Path) -> None:
    import ctypes

    (tmp_path / "file").write_bytes(b"0123456789" * 1000)
    with open(tmp_path / "file", "rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    for data in (b"abc", bytearray(b"abc"), memoryview(b"xabc")[1:], memoryview(mapped)[10:13]):
        assert ctypes.string_at(address_of(data), len(data)) == bytes(data)
    with pytest.raises(BufferError):
        address_of(memoryview(b"abcdef")[::2])


# Real models


@contextlib.contextmanager
def real(path: Path, fa: str, kv: str, n_ctx: int) -> Iterator[Session]:
    with opened(path, fa, kv, n_ctx=n_ctx, n_threads=2, n_threads_batch=2) as session:
        yield session


@pytest.mark.parametrize(("fa", "kv"), MODES)
def test_smollm2_is_exact(fa: str, kv: str, smollm2_path: Path) -> None:
    ids = [(7 * i * i + 3 * i + 11) % 40_000 for i in range(300)]
    with real(smollm2_path, fa, kv, 512) as session:
        stored = store(session, ids, (256,))
        prefill(session, ids)
        expected = answer(session, 3)
        assert warm(session, stored, 256, ids, 3) == expected
        assert warm(session, stored, 192, ids[:200], 3) == cold(session, ids[:200], 3)


def test_gemma3_is_exact_with_its_window_alone(gemma3_path: Path) -> None:
    """Cells behind places, decoding split over two threads: the case in which rows at cell 0 are wrong."""
    ids = [(7 * i * i + 3 * i + 11) % 40_000 for i in range(1044)]
    with real(gemma3_path, "on", "f16", 1280) as session:
        stored = store(session, ids, (256, 512, 768, 1024))
        prefill(session, ids)
        expected = answer(session, 3)
        assert warm(session, stored, 1024, ids, 3) == expected
        assert {start for start, name in stored.read if name == WINDOW} == {512, 768}
