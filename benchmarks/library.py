"""How fast a list of many models comes: `llmcli ls` as a whole process, the first time and after that.

    .venv/bin/python benchmarks/library.py [--models 300] [--header MODEL.gguf] [--check]

Makes a Hugging Face cache and a folder of llmcli's own with so many models between them and lists them. The files have
the real header of `--header` (default: a made-up one without a vocabulary) and, behind it, a hole in place of the
weights: a list never looks there. The first run reads every header, the later ones remember. With --check the exit code
is 1 where a run takes more than half a second. Python's standard library and llmcli's own header reader only.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from llmcli.models.gguf_header import read_header

LLMCLI = str(Path(sys.executable).parent / "llmcli")
BOUND_S = 0.5
LATER_RUNS = 7
QUANTS = ("Q4_K_M", "Q5_K_M", "Q8_0")


def main(arguments: Sequence[str] | None = None) -> int:
    """Make the models, list them, print the times."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--models", type=int, default=300)
    parser.add_argument("--header", type=Path)
    parser.add_argument("--check", action="store_true")
    asked = parser.parse_args(arguments)
    header, file_bytes = _header_of(asked.header) if asked.header else _made_up_header()
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        for number in range(asked.models):
            _write(_place(root, number), header, file_bytes)
        environment = {**os.environ, "LLMCLI_HOME": str(root / "home"), "HF_HOME": str(root / "hf")}
        os.sync()  # or the first list would run beside the writing of these files
        _listed(environment, "--version")  # the interpreter and its libraries into the page cache
        first_s = _listed(environment, "ls")
        later_s = statistics.median(_listed(environment, "ls") for _ in range(LATER_RUNS))
        found = subprocess.run([LLMCLI, "ls", "--json"], env=environment, capture_output=True, check=True)
        count = len(json.loads(found.stdout))
    print(f"{count} models, headers of {len(header):,} bytes: first {first_s:.3f} s, later {later_s:.3f} s (median)")
    return 1 if asked.check and (max(first_s, later_s) > BOUND_S or count != asked.models) else 0


def _listed(environment: dict[str, str], *command: str) -> float:
    begun = time.perf_counter()
    subprocess.run([LLMCLI, *command], env=environment, stdout=subprocess.DEVNULL, check=True)
    return time.perf_counter() - begun


def _place(root: Path, number: int) -> Path:
    """A third in our own folder, the rest as snapshots of a Hugging Face cache with three files each."""
    if number % 3 == 0:
        return root / "home" / "data" / "models" / f"own-{number}-{QUANTS[0]}.gguf"
    repo = root / "hf" / "hub" / f"models--owner--model-{number // 9}-GGUF"
    link = repo / "snapshots" / ("a" * 40) / f"model-{number}-{QUANTS[number % 3]}.gguf"
    blob = repo / "blobs" / f"{number:064x}"
    for folder in (link.parent, blob.parent):
        folder.mkdir(parents=True, exist_ok=True)
    link.symlink_to(blob)
    return blob


def _write(path: Path, header: bytes, file_bytes: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "wb") as out:
        out.write(header)
        out.truncate(file_bytes)


def _header_of(model: Path) -> tuple[bytes, int]:
    found = read_header(model)
    return model.read_bytes()[: found.data_offset], found.file_bytes


def _made_up_header() -> tuple[bytes, int]:
    """32 layers of 9 tensors each, F32, one block; no vocabulary."""
    keys = [
        _text("general.architecture", "llama"),
        _number("llama.context_length", 4096),
        _number("general.file_type", 0),
    ]
    names = [f"blk.{layer}.tensor_{number}.weight" for layer in range(32) for number in range(9)]
    tensors = b"".join(
        struct.pack("<Q", len(name)) + name.encode() + struct.pack("<IQQIQ", 2, 32, 1, 0, 128 * at)
        for at, name in enumerate(names)
    )
    header = b"GGUF" + struct.pack("<IQQ", 3, len(names), len(keys)) + b"".join(keys) + tensors
    return header, -(-len(header) // 32) * 32 + 128 * len(names)


def _text(key: str, value: str) -> bytes:
    return struct.pack("<Q", len(key)) + key.encode() + struct.pack("<IQ", 8, len(value)) + value.encode()


def _number(key: str, value: int) -> bytes:
    return struct.pack("<Q", len(key)) + key.encode() + struct.pack("<II", 4, value)


if __name__ == "__main__":
    raise SystemExit(main())
