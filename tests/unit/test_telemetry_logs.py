"""Every log line of the process has one format, including those of libraries."""

from __future__ import annotations

import io
import logging
from collections.abc import Iterator
from typing import Any

import orjson
import pytest
import structlog

from queuectl.domain.ledger import State
from queuectl.telemetry.logs import LogFormat, configure, cycle_context, get_logger


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    """Leave logging as the other tests expect it."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    structlog.reset_defaults()


def lines(stream: io.StringIO) -> list[dict[str, Any]]:
    return [orjson.loads(line) for line in stream.getvalue().splitlines()]


@pytest.fixture
def stream() -> io.StringIO:
    made = io.StringIO()
    configure(LogFormat.JSON, "info", made)
    return made


def test_ours_and_a_librarys_lines_have_one_shape(stream: io.StringIO) -> None:
    get_logger("queuectl.control").warning("workload_admitted", workload="a/b")
    logging.getLogger("some.library").warning("took %d s", 3)
    ours, theirs = lines(stream)
    assert ours.pop("workload") == "a/b"
    assert ours.keys() == theirs.keys() == {"event", "level", "source", "timestamp"}
    assert (ours["event"], ours["source"]) == ("workload_admitted", "queuectl.control")
    assert (theirs["event"], theirs["source"]) == ("took 3 s", "some.library")


def test_every_line_of_a_cycle_carries_its_number(stream: io.StringIO) -> None:
    log = get_logger("test")
    with cycle_context(7, epoch=2):
        log.info("inside")
        logging.getLogger("library").warning("inside too")
    log.info("outside")
    assert [(x.get("cycle"), x.get("epoch")) for x in lines(stream)] == [
        (7, 2),
        (7, 2),
        (None, None),
    ]


def test_values_of_the_domain_are_written_as_json(stream: io.StringIO) -> None:
    get_logger("test").info("said", state=State.RUNNING, names={"b", "a"}, by={1: object})
    (line,) = lines(stream)
    assert (line["state"], line["names"]) == ("Running", ["a", "b"])


@pytest.mark.parametrize(
    ("level", "expected"),
    [("debug", ["d", "i", "w"]), ("info", ["i", "w"]), ("WARNING", ["w"])],
)
def test_the_level_rules_both_worlds(level: str, expected: list[str]) -> None:
    stream = io.StringIO()
    configure(LogFormat.JSON, level, stream)
    for log in (get_logger("test"), logging.getLogger("library")):
        log.debug("d")
        log.info("i")
        log.warning("w")
    assert [line["event"] for line in lines(stream)] == expected * 2


def test_an_unknown_level_is_refused() -> None:
    with pytest.raises(ValueError, match="'loud'"):
        configure(LogFormat.JSON, "loud")


def test_a_traceback_is_text_without_the_variables_of_its_frames(stream: io.StringIO) -> None:
    def fails(token: str) -> None:
        raise ValueError("boom")

    secret = "s3cret"
    for log in (get_logger("test"), logging.getLogger("library")):
        try:
            fails(secret)
        except ValueError:
            log.exception("failed")
    for line in lines(stream):
        assert "ValueError: boom" in line["exception"]
        assert secret not in line["exception"]


@pytest.mark.parametrize("form", [LogFormat.CONSOLE, LogFormat.AUTO])
def test_people_get_text_and_machines_json(form: LogFormat) -> None:
    stream = io.StringIO()
    configure(form, "info", stream)
    get_logger("test").info("said", answer=42)
    text = stream.getvalue()
    if form is LogFormat.CONSOLE:
        assert "said" in text
        assert "answer=42" in text
    else:  # no terminal
        assert lines(stream)[0]["answer"] == 42


def test_requests_that_went_well_are_not_logged(stream: io.StringIO) -> None:
    logging.getLogger("uvicorn.access").info("GET /metrics 200")
    logging.getLogger("sqlalchemy.engine").info("SELECT 1")
    logging.getLogger("sqlalchemy.engine").warning("slow")
    assert [line["event"] for line in lines(stream)] == ["slow"]


HOSTILE = "x\x1b]0;PWNED\x07\x9b2J\u202eabc"
SHOWN = r"x\u001b]0;PWNED\u0007\u009b2J\u202eabc"


@pytest.mark.parametrize("form", [LogFormat.CONSOLE, LogFormat.JSON])
def test_no_value_of_a_line_controls_a_terminal(form: LogFormat) -> None:
    stream = io.StringIO()
    configure(form, "info", stream)
    for log in (get_logger("test"), logging.getLogger("library")):
        try:
            raise ValueError(HOSTILE)
        except ValueError:
            log.exception(HOSTILE)
    get_logger("test").info("said", text=HOSTILE, several=[HOSTILE], error=ValueError(HOSTILE))
    text = stream.getvalue()
    assert not {"\x1b", "\x07", "\x9b", "\u202e"} & set(text)
    assert SHOWN in text
    if form is LogFormat.JSON:
        assert lines(stream)[-1]["text"] == HOSTILE


def test_a_message_about_clients_is_logged_once_a_second(stream: io.StringIO) -> None:
    for number in range(100):
        logging.getLogger("uvicorn.error").warning("Invalid HTTP request received.")
        logging.getLogger("library").warning("message %d", number)
    logging.getLogger("uvicorn.error").warning("Unsupported upgrade request.")
    events = [line["event"] for line in lines(stream)]
    assert events.count("Invalid HTTP request received.") == 1
    assert events.count("Unsupported upgrade request.") == 1
    assert len(events) == 102
