from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from llmcli.cache_store import match as match_module
from llmcli.cache_store.keys import NO_KEY
from llmcli.cache_store.parting import Difference
from llmcli.cache_store.policy import Policy
from llmcli.cache_store.store import PrefixStore
from tests.cache_store_case import (  # noqa: F401
    FINGERPRINT,
    POLICY,
    assert_right,
    no_waiting_for_the_disk,
    open_store,
    put,
)

LONG = [n * 7 % 1000 for n in range(1000)]


@pytest.fixture
def store(tmp_path: Path) -> PrefixStore:
    return open_store(tmp_path / "s")


def matched(store: PrefixStore, tokens: list[int], **options: object) -> int:
    found = store.match(FINGERPRINT, tokens, **options)  # type: ignore[arg-type]
    assert_right(store, found.blocks)
    together = [token for ref in found.blocks for token in ref.token_ids]
    assert together[: found.matched_tokens] == tokens[: found.matched_tokens]
    assert [ref.start_tokens for ref in found.blocks] == [
        sum(ref.n_tokens for ref in found.blocks[:n]) for n in range(len(found.blocks))
    ]
    whole = sum(ref.n_tokens for ref in found.whole_blocks)
    assert found.matched_tokens == whole + found.partial_last_tokens
    return found.matched_tokens


def test_same_longer_shorter_diverging(store: PrefixStore) -> None:
    put(store, LONG)
    assert matched(store, LONG) == 1000
    assert matched(store, [*LONG, 1, 2, 3]) == 1000
    for length in (1, 255, 256, 257, 511, 768, 999):
        assert matched(store, LONG[:length]) == length
        assert matched(store, [*LONG[:length], 5000, *LONG]) == length
    assert matched(store, [5000, *LONG]) == 0


def test_blocks_and_partial(store: PrefixStore) -> None:
    refs = put(store, LONG)
    found = store.match(FINGERPRINT, LONG[:300])
    assert found.blocks == tuple(refs[:2])
    assert (found.matched_tokens, found.partial_last_tokens, found.whole_blocks) == (300, 44, tuple(refs[:1]))
    assert found.difference is None
    assert found.miss_reason is None
    assert refs[1].part_bytes == {"attn": 3 * 1028, "window": 1028}
    assert (refs[0].grandparent, refs[1].grandparent, refs[2].grandparent) == (
        NO_KEY,
        refs[0].parent,
        refs[1].parent,
    )


def test_difference_names_the_position_and_both_sides(store: PrefixStore) -> None:
    put(store, LONG)
    found = store.match(FINGERPRINT, [*LONG[:300], 5001, 5002, 5003])
    assert found.difference == Difference(300, 292, tuple(LONG[292:308]), (*LONG[292:300], 5001, 5002, 5003))
    found = store.match(FINGERPRINT, [*LONG[:258], 5001])
    assert found.difference == Difference(258, 250, tuple(LONG[250:266]), (*LONG[250:258], 5001))


def test_a_difference_at_the_end_of_a_block(store: PrefixStore) -> None:
    """What part there share no token of the block behind it."""
    put(store, LONG[:600])
    found = store.match(FINGERPRINT, [*LONG[:512], 5001])
    assert found.difference == Difference(512, 504, tuple(LONG[504:520]), (*LONG[504:512], 5001))


def test_no_difference_before_what_is_stored_of_the_prompt(store: PrefixStore) -> None:
    """Another prompt that was left long ago is not the nearest: the one that the whole run is from is."""
    put(store, [*LONG[:6], *([4000] * 300)])
    put(store, LONG[:256])
    assert store.match(FINGERPRINT, [*LONG[:300], 5001]).difference is None
    assert store.match(FINGERPRINT, [*LONG[:250], 5001]).difference == Difference(
        250, 242, tuple(LONG[242:256]), (*LONG[242:250], 5001)
    )


@pytest.mark.parametrize("exact_only", [True, False])
def test_the_nearest_may_be_one_that_cannot_be_restored(store: PrefixStore, exact_only: bool) -> None:
    """The end of a named prefix, an answer: the prompt leaves them, not what it left before."""
    first = put(store, LONG[:128])
    put(store, [*LONG[128:140], *([4000] * 100)], after=first[-1])
    named = put(store, LONG[128:160], after=first[-1], exact=False)
    answer = put(store, LONG[160:700], after=named[-1], exact=False)
    for end, expected in ((150, 150), (165, 165), (700, None)):
        found = store.match(FINGERPRINT, [*LONG[:end], 5001, 5002], exact_only=exact_only)
        assert (found.difference and found.difference.position_tokens) == expected
        assert found.matched_tokens == (140 if exact_only else end)
        passed = [ref for ref in (*named, *answer) if ref.end_tokens <= end]
        assert found.passed == (tuple(passed) if exact_only else ())


def test_a_snapshot_that_cannot_be_restored_is_no_end(store: PrefixStore) -> None:
    """Recurrent models: what was decoded holds a state too, and is only followed."""
    first = put(store, LONG[:128], state=True)
    after = first
    for end in range(384, 1000, 256):
        after = put(store, LONG[end - 256 : end], after=after[-1], exact=False, state=True)
    found = store.match(FINGERPRINT, LONG, ending_part="state")
    assert (found.blocks, found.matched_tokens) == (tuple(first), 128)
    assert [ref.end_tokens for ref in found.passed] == [384, 640, 896]
    assert store.match(FINGERPRINT, LONG, ending_part="state", exact_only=False).matched_tokens == 896


def test_blocks_behind_unusable_ones_do_not_crowd_out_usable_ones(store: PrefixStore) -> None:
    first = put(store, LONG[:256])
    put(store, LONG[256:768], after=first[-1], exact=False)
    put(store, LONG[256:320], after=first[-1])
    assert matched(store, LONG) == 320
    assert matched(store, LONG, exact_only=False) == 768


def test_tails_are_walked_on_from(store: PrefixStore) -> None:
    """A conversation stored turn by turn, at ends that are on no grid, is followed to its end."""
    after = None
    for start, end in ((0, 300), (300, 310), (310, 650), (650, 651), (651, 1000)):
        after = put(store, LONG[start:end], after=after)[-1]
    assert matched(store, LONG) == 1000
    assert matched(store, [*LONG[:655], 7000]) == 655


def test_the_longest_branch_wins(store: PrefixStore) -> None:
    put(store, LONG[:400], cuts=(300,))
    put(store, LONG[:700], cuts=(256, 350))
    put(store, [*LONG[:320], *([4000] * 300)])
    assert matched(store, LONG) == 700
    assert matched(store, [*LONG[:320], *([4000] * 100)]) == 420


def test_a_run_behind_a_tail_is_found_beside_the_full_block(store: PrefixStore) -> None:
    """Another process stored the full block at the same time: both ways lead on, and the longer one counts."""
    put(store, LONG[:900], cuts=(192,))
    put(store, [*LONG[:300], *([4000] * 300)])
    assert matched(store, LONG) == 900
    assert matched(store, [*LONG[:300], 4000, 4000]) == 302
    assert matched(store, [*LONG[:310], *([4001] * 100)]) == 310


def test_exact_and_inexact_blocks_are_apart(store: PrefixStore) -> None:
    first = put(store, LONG[:256])
    decoded = put(store, LONG[256:300], after=first[-1], exact=False)
    behind = put(store, LONG[300:600], after=decoded[-1], exact=True)
    assert [ref.exact for ref in (*first, *decoded, *behind)] == [True, False, False, False]
    assert matched(store, LONG[:600]) == 256
    assert matched(store, LONG[:600], exact_only=False) == 600
    put(store, LONG[256:300], after=first[-1], exact=True)
    assert matched(store, LONG[:600]) == 300
    assert matched(store, LONG[:600], exact_only=False) == 600


def test_full_inexact_blocks_are_walked(store: PrefixStore) -> None:
    put(store, LONG[:600], exact=False)
    assert matched(store, LONG) == 0
    assert matched(store, LONG, exact_only=False) == 600


def test_ending_part_takes_the_last_block_that_has_it(store: PrefixStore) -> None:
    first = put(store, LONG[:256])
    system = put(store, LONG[256:300], after=first[-1], state=True)
    put(store, LONG[256:900], after=first[-1])
    assert matched(store, LONG) == 900
    found = store.match(FINGERPRINT, LONG, ending_part="state")
    assert (found.blocks, found.matched_tokens, found.partial_last_tokens) == ((*first, *system), 300, 0)
    put(store, LONG[:600], state=True)
    assert matched(store, LONG, ending_part="state") == 600
    assert matched(store, LONG[:599], ending_part="state") == 300
    assert matched(store, LONG[:299], ending_part="state") == 0


def test_ending_part_in_a_full_block(store: PrefixStore) -> None:
    first = put(store, LONG[:512], state=True)
    put(store, LONG[512:900], after=first[-1])
    assert matched(store, LONG, ending_part="state") == 512


def test_namespaces_do_not_see_each_other(tmp_path: Path) -> None:
    with open_store(tmp_path / "s", salt="one") as one, open_store(tmp_path / "s", salt="two") as two:
        put(one, LONG)
        assert matched(one, LONG) == 1000
        assert matched(two, LONG) == 0
        put(two, LONG)
        assert matched(two, LONG) == 1000


@pytest.mark.parametrize("indexed", [True, False])
def test_many_siblings(store: PrefixStore, monkeypatch: pytest.MonkeyPatch, indexed: bool) -> None:
    """More children than are looked at one by one: the index finds the nearest; without it some are tried."""
    for number in range(60):
        put(store, [*LONG[:100], 3000 + number, *range(50)])
    if not indexed:
        monkeypatch.setattr(store, "_neighbours", lambda parent, rest: None)
    found = [matched(store, [*LONG[:100], 3000 + number, 1, 2]) for number in range(60)]
    if indexed:
        assert found == [101] * 60
    else:
        assert sorted(set(found)) == [100, 101]
        assert found.count(101) >= 20


def test_a_full_folder_is_not_read_to_its_end(store: PrefixStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(match_module, "MAX_SEEN_NAMES", 3)
    for number in range(10):
        put(store, [9, number, 1])
    assert [matched(store, [9, number, 2]) for number in range(10)] == [2] * 10


def test_expired_blocks_are_not_used(tmp_path: Path) -> None:
    with open_store(tmp_path / "s", Policy(ttl_s=100, min_tokens=1, min_free_bytes=0)) as store:
        refs = put(store, LONG[:600])
        old = time.time() - 200
        os.utime(refs[2].path, (old, old))
        assert matched(store, LONG) == 512


@settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, 2**32))
def test_against_a_list_of_prompts(tmp_path: Path, seed: int) -> None:
    """Prompts of a tiny vocabulary, stored behind what is already there: the longest common run with any is found."""
    source = random.Random(seed)
    stored: list[list[int]] = []
    with open_store(tmp_path / str(seed), POLICY) as store:
        for _ in range(8):
            known = source.choice(stored)[: source.randrange(600)] if stored and source.random() < 0.7 else []
            prompt = known + [source.randrange(2) for _ in range(source.randrange(1, 300))]
            found = store.match(FINGERPRINT, prompt)
            expected = max((_common(prompt, other) for other in stored), default=0)
            assert found.matched_tokens == expected
            assert_right(store, found.blocks)
            after = found.whole_blocks[-1] if found.whole_blocks else None
            rest = prompt[after.end_tokens if after else 0 :]
            if rest:
                put(store, rest, after=after)
            stored.append(prompt)


@settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, 2**32))
def test_whatever_several_save_at_the_same_time_is_found(tmp_path: Path, seed: int) -> None:
    """By turns they look, and save block by block: each prompt is then restored to its last point on the grid."""
    source = random.Random(seed)
    prompts: list[list[int]] = [[source.randrange(1000) for _ in range(1000)]]
    for _ in range(9):
        known = source.choice(prompts)[: source.randrange(64, 1000)]
        own = [source.randrange(1000) for _ in range(source.choice((0, 300)))]
        prompts.append(known + own)
    with open_store(tmp_path / str(seed), POLICY) as store:
        saving = [_save(store, prompt) for prompt in prompts]
        while saving:
            if next(one := source.choice(saving), None) is None:
                saving.remove(one)
        for prompt in prompts:
            assert matched(store, [*prompt, 5000]) >= len(prompt) // 64 * 64


def _save(store: PrefixStore, prompt: list[int]) -> Iterator[str]:
    """Cut as the engine cuts: at multiples of 256, and where the prompt leaves a stored one."""
    found = store.match(FINGERPRINT, prompt)
    yield "looked"
    after = found.whole_blocks[-1] if found.whole_blocks else None
    start = position = after.end_tokens if after else 0
    parting = found.matched_tokens // 64 * 64 if found.matched_tokens < len(prompt) else 0
    for cut in sorted({parting, len(prompt) // 64 * 64, *range(256, len(prompt), 256)}):
        if cut > start:
            (after,) = put(store, prompt[position:cut], after=after)
            position = cut
            yield "saved"


def _common(one: list[int], two: list[int]) -> int:
    return next((n for n, (a, b) in enumerate(zip(one, two, strict=False)) if a != b), min(len(one), len(two)))
