"""Measures the prefix store alone: look-up, opening, reading, writing. Standard library and llmcli only, no model.

    python benchmarks/store.py [--blocks 20000] [--folder DIR]

Prints one JSON object. Every rate stands beside memcpy's rate over the same bytes in the same run; files are in the
page cache. Nothing here is a test: machines differ.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest import mock

from llmcli.cache_store.keys import BLOCK_TOKENS, Fingerprint
from llmcli.cache_store.match import BlockRef
from llmcli.cache_store.policy import Policy
from llmcli.cache_store.store import PrefixStore

FINGERPRINT = Fingerprint.of({"model": "benchmark", "build": "0"})
POLICY = Policy(max_bytes=1 << 40, min_free_bytes=0)
KV_BYTES_PER_TOKEN = 23_040  # SmolLM2-135M, f16
REPEATS = 9

OPEN_SCRIPT = """
import sys, time
from pathlib import Path
from unittest import mock
from llmcli.cache_store.store import PrefixStore
from llmcli.cache_store.policy import Policy
start = time.perf_counter()
store = PrefixStore.open(Path(sys.argv[1]), Policy(), notify=print)
print(1000 * (time.perf_counter() - start))
"""
MEMORY_SCRIPT = """
import resource, sys
from pathlib import Path
from llmcli.cache_store.keys import Fingerprint
from llmcli.cache_store.store import PrefixStore
from llmcli.cache_store.policy import Policy
fingerprint = Fingerprint.of({"model": "benchmark", "build": "0"})
with PrefixStore.open(Path(sys.argv[1]), Policy(max_bytes=1 << 40, min_free_bytes=0), notify=print) as store:
    store.match(fingerprint, [1] * 4096)
    store.put(fingerprint, None, [2, 3, 4], {"attn": b"x"})
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


def median_s(work: Callable[[], object], repeats: int = REPEATS) -> float:
    """The median time of `work`."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def in_new_process(script: str, root: Path) -> float:
    """What a script prints about the store at `root`."""
    return float(subprocess.check_output([sys.executable, "-c", script, str(root)]))


def lookup_ms(store: PrefixStore, prompt: list[int]) -> float:
    """The median time of one look-up."""
    return 1000 * median_s(lambda: store.match(FINGERPRINT, prompt))


@contextlib.contextmanager
def without_fsync() -> Iterator[None]:
    """Fill a large store quickly: waiting for the disk is not what is measured then."""
    with mock.patch("os.fsync"):
        yield


def put_chain(store: PrefixStore, tokens: list[int], data: bytes) -> list[BlockRef]:
    """Store `tokens` in blocks whose part is `data`."""
    parent, refs = None, []
    for start in range(0, len(tokens), BLOCK_TOKENS):
        stored = store.put(FINGERPRINT, parent, tokens[start : start + BLOCK_TOKENS], {"attn": data})
        if stored.ref is None:
            raise SystemExit(f"not stored: {stored.refused}")
        parent = stored.ref
        refs.append(stored.ref)
    return refs


def measure_lookup(root: Path, blocks: int) -> dict[str, float]:
    """Look-ups among `blocks` small blocks: chains of 128, half of them behind one shared beginning."""
    ids = random.Random(1)
    shared = [ids.randrange(50_000) for _ in range(BLOCK_TOKENS * 8)]
    chains: list[list[int]] = []
    start = time.perf_counter()
    with without_fsync(), PrefixStore.open(root, POLICY, notify=print) as store:
        stored = 0
        while stored < blocks:
            own = [ids.randrange(50_000) for _ in range(BLOCK_TOKENS * 120)]
            chains.append((shared if len(chains) % 2 else own[: BLOCK_TOKENS * 8]) + own)
            stored += len(put_chain(store, chains[-1], b"x" * 64))
    put_s = time.perf_counter() - start
    store = PrefixStore.open(root, POLICY, notify=print)
    prompts = {
        "match_128_blocks_ms": chains[-1],
        "match_9_blocks_ms": shared + chains[1][BLOCK_TOKENS * 8 :][:256] + [1] * 300,
        "match_diverging_ms": chains[-1][: BLOCK_TOKENS * 16 + 100] + [1] * 4000,
        "match_nothing_ms": [1] * 4096,
    }
    found = {name: lookup_ms(store, prompt) for name, prompt in prompts.items()}
    store.close()
    opened = [in_new_process(OPEN_SCRIPT, root) for _ in range(5)]
    peaks = [
        statistics.median([in_new_process(MEMORY_SCRIPT, place) for _ in range(5)]) for place in (root, root / "empty")
    ]
    index_bytes = sum(file.stat().st_size for file in (root / "v1").glob("index.sqlite*"))
    return found | {
        "put_small_ms": 1000 * put_s / stored,
        "open_ms": statistics.median(opened),
        "memory_growth_kib": peaks[0] - peaks[1],
        "index_bytes": index_bytes,
    }


def measure_siblings(root: Path, count: int) -> dict[str, float]:
    """Look-up where one block has `count` children that all share 200 tokens."""
    ids, head = random.Random(2), list(range(200))
    with without_fsync(), PrefixStore.open(root, POLICY, notify=print) as store:
        for number in range(count):
            store.put(FINGERPRINT, None, [*head, number, *(ids.randrange(50_000) for _ in range(40))], {"attn": b"x"})
        prompt = [*head, count // 2, *([7] * 300)]
        if store.match(FINGERPRINT, prompt).matched_tokens != 201:
            raise SystemExit("the nearest sibling was not found")
        return {f"match_{count}_siblings_ms": lookup_ms(store, prompt)}


def measure_bytes(root: Path) -> dict[str, float]:
    """Read and write 4,096 tokens of SmolLM2's size."""
    tokens, data = list(range(4096)), os.urandom(KV_BYTES_PER_TOKEN * BLOCK_TOKENS)
    total = len(data) * len(tokens) // BLOCK_TOKENS
    with PrefixStore.open(root, POLICY, notify=print) as store:
        start = time.perf_counter()
        refs = put_chain(store, tokens, data)
        store.flush()
        write_s = time.perf_counter() - start
        target = memoryview(bytearray(total))

        def read_all() -> None:
            for ref in refs:
                store.read(ref, "attn").release()

        def merge_all() -> None:
            for number, ref in enumerate(refs):
                target[number * len(data) : (number + 1) * len(data)] = store.read(ref, "attn")

        source = bytes(target)

        def copy() -> None:
            target[:] = source

        read_s, merge_s, copy_s = median_s(read_all), median_s(merge_all), median_s(copy)
        written = sum(Path(ref.path).stat().st_size for ref in refs)
    return {
        "bytes": total,
        "memcpy_gb_s": total / copy_s / 1e9,
        "read_verified_gb_s": total / read_s / 1e9,
        "read_verified_and_merged_gb_s": total / merge_s / 1e9,
        "read_by_memcpy": copy_s / read_s,
        "merged_by_memcpy": copy_s / merge_s,
        "write_gb_s": total / write_s / 1e9,
        "written_by_kv_bytes": written / total,
    }


def main() -> None:
    """Run everything in a folder that is removed afterwards."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--blocks", type=int, default=20_000)
    parser.add_argument("--siblings", type=int, default=3_000)
    parser.add_argument("--folder", type=Path, default=None)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        results = measure_bytes(Path(folder) / "bytes")
        results |= measure_siblings(Path(folder) / "siblings", options.siblings)
        results |= measure_lookup(Path(folder) / "lookup", options.blocks)
    print(json.dumps({name: round(value, 3) for name, value in results.items()}, indent=2))


if __name__ == "__main__":
    main()
