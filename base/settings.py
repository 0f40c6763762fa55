"""Where things live and what the user configured. The only reader of the environment and of config.toml.

One exception, by design: click looks up the environment default of a flag itself, under the name that
`flag_variable` gives it, so that precedence and messages are click's own. Below those defaults lie the values of
config.toml, which `flag_defaults` hands to click as its default map.

Order of precedence: flag, LLMCLI_<FLAG>, config.toml, built-in default.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Mapping
from dataclasses import field
from pathlib import Path
from typing import Any

from llmcli.base.bounded_file import read_bounded
from llmcli.base.errors import UsageError
from llmcli.base.records import dataclass
from llmcli.base.text import printable

CONFIG_NAME = "config.toml"
CONFIG_BYTES = 4 << 20
_SECTIONS = {"alias", "folders", "tuned"}
# Variables of ours that stand for no option; the last three are read by the set-up and the tests.
OWN_VARIABLES = frozenset(
    {"LLMCLI_HOME", "LLMCLI_OFFLINE", "LLMCLI_CACHE_SALT", "LLMCLI_BUILD_CACHE", "LLMCLI_TEST_CACHE"}
)
TRUE_WORDS = {"1", "true", "yes", "on"}


@dataclass(frozen=True, slots=True)
class Settings:
    """Folders (absolute, not created here), config values, and the few environment facts others need.

    values       top-level keys of config.toml, flag names with dashes or underscores as written
    aliases      the [alias] table: short name -> reference
    folders      extra folders with models
    environment  a copy of the environment this was read from; only this module looks names up in it
    """

    config_dir: Path
    cache_dir: Path
    state_dir: Path
    data_dir: Path
    config_file: Path
    values: Mapping[str, Any] = field(default_factory=dict)
    aliases: Mapping[str, str] = field(default_factory=dict)
    folders: tuple[Path, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def tuned(self) -> Mapping[str, Any]:
        """The tables [tuned.MODEL], which `llmcli bench sweep --save` writes; empty where there are none."""
        found = self.values.get("tuned")
        return found if isinstance(found, dict) else {}

    @property
    def hub_cache_dir(self) -> Path:
        """The Hugging Face cache, shared with other tools: HF_HUB_CACHE, else HF_HOME/hub, else the XDG default."""
        if found := self.environment.get("HF_HUB_CACHE"):
            return _expanded(found, "HF_HUB_CACHE")
        if found := self.environment.get("HF_HOME"):
            return _expanded(found, "HF_HOME") / "hub"
        return _xdg(self.environment, "XDG_CACHE_HOME", ".cache") / "huggingface" / "hub"

    @property
    def sessions_dir(self) -> Path:
        """Saved conversations."""
        return self.state_dir / "sessions"

    @property
    def chat_history_file(self) -> Path:
        """What was typed into chats."""
        return self.state_dir / "chat_history"

    @property
    def dumb_terminal(self) -> bool:
        """True where TERM says that the terminal moves no cursor, or nothing."""
        return self.environment.get("TERM", "") in ("", "dumb", "unknown")

    @property
    def completes_for_bash(self) -> bool:
        """Whether bash asks what it could complete."""
        return self.environment.get("_LLMCLI_COMPLETE", "").startswith("bash")

    @property
    def editor(self) -> str:
        """The command line of the user's text editor: VISUAL, else EDITOR, else ""."""
        return self.environment.get("VISUAL") or self.environment.get("EDITOR", "")

    @property
    def offline(self) -> bool:
        """True where HF_HUB_OFFLINE (or LLMCLI_OFFLINE) forbids the network."""
        names = ("HF_HUB_OFFLINE", "LLMCLI_OFFLINE")
        return any(self.environment.get(name, "").lower() in TRUE_WORDS for name in names)

    @property
    def hub_endpoint(self) -> str:
        """The hub's address: HF_ENDPOINT, else the public one."""
        return self.environment.get("HF_ENDPOINT", "https://huggingface.co").rstrip("/")

    @property
    def no_color(self) -> bool:
        """True where NO_COLOR is set and not empty, or the terminal is dumb (no-color.org)."""
        return bool(self.environment.get("NO_COLOR")) or self.environment.get("TERM") == "dumb"

    @property
    def native_environment(self) -> str:
        """The variables that change how llama.cpp computes or lays out its state, as one line."""
        known = (name for name in self.environment if name.startswith(("LLAMA_", "GGML_")))
        names = sorted(name for name in known if name != "GGML_NO_BACKTRACE")  # which only says how the library aborts
        return " ".join(f"{name}={self.environment[name]}" for name in names)

    @property
    def cache_salt(self) -> str:
        """LLMCLI_CACHE_SALT: what keeps tenants of one prefix store apart."""
        return self.environment.get("LLMCLI_CACHE_SALT", "")

    @property
    def login_shell(self) -> str:
        """The name of the user's shell, such as `zsh`; "" where SHELL is not set."""
        return Path(self.environment.get("SHELL", "")).name

    def flag_default(self, flag: str) -> Any:
        """The value of `--flag` outside the command line: environment, then config.toml, then None."""
        return self.environment.get(flag_variable(flag)) or self.flag_defaults().get(_identifier(flag))

    def flag_defaults(self) -> dict[str, Any]:
        """config.toml's values by click parameter name (`ctx_size`)."""
        return {_identifier(key): value for key, value in self.values.items() if key not in _SECTIONS}


def flag_variable(flag: str) -> str:
    """The environment variable of a long flag: `--ctx-size` -> LLMCLI_CTX_SIZE."""
    return "LLMCLI_" + _identifier(flag).upper()


def tell_native_code(name: str, value: str) -> None:
    """Set a variable for the C code of this process alone: os.environ, and so every child process, does not have it."""
    os.putenv(name, value)


def load(environment: Mapping[str, str] | None = None) -> Settings:
    """Read the environment (default: the process's) and config.toml.

    Raises UsageError where config.toml cannot be read or is not TOML; a missing file is an empty one.
    """
    env = dict(os.environ if environment is None else environment)
    dirs = _folders(env)
    config_file = dirs["config"] / CONFIG_NAME
    values = _read_config(config_file)
    return Settings(
        config_dir=dirs["config"],
        cache_dir=dirs["cache"],
        state_dir=dirs["state"],
        data_dir=dirs["data"],
        config_file=config_file,
        values=values,
        aliases=_aliases(values, config_file),
        folders=_model_folders(values, config_file),
        environment=env,
    )


def _folders(env: Mapping[str, str]) -> dict[str, Path]:
    if home := env.get("LLMCLI_HOME"):
        base = _expanded(home, "LLMCLI_HOME").absolute()
        return {name: base / name for name in ("config", "cache", "state", "data")}
    return {
        "config": _xdg(env, "XDG_CONFIG_HOME", ".config") / "llmcli",
        "cache": _xdg(env, "XDG_CACHE_HOME", ".cache") / "llmcli",
        "state": _xdg(env, "XDG_STATE_HOME", ".local/state") / "llmcli",
        "data": _xdg(env, "XDG_DATA_HOME", ".local/share") / "llmcli",
    }


def _xdg(env: Mapping[str, str], name: str, fallback: str) -> Path:
    # The XDG specification: a relative path in these variables is invalid and ignored.
    if (value := env.get(name)) and os.path.isabs(value):
        return Path(value)
    return _home(env) / fallback


def _expanded(text: str, source: str) -> Path:
    """`~` and `~user` resolved. Raises UsageError where there is no such user: a folder of that name is not meant."""
    expanded = os.path.expanduser(text)
    if expanded.startswith("~"):
        raise UsageError(f"{source}: there is no home for {printable(expanded)}", hint="write the whole path")
    return Path(expanded)


def _home(env: Mapping[str, str]) -> Path:
    if home := env.get("HOME") or env.get("USERPROFILE"):
        return Path(home).absolute()
    try:
        return Path.home()
    except RuntimeError:  # no HOME and no entry for this user: a container with an arbitrary uid
        import tempfile  # 5 ms, and hardly ever needed

        temp = env.get("TMPDIR") or tempfile.gettempdir()
        return Path(temp) / f"llmcli-{os.getuid() if hasattr(os, 'getuid') else 'user'}"


def _read_config(path: Path) -> dict[str, Any]:
    try:
        data = read_bounded(path, CONFIG_BYTES)
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:  # of the folder: there can be no such file
            return {}
        raise UsageError(f"cannot read {printable(str(path))}: {error.strerror}") from None
    # Imported where there is a file to read: most calls have none.
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    try:
        return tomllib.loads(data.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:  # also not UTF-8, a number of thousands of digits, endless brackets
        shown = printable(str(path))
        raise UsageError(f"{shown} is not valid TOML: {error}", hint=f"mend or remove {shown}") from None


def _aliases(values: Mapping[str, Any], path: Path) -> dict[str, str]:
    table = values.get("alias", {})
    if not isinstance(table, dict) or not all(isinstance(v, str) for v in table.values()):
        raise UsageError(
            f"[alias] in {printable(str(path))} must map names to model references",
            hint='for example: tiny = "smollm2"',
        )
    return table


def _model_folders(values: Mapping[str, Any], path: Path) -> tuple[Path, ...]:
    folders = values.get("folders", [])
    if not isinstance(folders, list) or not all(isinstance(v, str) for v in folders):
        raise UsageError(
            f"folders in {printable(str(path))} must be a list of paths", hint='for example: folders = ["~/models"]'
        )
    return tuple(_expanded(v, f"folders in {printable(str(path))}") for v in folders)


def _identifier(flag: str) -> str:
    return flag.lstrip("-").replace("-", "_").lower()
