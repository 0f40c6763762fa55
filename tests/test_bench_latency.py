"""Latency: what is cold, in memory and on disk, on tiny models."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from llmcli.base.errors import UsageError, UserInterruptError
from llmcli.base.settings import load
from llmcli.bench.latency import Latency, LatencyOptions
from llmcli.bench.latency_result import KINDS, Point
from tests.fixtures.engines import open_tiny_engine

OPTIONS = LatencyOptions((64, 200), question_tokens=10, answer_tokens=5, repetitions=2)


def test_cold_memory_and_disk(scripted_model: Callable[..., Path], tmp_path: Path) -> None:
    model = scripted_model(["Hello", " world"])  # would end after two tokens
    with open_tiny_engine(model, n_ctx=512) as engine:
        latency = Latency(engine, OPTIONS, load(), tmp_path / "store")
        points = list(latency.run())
    assert [one.prefix_tokens for one in points] == [64, 200]
    for one in points:
        assert [request.kind for request in one.requests] == [*KINDS, *KINDS]
        assert {request.prompt_tokens for request in one.requests} == {one.prefix_tokens + 10}
        assert all(len(request.itl_s) == 4 for request in one.requests)
        assert all(request.total_s == pytest.approx(request.ttft_s + sum(request.itl_s)) for request in one.requests)
        assert all(request.ttft_s >= request.prefill_s + request.restore_s for request in one.requests)
        restored = {kind: {r.restored_tokens for r in one.requests if r.kind == kind} for kind in KINDS}
        assert restored == {
            "cold": {0},
            "memory": {one.prefix_tokens},
            "disk": {one.prefix_tokens // 64 * 64},  # on the exact grid
        }
        assert one.written_bytes > one.prefix_tokens
        found = one.as_json()
        assert found["disk_ttft_s"] == one.ttft_s("disk")
        assert len(found["requests"]) == 6
    # No length found what another had stored.
    assert points[1].written_bytes > 2 * points[0].written_bytes


@pytest.mark.parametrize("kind", ["plain", "iswa", "hybrid", "mamba"])
def test_every_kind_of_memory(kind: str, random_model: Callable[[str], Path], tmp_path: Path) -> None:
    """These models have no text: their tokens are counted out."""
    options = LatencyOptions((128,), question_tokens=8, answer_tokens=3, repetitions=1)
    with open_tiny_engine(random_model(kind), n_ctx=512) as engine:
        latency = WithoutText(engine, options, load(), tmp_path / "store")
        (found,) = latency.run()
    assert [one.restored_tokens for one in found.requests] == [0, 128, 128]


class WithoutText(Latency):
    def _text_of(self, ids: Sequence[int]) -> str:
        return ""

    def _tokenize(self, text: str) -> list[int]:
        return []

    def _prompt(self, length: int, number: int) -> list[int]:
        count = self._options.question_tokens
        return [*(i * 7 % 61 for i in range(length)), *((i + number) % 61 for i in range(count))]


def test_prefixes_of_a_text(scripted_model: Callable[..., Path], tmp_path: Path) -> None:
    with open_tiny_engine(scripted_model(["Hello", " world"]), n_ctx=512) as engine:
        text = "0123456789" * 21
        latency = Latency(engine, OPTIONS, load(), tmp_path / "store", text)
        assert latency.text(64, 1).startswith("0123456789")
        assert latency.text(200, 1)[:190].count("0123456789") == 19
        with pytest.raises(UsageError, match="tokens, and a prefix of 200 is asked for"):
            Latency(engine, OPTIONS, load(), tmp_path / "store", "too short")


def test_a_stop_keeps_the_points_before_it(scripted_model: Callable[..., Path], tmp_path: Path) -> None:
    points: list[Point] = []
    with open_tiny_engine(scripted_model(["Hello", " world"]), n_ctx=512) as engine:

        def stop_at(step: str) -> None:
            if step.startswith("prefix of 200: disk"):
                engine.stop.set()

        with pytest.raises(UserInterruptError):
            points.extend(Latency(engine, OPTIONS, load(), tmp_path / "store").run(stop_at))
    assert [one.prefix_tokens for one in points] == [64]
