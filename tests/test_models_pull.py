"""From a reference to files in the cache, against a hub on loopback that fails in every way there is."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

import pytest

from llmcli.base import settings as settings_module
from llmcli.base.errors import LlmcliError, ModelError, UsageError
from llmcli.models import transfer
from llmcli.models.identity import known_content_id
from llmcli.models.progress import silent
from llmcli.models.pull import Pulled, PullOptions, carry_out, make_plan
from llmcli.models.pull_plan import Candidates, PullPlan
from llmcli.models.remote_models import RemoteModel
from llmcli.models.resolve import resolve
from tests.fixtures.hub_stub import COMMIT, HubStub
from tests.fixtures.random_models import WRITERS
from tests.pull_case import REPO, cache, gguf, halves, hub, named, online

__all__ = ["hub", "online"]

CONTENT = gguf()
DIGEST = hashlib.sha256(CONTENT).hexdigest()


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfer, "PAUSES_S", (0.0, 0.0, 0.0))


def largest(candidates: Candidates) -> tuple[RemoteModel, str]:
    return candidates.models[-1], "it is the largest"


def plan(reference: str, notes: list[str] | None = None, **options: str) -> PullPlan:
    told = [] if notes is None else notes
    settings = settings_module.load()
    return make_plan(reference, PullOptions(**options), settings, choose=largest, notify=told.append)


def pull(reference: str, notes: list[str] | None = None, **options: str) -> Pulled:
    told = [] if notes is None else notes
    found = plan(reference, told, **options)
    return carry_out(found, settings_module.load(), progress=silent, notify=told.append)


def failure(action: Callable[[], object]) -> LlmcliError:
    """The error; nothing has a model's name."""
    with pytest.raises(LlmcliError) as caught:
        action()
    assert named() == []
    return caught.value


def test_the_layout_is_the_hubs_own(hub: HubStub) -> None:
    from huggingface_hub import scan_cache_dir, try_to_load_from_cache

    path = pull(f"{REPO}:q4_k_m").path
    assert path == cache() / "models--Own--Tiny-GGUF" / "snapshots" / COMMIT / "Tiny-Q4_K_M.gguf"
    assert path.read_bytes() == CONTENT
    assert path.is_symlink()
    assert try_to_load_from_cache(REPO, "Tiny-Q4_K_M.gguf", cache_dir=cache()) == str(path)
    scan = scan_cache_dir(cache())
    assert (len(scan.repos), scan.size_on_disk, scan.warnings) == (1, len(CONTENT), [])
    assert halves() == []


def test_what_the_hubs_tool_fetched_is_not_fetched_again(hub: HubStub) -> None:
    from huggingface_hub import hf_hub_download

    path = hf_hub_download(REPO, "Tiny-Q4_K_M.gguf", cache_dir=cache(), endpoint=hub.endpoint)
    gets = [r for r in hub.requests if "/resolve/" in r.path and r.method == "GET"]
    assert pull(REPO) == Pulled(Path(path), ())
    pulls = [r for r in hub.requests if "/resolve/" in r.path and r.method == "GET" and r.byte_range is None]
    assert len(pulls) == len([r for r in gets if r.byte_range is None])


@pytest.mark.parametrize(
    "reference",
    [
        *(REPO, f"hf://{REPO}", f"{REPO}:Q4_K_M", f"{REPO}:tiny-q4_k_m.gguf", f"hf.co/{REPO}"),
        *("{endpoint}/" + REPO, "{endpoint}/" + REPO + "/resolve/main/Tiny-Q4_K_M.gguf?download=true"),
        *("{endpoint}/" + REPO + "/blob/main/Tiny-Q4_K_M.gguf", "{endpoint}/" + REPO + "/tree/main"),
    ],
)  # fmt: skip
def test_every_way_to_name_it(hub: HubStub, reference: str) -> None:
    assert pull(reference.format(endpoint=hub.endpoint)).path.name == "Tiny-Q4_K_M.gguf"


def test_an_alias_and_a_short_name(hub: HubStub, llmcli_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (llmcli_home / "config").mkdir()
    (llmcli_home / "config" / "config.toml").write_text(f'[alias]\ntiny = "{REPO}:Q4_K_M"\n')
    hub.add("unsloth/Qwen3-0.6B-GGUF", "Qwen3-0.6B-Q8_0.gguf", CONTENT)
    assert pull("tiny").path.name == "Tiny-Q4_K_M.gguf"
    assert pull("Qwen3-0.6B").path.name == "Qwen3-0.6B-Q8_0.gguf"
    assert resolve("qwen3-0.6b", settings_module.load(), notify=print).path.read_bytes() == CONTENT


def test_a_revision(hub: HubStub) -> None:
    pull(REPO, revision="v1.0")
    assert "/revision/v1.0" in hub.requests[0].path
    assert (cache() / "models--Own--Tiny-GGUF" / "refs" / "v1.0").read_text() == COMMIT
    assert {r.path.split("/")[4] for r in hub.requests if "/resolve/" in r.path} == {COMMIT}


def test_the_hubs_spelling_is_the_key(hub: HubStub, tmp_path: Path) -> None:
    (hub.root / "own").symlink_to(hub.root / "Own")
    (hub.root / "Own" / "tiny-gguf").symlink_to(hub.root / "Own" / "Tiny-GGUF")
    assert pull("own/tiny-gguf:Q4_K_M").path.name == "Tiny-Q4_K_M.gguf"  # this hub answers to any case, and repeats it


def test_no_such_quantization_shows_what_there_is(hub: HubStub) -> None:
    WRITERS["plain"](hub.root / REPO / "Tiny-F32.gguf")
    (hub.root / REPO / "mmproj-F16.gguf").write_bytes(CONTENT)
    error = failure(lambda: pull(f"{REPO}:Q5_K_M"))
    assert error.exit_code == 3
    assert error.message == f"{REPO} has no Q5_K_M"
    assert "Tiny-Q4_K_M.gguf" in str(error.hint)
    assert "bpw" in str(error.hint)
    assert "mmproj" not in str(error.hint)


def test_several_models_need_a_name(hub: HubStub) -> None:
    hub.add(REPO, "Other-Q4_K_M.gguf", gguf(seed=1))
    assert failure(lambda: pull(REPO)).message == f"{REPO} holds 2 models"
    assert failure(lambda: pull(f"{REPO}:Q4_K_M")).message == f"Q4_K_M fits 2 models of {REPO}"
    assert pull(f"{REPO}:Tiny-Q4_K_M").path.name == "Tiny-Q4_K_M.gguf"


def test_the_choice_is_the_callers_and_its_reason_is_kept(hub: HubStub) -> None:
    hub.add(REPO, "Tiny-Q8_0.gguf", gguf(8000))
    found = plan(REPO)
    assert (found.quant, found.reason, found.files[0].state) == ("Q8_0", "it is the largest", "new")
    assert plan(REPO, quant="q4_k_m").quant == "Q4_K_M"
    with pytest.raises(UsageError):
        plan(f"{REPO}:Q8_0", quant="Q4_K_M")


def test_a_projector_under_a_models_name_is_given_away_by_its_header(hub: HubStub, tmp_path: Path) -> None:
    from gguf import GGUFWriter

    writer = GGUFWriter(tmp_path / "clip.gguf", "clip")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    hub.add("o/r", "vision-Q8_0.gguf", (tmp_path / "clip.gguf").read_bytes())
    assert "projector" in failure(lambda: pull("o/r")).message
    assert pull("o/r:vision-Q8_0.gguf").received == ("vision-Q8_0.gguf",)


def test_a_split_model_comes_whole(hub: HubStub) -> None:
    parts = [gguf(5000 + n, seed=n) for n in range(6)]
    for n, data in enumerate(parts):
        hub.add("o/big", f"Q8_0/big-Q8_0-{n + 1:05d}-of-00006.gguf", data)
    found = pull("o/big:q8_0")
    assert found.path.name == "big-Q8_0-00001-of-00006.gguf"
    assert [p.read_bytes() for p in sorted(found.path.parent.iterdir())] == parts
    assert len(found.received) == 6


def test_a_missing_part_is_found_before_the_first_byte(hub: HubStub) -> None:
    for n in range(3):
        hub.add("o/big", f"big-{n + 1:05d}-of-00003.gguf", gguf(seed=n))
    hub.set_fault("o/big", drop=["big-00002-of-00003.gguf"])
    assert "o/big lacks big-00002-of-00003.gguf" in failure(lambda: pull("o/big")).message
    assert [r for r in hub.requests if "/resolve/" in r.path] == []


def test_one_bad_part_and_the_second_try(hub: HubStub) -> None:
    for n in range(3):
        hub.add("o/big", f"big-{n + 1:05d}-of-00003.gguf", gguf(5000, seed=n))
    found = plan("o/big")
    hub.set_fault("o/big", flip=-1)
    with pytest.raises(ModelError, match="wrong bytes"):
        carry_out(found, settings_module.load(), progress=silent, notify=lambda _: None)
    assert named() == []
    hub.set_fault("o/big")
    assert len(pull("o/big").received) == 3


@pytest.mark.parametrize("cut", [1, 3, 4, 23, 24, 25, 100, 2048, len(CONTENT) - 1])
def test_a_connection_that_is_always_cut(hub: HubStub, cut: int) -> None:
    hub.set_fault(REPO, cut_each=max(cut, 800))
    assert pull(REPO).path.read_bytes() == CONTENT
    path = cache() / "models--Own--Tiny-GGUF" / "snapshots" / COMMIT / "Tiny-Q4_K_M.gguf"
    path.resolve().unlink()
    hub.set_fault(REPO, cut=cut)
    assert pull(REPO).path.read_bytes() == CONTENT
    assert halves() == []


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ({"flip": 2000}, "wrong bytes"),
        ({"flip": 0}, "is not a GGUF file"),
        ({"grow": 5}, "is sent with 4,125 bytes, expected 4,120"),
        ({"grow": -5}, "is sent with 4,115 bytes, expected 4,120"),
        ({"html": True}, "is an HTML page"),
        ({"sha256": "0" * 64}, "wrong bytes"),
    ],
)
def test_wrong_bytes_never_get_a_name_and_the_next_try_succeeds(
    hub: HubStub, fault: dict[str, object], message: str
) -> None:
    hub.set_fault(REPO, **fault)
    error = failure(lambda: pull(REPO))
    assert message in error.message
    assert error.exit_code == 3
    assert halves() == []
    hub.set_fault(REPO)
    assert hashlib.sha256(pull(REPO).path.read_bytes()).hexdigest() == DIGEST


@pytest.mark.parametrize(
    ("fault", "message", "hint"),
    [
        ({"status": 401}, "no repository Own/Tiny-GGUF, or it is private", "HF_TOKEN"),
        ({"status": 403}, "refuses Own/Tiny-GGUF: 403", "token"),
        ({"gated": True}, "is gated and there is no token", "accept its terms"),
        ({"gated_files": True}, "is gated and there is no token", "accept its terms"),
        ({"status": 404}, "404 for Own/Tiny-GGUF", "check the name"),
        ({"status": 429, "retry_after": 120}, "no more requests for now: 429", "wait 2 min"),
        ({"status": 500}, "answers 500", "later"),
        ({"status": 503, "retry_after": 90}, "answers 503", "wait 1 min 30 s"),
    ],
)
def test_refusals_and_the_second_try(hub: HubStub, fault: dict[str, object], message: str, hint: str) -> None:
    hub.set_fault(REPO, **fault)
    error = failure(lambda: pull(REPO))
    assert message in error.message
    assert hint in str(error.hint)
    assert error.exit_code == 3
    hub.set_fault(REPO)
    assert pull(REPO).path.read_bytes() == CONTENT


def test_a_token_that_may_not_read_it(hub: HubStub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_verysecret")
    hub.set_fault(REPO, status=401, message="Invalid credentials in Authorization header")
    error = failure(lambda: pull(REPO))
    assert error.message == "the hub does not accept your token"
    assert "verysecret" not in f"{error.message}{error.hint}"


def test_a_server_in_trouble_midway_is_waited_for(hub: HubStub) -> None:
    notes: list[str] = []
    found = plan(REPO)
    hub.set_fault(REPO, status=503, retry_after=0, times=2)
    carry_out(found, settings_module.load(), progress=silent, notify=notes.append)
    assert notes[:1] == ["the hub answers 503 for Own/Tiny-GGUF; trying again in 0 ms"]
    assert len(named()) == 2


def test_a_server_that_falls_silent(hub: HubStub) -> None:
    found = plan(REPO)
    hub.set_fault(REPO, hang_at=3000)
    notes: list[str] = []
    carry_out(found, settings_module.load(), progress=silent, notify=notes.append)
    assert notes == ["the download of Tiny-Q4_K_M.gguf broke off: no answer in time; trying again in 0 ms"]
    assert [r.byte_range for r in hub.requests[-2:]] == [None, "bytes=3000-"]
    assert named()


def test_another_version_at_the_second_try_is_fetched_whole(hub: HubStub) -> None:
    found = plan(REPO)
    hub.set_fault(REPO, cut_each=0)
    with pytest.raises(ModelError):
        carry_out(found, settings_module.load(), progress=silent, notify=lambda _: None)
    assert halves() == []  # nothing came, nothing is left
    old = cache() / "models--Own--Tiny-GGUF" / "blobs" / f"{DIGEST}.incomplete"
    old.write_bytes(CONTENT[:1000])
    newer = gguf(seed=9)
    hub.add(REPO, "Tiny-Q4_K_M.gguf", newer)
    hub.set_fault(REPO)
    assert pull(REPO).path.read_bytes() == newer
    assert halves() == []
    assert all(r.byte_range != "bytes=1000-" for r in hub.requests)


def test_a_file_that_changes_between_list_and_download(hub: HubStub) -> None:
    found = plan(REPO)
    hub.add(REPO, "Tiny-Q4_K_M.gguf", gguf(seed=9))
    settings = settings_module.load()
    error = failure(lambda: carry_out(found, settings, progress=silent, notify=lambda _: None))
    assert error.message.startswith("Tiny-Q4_K_M.gguf changed on the hub meanwhile: ")
    assert pull(REPO).path.read_bytes() == gguf(seed=9)


def test_a_redirect_takes_no_token_along(hub: HubStub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_verysecret")
    (tmp_path / "cdn").mkdir()
    with HubStub(tmp_path / "cdn") as cdn:
        cdn.add(REPO, "Tiny-Q4_K_M.gguf", CONTENT)
        hub.set_fault(REPO, redirect=cdn.endpoint)
        assert pull(REPO).path.read_bytes() == CONTENT
        assert {r.authorized for r in hub.requests} == {True}
        assert {r.authorized for r in cdn.requests} == {False}
        assert any(r.byte_range for r in cdn.requests)
    left = [p for p in (*cache().rglob("*"), *settings_module.load().cache_dir.rglob("*")) if p.is_file()]
    assert left
    assert all(b"verysecret" not in p.read_bytes() for p in left)


def test_hostile_names(hub: HubStub, tmp_path: Path) -> None:
    evil = ["../../evil.gguf", "/tmp/x.gguf", "a\x1b[31m.gguf", "b\nc.gguf", "..\\w.gguf"]
    hub.set_fault(REPO, names=evil)
    notes: list[str] = []
    assert pull(REPO, notes).path.read_bytes() == CONTENT
    assert "'" not in notes[0]
    assert "\x1b" not in notes[0]
    assert notes[0].startswith("Own/Tiny-GGUF names files that lead elsewhere")
    (hub.root / "o" / "evil").mkdir(parents=True)
    hub.set_fault("o/evil", names=evil)
    with pytest.raises(ModelError, match=r"refused: o/evil names a file"):
        pull("o/evil")
    for name in evil:
        with pytest.raises(ModelError):
            pull(f"o/evil:{name}")
    assert not list(tmp_path.rglob("evil.gguf"))


def test_a_gated_file_is_told_in_the_plan(hub: HubStub) -> None:
    hub.set_fault(REPO, gated_files=True)
    assert failure(lambda: plan(REPO)).message == f"{REPO} is gated and there is no token"


def test_a_server_in_trouble_does_not_stop_the_plan(hub: HubStub, monkeypatch: pytest.MonkeyPatch) -> None:
    from llmcli.models import hub as client
    from llmcli.models.hub_errors import TransientError

    def broken(*_: object) -> bytes:
        raise TransientError("the hub answers 503")

    monkeypatch.setattr(client, "read_range", broken)
    assert plan(REPO).problem == "its header could not be read: the hub answers 503"


def test_an_empty_file(hub: HubStub) -> None:
    hub.add("o/empty", "m-Q8_0.gguf", b"")
    assert failure(lambda: pull("o/empty")).message == "m-Q8_0.gguf of o/empty is an empty file"


def test_a_repository_without_models(hub: HubStub) -> None:
    hub.add("o/none", "model.safetensors", b"x")
    error = failure(lambda: pull("o/none"))
    assert error.message == "o/none holds no GGUF model"
    assert "GGUF files" in str(error.hint)


@pytest.mark.parametrize("reference", ["nonsense", "a/b/c/d", "owner/", "http//x", "", "a b/c", "o/" + "r" * 95])
def test_what_is_no_reference(hub: HubStub, reference: str) -> None:
    error = failure(lambda: pull(reference))
    assert error.exit_code == 3
    assert hub.requests == []


@pytest.mark.parametrize(
    "address",
    ["https://[::1/m.gguf", "https://h:port/m.gguf", "https://u:pass@h:0/\x1b.gguf"],
)
def test_what_is_no_address(hub: HubStub, address: str) -> None:
    with pytest.raises(UsageError) as caught:
        plan(address)
    assert caught.value.message.isprintable()
    assert "pass" not in caught.value.message
    assert hub.requests == []
    assert "has no [m.gguf: 404" in failure(lambda: pull(f"{hub.endpoint}///[m.gguf")).message


@pytest.mark.parametrize("endpoint", ["http://[::1", "http://u:pass@h:port", "ftp://u:pass@h"])
def test_an_endpoint_that_is_none(online: None, monkeypatch: pytest.MonkeyPatch, endpoint: str) -> None:
    monkeypatch.setenv("HF_ENDPOINT", endpoint)
    message = failure(lambda: pull(REPO)).message
    assert message.endswith("is not the address of a hub")
    assert "pass" not in message


def test_wrong_bytes_of_another_tool_are_replaced(hub: HubStub) -> None:
    path = pull(REPO).path
    path.resolve().write_bytes(CONTENT[:-1] + b"!")
    notes: list[str] = []
    assert pull(REPO, notes).received == ("Tiny-Q4_K_M.gguf",)
    assert notes == ["Tiny-Q4_K_M.gguf in the cache has wrong bytes: fetching it again"]
    assert path.read_bytes() == CONTENT


def test_without_links_the_file_itself_is_there(hub: HubStub, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError("A required privilege is not held by the client")

    monkeypatch.setattr("os.symlink", refuse)
    path = pull(REPO).path
    assert path.is_file()
    assert not path.is_symlink()
    assert pull(REPO) == Pulled(path, ())
    assert pull(REPO).path.read_bytes() == CONTENT


def test_the_first_run_need_not_hash_it(hub: HubStub, tmp_path: Path) -> None:
    WRITERS["plain"](tmp_path / "m-F32.gguf")
    digest = hub.add("o/real", "m-F32.gguf", (tmp_path / "m-F32.gguf").read_bytes())
    path = pull("o/real").path
    assert known_content_id(path, settings_module.load()) == digest
    found = plan("o/real")
    assert found.facts is not None
    assert found.problem is None


def test_offline_is_at_once(hub: HubStub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert failure(lambda: pull(REPO)).message == "the network is switched off"
    assert failure(lambda: pull("https://127.0.0.1/m.gguf")).message == "the network is switched off"
    assert hub.requests == []
