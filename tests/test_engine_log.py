from __future__ import annotations

import io

from llmcli.engine.log import CONTINUE, DEBUG, ERROR, INFO, WARN, LogRing


def test_a_line_ends_at_its_newline_and_keeps_the_level_it_began_with() -> None:
    ring = LogRing()
    ring.write(ERROR, "cannot ")
    ring.write(CONTINUE, "load\n")
    ring.write(INFO, "fine\n")
    assert ring.lines() == ["cannot load", "fine"]
    assert ring.last_error() == "cannot load"


def test_the_ring_is_bounded_and_forgets_on_clear() -> None:
    ring = LogRing()
    for i in range(3000):
        ring.write(INFO, f"{i}\n")
    assert ring.lines() == [str(i) for i in range(1000, 3000)]
    ring.clear()
    assert ring.lines() == []
    assert ring.last_error() is None


def test_echo_prints_what_was_kept_and_what_comes_of_enough_weight() -> None:
    ring, shown = LogRing(), io.StringIO()
    ring.write(DEBUG, "detail\n")
    ring.write(WARN, "odd\n")
    ring.echo_to(shown, least=WARN)
    ring.write(INFO, "later\n")
    ring.write(ERROR, "bad \x1b[31m\n")
    assert shown.getvalue() == "odd\nbad \\x1b[31m\n"


def test_blank_lines_are_not_kept() -> None:
    ring = LogRing()
    ring.write(INFO, "\n  \n.\n")
    assert ring.lines() == ["."]
