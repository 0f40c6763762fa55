"""macOS's kernel values, read with its own `sysctl` program (one call for all names, some milliseconds).

Rejected: ctypes on sysctlbyname, which gives raw bytes whose type must be known per name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from llmcli.hardware.kernel_files import colon_fields

# Takes names, gives the values of those that exist. Tests pass their own.
Sysctl = Callable[[Sequence[str]], Mapping[str, str]]
_PROGRAM = "/usr/sbin/sysctl"
_TIMEOUT_S = 5.0


def read_sysctl(names: Sequence[str]) -> Mapping[str, str]:
    """The values by name; names that this machine does not have are left out, and so is everything off macOS."""
    import subprocess  # 5 ms that only macOS has to spend

    try:
        done = subprocess.run(
            [_PROGRAM, "-i", *names], capture_output=True, timeout=_TIMEOUT_S, check=False, stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.SubprocessError):
        return {}
    return colon_fields(done.stdout.decode("utf-8", "replace"))
