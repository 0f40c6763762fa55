"""Split models: any part stands for all, and what is wrong with a part is said of that part."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path

import pytest

from llmcli.base.errors import ModelError
from llmcli.models.check import check_model
from llmcli.models.gguf_header import read_header
from llmcli.models.shards import read_shards
from tests.fixtures.gguf_edit import I32, U16, Gguf, load
from tests.fixtures.load_child import LoadChild

NAMES = [f"m-{number:05}-of-00003.gguf" for number in (1, 2, 3)]


def split(path: Path) -> list[Gguf]:
    """A model in three parts, as llama-gguf-split makes them: the first has the metadata."""
    whole = load(path)
    total = len(whole.tensors)
    parts = [copy.deepcopy(whole), Gguf(), Gguf()]
    parts[1].tensors, parts[2].tensors = parts[0].tensors[2:5], parts[0].tensors[5:]
    parts[0].tensors = parts[0].tensors[:2]
    for number, part in enumerate(parts):
        part.set("split.no", U16, number).set("split.count", U16, 3).set("split.tensors.count", I32, total)
    return parts


@pytest.fixture
def parts(scripted_model: Callable[..., Path]) -> list[Gguf]:
    return split(scripted_model(["Hello", " world"]))


def written(parts: list[Gguf], folder: Path) -> list[Path]:
    return [part.write(folder / name) for part, name in zip(parts, NAMES, strict=True)]


def refused(path: Path) -> str:
    with pytest.raises(ModelError) as caught:
        read_shards(read_header(path))
    return caught.value.message.replace(f"{path.parent}/", "")


@pytest.mark.parametrize("given", [0, 1, 2])
def test_any_part_stands_for_all(
    parts: list[Gguf], scripted_model: Callable[..., Path], tmp_path: Path, given: int
) -> None:
    paths = written(parts, tmp_path)
    facts, whole = check_model(paths[given]), check_model(scripted_model(["Hello", " world"]))
    assert facts.shards == tuple(map(str, paths))
    assert (facts.n_params, facts.tensor_bytes, facts.n_vocab) == (whole.n_params, whole.tensor_bytes, whole.n_vocab)
    assert facts.file_bytes == sum(path.stat().st_size for path in paths)
    with LoadChild() as child:
        assert child.load(Path(facts.shards[0])) == "loaded"


def test_one_file_is_one_part(scripted_model: Callable[..., Path]) -> None:
    header = read_header(scripted_model(["Hello"]))
    assert read_shards(header) == (header,)


def test_a_missing_part_is_named(parts: list[Gguf], tmp_path: Path) -> None:
    paths = written(parts, tmp_path)
    paths[1].unlink()
    assert refused(paths[2]) == f"{NAMES[1]} is missing: the model has 3 parts, and all must be in one folder"
    paths[2].unlink()
    assert refused(paths[0]).startswith(f"{NAMES[1]} and 1 more is missing")


def test_a_part_that_is_cut_off(parts: list[Gguf], tmp_path: Path) -> None:
    paths = written(parts, tmp_path)
    paths[1].write_bytes(paths[1].read_bytes()[:-5000])
    assert refused(paths[0]).startswith(f"{NAMES[1]} is cut off: it has ")


@pytest.mark.parametrize(
    ("damage", "expected"),
    [
        (lambda p: p[1].set("split.no", I32, 1), f"{NAMES[1]} is not a usable model: split.no is i32, expected u16"),
        (lambda p: p[1].set("split.no", U16, 2), "split.no is 2, expected 1: the parts have been mixed up"),
        (lambda p: p[1].drop("split.no"), "split.no is None, expected 1"),
        (lambda p: p[0].set("split.tensors.count", I32, 5), "split.tensors.count is 5, but the parts have 12 tensors"),
        (lambda p: p[2].tensors.append(p[0].tensors[0]), "tensor 'token_embd.weight' is in an earlier part too"),
        (lambda p: p[0].set("split.count", I32, 3), "split.count is i32, expected u16"),
        (lambda p: p[0].set("split.count", U16, 2), "is one of 2 parts of a model, but not named like one"),
    ],
)
def test_parts_that_do_not_fit(
    parts: list[Gguf], tmp_path: Path, damage: Callable[[list[Gguf]], object], expected: str
) -> None:
    damage(parts)
    assert expected in refused(written(parts, tmp_path)[0])


def test_a_wrong_name(parts: list[Gguf], tmp_path: Path) -> None:
    path = parts[0].write(tmp_path / "renamed.gguf")
    assert refused(path) == "renamed.gguf is one of 3 parts of a model, but not named like one"


def test_parts_glued_together(parts: list[Gguf], tmp_path: Path) -> None:
    path = tmp_path / "all.gguf"
    path.write_bytes(b"".join(part.dump() for part in parts))
    with pytest.raises(ModelError, match="several GGUF files glued together") as caught:
        check_model(path)
    assert "llama-gguf-split --merge" in str(caught.value.hint)


def test_siblings_are_sought_beside_the_link(parts: list[Gguf], tmp_path: Path) -> None:
    # The Hugging Face cache keeps blobs in one folder and links with the names in another.
    blobs, snapshot = tmp_path / "blobs", tmp_path / "snapshot"
    blobs.mkdir()
    snapshot.mkdir()
    for number, part in enumerate(parts):
        part.write(blobs / f"blob{number}")
        (snapshot / NAMES[number]).symlink_to(blobs / f"blob{number}")
    assert check_model(snapshot / NAMES[1]).shards == tuple(str(snapshot / name) for name in NAMES)
