"""Folders, config.toml and the environment: whatever they hold, the outcome is settings or one usage error."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest
from hypothesis import HealthCheck, example, given
from hypothesis import settings as configure
from hypothesis import strategies as st

from llmcli.base.errors import UsageError
from llmcli.base.settings import flag_variable, load

T = TypeVar("T")


def write_config(text: str | bytes) -> Path:
    path = Path(os.environ["LLMCLI_HOME"], "config", "config.toml")
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def test_llmcli_home_moves_everything_of_ours(tmp_path: Path) -> None:
    found = load({"LLMCLI_HOME": str(tmp_path), "XDG_CACHE_HOME": "/elsewhere", "HOME": "/home/x"})
    assert [found.config_dir, found.cache_dir, found.state_dir, found.data_dir] == [
        tmp_path / name for name in ("config", "cache", "state", "data")
    ]
    assert found.config_file == tmp_path / "config" / "config.toml"
    assert found.hub_cache_dir == Path("/elsewhere/huggingface/hub")


def test_xdg_folders() -> None:
    found = load({"HOME": "/home/x", "XDG_STATE_HOME": "/s", "XDG_CACHE_HOME": "relative", "XDG_DATA_HOME": ""})
    assert [str(p) for p in (found.config_dir, found.cache_dir, found.state_dir, found.data_dir)] == [
        "/home/x/.config/llmcli",
        "/home/x/.cache/llmcli",
        "/s/llmcli",
        "/home/x/.local/share/llmcli",
    ]


def test_a_relative_home_is_made_absolute() -> None:
    assert load({"HOME": "here"}).config_dir == Path.cwd() / "here/.config/llmcli"
    assert load({"LLMCLI_HOME": "here"}).cache_dir == Path.cwd() / "here/cache"


def test_windows_has_userprofile() -> None:
    assert load({"USERPROFILE": "/users/x"}).config_dir == Path("/users/x/.config/llmcli")


def test_no_home_and_no_such_user(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", no_home)
    assert load({"TMPDIR": str(tmp_path)}).cache_dir == tmp_path / f"llmcli-{os.getuid()}" / ".cache" / "llmcli"
    assert load({}).cache_dir.is_absolute()


@pytest.mark.parametrize(
    ("environment", "folder"),
    [
        ({"HF_HUB_CACHE": "/a", "HF_HOME": "/b"}, "/a"),
        ({"HF_HOME": "/b", "XDG_CACHE_HOME": "/c"}, "/b/hub"),
        ({"HF_HUB_CACHE": "", "XDG_CACHE_HOME": "/c"}, "/c/huggingface/hub"),
        ({}, "/home/x/.cache/huggingface/hub"),
    ],
)
def test_the_hub_cache_is_the_one_of_other_tools(environment: dict[str, str], folder: str) -> None:
    assert load({"HOME": "/home/x", **environment}).hub_cache_dir == Path(folder)


def test_a_tilde_is_the_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/x")
    assert load({"HOME": "/home/x", "HF_HOME": "~/hf"}).hub_cache_dir == Path("/home/x/hf/hub")
    assert load({"LLMCLI_HOME": "~/l"}).cache_dir == Path("/home/x/l/cache")


@pytest.mark.parametrize("name", ["LLMCLI_HOME", "HF_HOME", "HF_HUB_CACHE"])
def test_a_tilde_of_nobody_names_the_variable(name: str) -> None:
    with pytest.raises(UsageError, match=f"{name}: there is no home for ~nosuchuser/x"):
        assert load({"HOME": "/home/x", name: "~nosuchuser/x"}).hub_cache_dir


@pytest.mark.parametrize(
    ("environment", "offline"),
    [
        ({"HF_HUB_OFFLINE": "1"}, True),
        ({"LLMCLI_OFFLINE": "Yes"}, True),
        ({"HF_HUB_OFFLINE": "0", "LLMCLI_OFFLINE": ""}, False),
        ({}, False),
    ],
)
def test_offline(environment: dict[str, str], offline: bool) -> None:
    assert load({"HOME": "/h", **environment}).offline is offline


@pytest.mark.parametrize(
    ("environment", "no_color"),
    [({"NO_COLOR": "0"}, True), ({"NO_COLOR": ""}, False), ({"TERM": "dumb"}, True), ({"TERM": "xterm"}, False)],
)
def test_no_color(environment: dict[str, str], no_color: bool) -> None:
    assert load({"HOME": "/h", **environment}).no_color is no_color


def test_endpoint_and_shell() -> None:
    found = load({"HOME": "/h", "HF_ENDPOINT": "http://127.0.0.1:1/", "SHELL": "/usr/bin/zsh"})
    assert (found.hub_endpoint, found.login_shell) == ("http://127.0.0.1:1", "zsh")
    found = load({"HOME": "/h"})
    assert (found.hub_endpoint, found.login_shell) == ("https://huggingface.co", "")


def test_no_config_is_an_empty_one() -> None:
    found = load()
    assert (dict(found.values), dict(found.aliases), found.folders, found.flag_defaults()) == ({}, {}, (), {})


def test_config_values_by_the_names_of_the_flags(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/x")
    write_config('ctx-size = 512\nTop_K = 5\nfolders = ["~/m", "/n"]\n[alias]\ntiny = "smollm2"\n')
    found = load()
    assert found.flag_defaults() == {"ctx_size": 512, "top_k": 5}
    assert found.aliases == {"tiny": "smollm2"}
    assert found.folders == (Path("/home/x/m"), Path("/n"))


def test_the_environment_is_stronger_than_the_config(monkeypatch: pytest.MonkeyPatch) -> None:
    write_config('model = "config"')
    assert load().flag_default("--model") == "config"
    monkeypatch.setenv("LLMCLI_MODEL", "")
    assert load().flag_default("model") == "config"
    monkeypatch.setenv("LLMCLI_MODEL", "environment")
    assert load().flag_default("--model") == "environment"
    assert load().flag_default("--seed") is None


@pytest.mark.parametrize(
    ("flag", "name"), [("--ctx-size", "LLMCLI_CTX_SIZE"), ("model", "LLMCLI_MODEL"), ("top_k", "LLMCLI_TOP_K")]
)
def test_flag_variable(flag: str, name: str) -> None:
    assert flag_variable(flag) == name


def test_a_byte_order_mark_in_the_config_is_no_error() -> None:
    write_config(b"\xef\xbb\xbfseed = 1\n")
    assert load().values == {"seed": 1}


@pytest.mark.parametrize(
    "text",
    [b"= no", b"a = 1\na = 2", b"\xff", b"\0", b"a = " + b"[" * 100_000, b"a = " + b"9" * 10_000, b"[alias", b"a"],
    ids=["no-key", "twice", "not-utf8", "nul", "nested", "digits", "open", "no-value"],
)
def test_a_broken_config_is_one_usage_error_that_names_the_file(text: bytes) -> None:
    path = write_config(text)
    with pytest.raises(UsageError) as failure:
        load()
    assert failure.value.message.startswith(f"{path} is not valid TOML: ")
    assert failure.value.hint == f"mend or remove {path}"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("alias = 3", r"\[alias\] in .*config.toml must map names to model references"),
        ("[alias]\nx = 3", r"\[alias\] in .*config.toml must map names to model references"),
        ('folders = "x"', r"folders in .*config.toml must be a list of paths"),
        ("[folders]\nx = 1", r"folders in .*config.toml must be a list of paths"),
        ('folders = ["~nosuchuser/x"]', r"folders in .*config.toml: there is no home for ~nosuchuser/x"),
    ],
)
def test_sections_of_the_wrong_kind(text: str, message: str) -> None:
    write_config(text)
    with pytest.raises(UsageError, match=message):
        load()


def test_a_config_that_cannot_be_read_is_a_usage_error() -> None:
    path = load().config_file
    path.mkdir(parents=True)
    with pytest.raises(UsageError, match=r"cannot read .*config.toml: Is a directory"):
        load()


@pytest.mark.parametrize("kind", ["pipe", "device"])
def test_a_config_that_would_never_end_is_a_usage_error(kind: str) -> None:
    path = load().config_file
    path.parent.mkdir(parents=True)
    if kind == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to("/dev/zero")
    with pytest.raises(UsageError, match=r"cannot read .*config.toml: not a regular file"):
        load()
    path.unlink()
    path.symlink_to(os.devnull)
    assert load().values == {}


def test_a_config_has_a_bound() -> None:
    path = write_config(b"#" * (4 << 20))
    assert load().values == {}
    path.write_bytes(b"#" * ((4 << 20) + 1))
    with pytest.raises(UsageError, match=r"cannot read .*config.toml: larger than 4,194,304 bytes"):
        load()


def test_a_config_below_a_file_is_no_config(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    for name in ("file", "n" * 300):
        assert load({"LLMCLI_HOME": str(tmp_path / name)}).values == {}


def attempt(make: Callable[[], T]) -> tuple[T | None, UsageError | None]:
    try:
        return make(), None
    except UsageError as error:
        return None, error


_FOLDERS = ["HOME", "USERPROFILE", "TMPDIR", "LLMCLI_HOME", "XDG_CONFIG_HOME", "XDG_CACHE_HOME", "HF_HOME"]
_OTHERS = [
    "HF_HUB_CACHE",
    "HF_ENDPOINT",
    "HF_HUB_OFFLINE",
    "LLMCLI_OFFLINE",
    "NO_COLOR",
    "TERM",
    "SHELL",
    "LLMCLI_MODEL",
]
names = st.sampled_from(_FOLDERS + _OTHERS)
# What the kernel lets into an environment: no NUL; wrong bytes come as lone surrogates.
values = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=12) | st.sampled_from(
    ["~", "~/x", "~nosuchuser", "/", "//", ".", "..", "\udcff", "/tmp/\udcff", "a/" * 3000, "/dev/null", " "]
)


@configure(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.dictionaries(names, values))
@example({"LLMCLI_HOME": "~nosuchuser"})
@example({"HOME": "~nosuchuser"})
def test_any_environment_gives_settings_or_a_usage_error(environment: dict[str, str]) -> None:
    found, failure = attempt(lambda: load(environment))
    if found is not None:
        every = [found.config_dir, found.cache_dir, found.state_dir, found.data_dir]
        assert all(folder.is_absolute() for folder in every)
        _, failure = attempt(lambda: found.hub_cache_dir)
        for name in ("offline", "no_color", "hub_endpoint", "login_shell"):
            getattr(found, name)
    if failure is not None:
        assert failure.message.startswith(("LLMCLI_HOME: ", "HF_HOME: ", "HF_HUB_CACHE: ", "cannot read "))


@configure(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.binary(max_size=40) | st.text(max_size=40).map(lambda t: f"a = '''{t}'''".encode("utf-8", "surrogatepass")))
def test_any_config_is_read_or_refused(data: bytes) -> None:
    path = write_config(data)
    found, failure = attempt(load)
    if failure is None:
        assert found is not None
        assert isinstance(found.values, dict)
    else:
        assert str(path) in failure.message
        assert "\n" not in failure.message
