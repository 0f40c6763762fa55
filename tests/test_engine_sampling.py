from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from llmcli.base.errors import LlmcliError, UsageError
from llmcli.engine.sampling import Sampler, Sampling, concrete_seed
from llmcli.engine.session import Session
from tests.fixtures.engines import open_session

PROMPT = [5, 9, 13, 21, 34]


@pytest.fixture(scope="module")
def session(random_model: Callable[[str], Path]) -> Iterator[Session]:
    with open_session(random_model("plain")) as made:
        yield made


def draw(session: Session, count: int = 12, **settings: Any) -> list[int]:
    """`count` tokens after PROMPT with these sampling settings."""
    session.cut(0)
    session.prefill(PROMPT)
    with Sampler(Sampling(**settings), session.context.model.tokenizer, 512) as sampler:
        sampler.see_prompt(session.tokens)
        out = []
        for _ in range(count):
            token = sampler.sample(session.context)
            assert token is not None
            out.append(token)
            session.decode(token)
    return out


def greedy(session: Session) -> int:
    session.cut(0)
    session.prefill(PROMPT)
    logits = list(session.context.logits())
    return logits.index(max(logits))


def test_temperature_zero_is_the_greatest_logit(session: Session) -> None:
    best = greedy(session)
    assert draw(session, 1, temp=0) == [best]


def test_the_seed_decides(session: Session) -> None:
    hot: dict[str, Any] = {"temp": 2.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}
    assert draw(session, seed=7, **hot) == draw(session, seed=7, **hot)
    assert draw(session, seed=7, **hot) != draw(session, seed=8, **hot)


def test_no_seed_is_a_new_one_each_time() -> None:
    seeds = {concrete_seed(None) for _ in range(20)}
    assert len(seeds) > 1
    assert 0xFFFFFFFF not in seeds
    assert concrete_seed(0xFFFFFFFF) != 0xFFFFFFFF
    assert concrete_seed(42) == 42


@pytest.mark.parametrize(
    "settings",
    [
        {"top_k": 1},
        {"top_p": 0.0},
        {"min_p": 1.0},
        {"temp": 1e-6, "top_k": 0},
        {"top_n_sigma": 1e-6, "top_k": 0, "min_p": 0.0},
    ],
)
def test_each_filter_alone_can_leave_the_best_token_only(session: Session, settings: dict[str, Any]) -> None:
    best = greedy(session)
    assert {draw(session, 1, **{"temp": 3.0, **settings, "seed": seed})[0] for seed in range(8)} == {best}


def test_logit_bias_forbids_and_forces(session: Session) -> None:
    best = greedy(session)
    assert draw(session, 1, temp=0, logit_bias={best: float("-inf")}) != [best]
    assert draw(session, 4, temp=0, logit_bias={17: 1000.0}) == [17] * 4


def test_the_repeat_penalty_counts_the_prompt(session: Session) -> None:
    forced = {PROMPT[0]: 40.0}
    assert draw(session, 1, temp=0, logit_bias=forced) == [PROMPT[0]]
    assert draw(session, 1, temp=0, logit_bias=forced, repeat_penalty=1e6) != [PROMPT[0]]
    assert draw(session, 1, temp=0, logit_bias=forced, presence_penalty=1e6) != [PROMPT[0]]
    assert draw(session, 1, temp=0, logit_bias=forced, frequency_penalty=1e6) != [PROMPT[0]]


@pytest.mark.parametrize(
    "settings",
    [
        {"mirostat": 1},
        {"mirostat": 2},
        {"typical_p": 0.5},
        {"xtc_probability": 1.0, "xtc_threshold": 0.01},
        {"repeat_penalty": 1.3, "repeat_last_n": -1},
    ],
)
def test_every_sampler_runs_and_is_reproducible(session: Session, settings: dict[str, Any]) -> None:
    assert draw(session, seed=3, **settings) == draw(session, seed=3, **settings)


def test_xtc_takes_the_best_away(session: Session) -> None:
    best = greedy(session)
    hot: dict[str, Any] = {
        "temp": 1.0,
        "top_k": 0,
        "top_p": 1.0,
        "min_p": 0.0,
        "xtc_probability": 1.0,
        "xtc_threshold": 0.001,
    }
    assert best not in {draw(session, 1, seed=seed, **hot)[0] for seed in range(10)}


def answer_of(path: Path, **settings: Any) -> tuple[bytes, bool]:
    """The greedy answer of a scripted model after "x", at most 20 tokens, and whether it ended by itself."""
    with open_session(path) as session:
        tokenizer, out = session.context.model.tokenizer, b""
        session.prefill(tokenizer.tokenize("x", parse_special=False))
        with Sampler(Sampling(temp=0, **settings), tokenizer, 512) as sampler:
            for _ in range(20):
                token = sampler.sample(session.context)
                if token is None or tokenizer.is_end(token):
                    return out, True
                out += tokenizer.piece(token)
                session.decode(token)
    return out, False


def test_a_grammar_allows_nothing_else(scripted_model: Callable[..., Path]) -> None:
    path = scripted_model(["Hello", " world"])
    assert answer_of(path) == (b"Hello world", True)
    assert answer_of(path, grammar='root ::= "Hello"') == (b"Hello", True)
    assert answer_of(path, grammar='root ::= "by" "e"?')[0] in (b"by", b"bye")
    assert answer_of(path, grammar="root ::= [0-9]{3}")[0].isdigit()


def test_dry_breaks_a_loop(scripted_model: Callable[..., Path]) -> None:
    path = scripted_model(["tick", " tock"], loop=True)
    plain, _ = answer_of(path)
    assert plain == b"tick tock" * 10
    broken, _ = answer_of(path, dry_multiplier=50.0, dry_allowed_length=1)
    assert not broken.startswith(b"tick tock" * 3)


def test_ignore_eos_goes_on(scripted_model: Callable[..., Path]) -> None:
    _, ended = answer_of(scripted_model(["Hello", " world"]), ignore_eos=True)
    assert not ended


def test_a_complete_grammar_ends_the_answer_even_where_eos_is_forbidden(scripted_model: Callable[..., Path]) -> None:
    path = scripted_model(["Hello", " world"])
    assert answer_of(path, grammar='root ::= "Hello"', ignore_eos=True) == (b"Hello", True)


def test_a_grammar_that_no_token_can_follow_is_an_error_and_no_abort(scripted_model: Callable[..., Path]) -> None:
    with pytest.raises(LlmcliError, match="allows no further token"):
        answer_of(scripted_model(["Hello", " world"]), grammar=r'root ::= "\x00"')


def test_a_grammar_that_llama_cpp_refuses_is_a_usage_error(session: Session) -> None:
    with pytest.raises(UsageError, match="root"):
        Sampler(Sampling(grammar='other ::= "x"'), session.context.model.tokenizer, 512)


def test_closing_twice_is_harmless(session: Session) -> None:
    sampler = Sampler(Sampling(), session.context.model.tokenizer, 512)
    sampler.close()
    sampler.close()
