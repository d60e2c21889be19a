"""Logs: one event name per fact, values as keys; JSON for machines, colors for people.

structlog writes our own lines; what libraries log through :mod:`logging` goes through the same processors to the same
stream, so that every line of the process has one shape. Logs go to stderr: stdout belongs to what a command answers.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from enum import StrEnum
from io import StringIO
from typing import Any, Final, TextIO

import orjson
import structlog
from structlog.contextvars import bound_contextvars, merge_contextvars
from structlog.typing import EventDict, ExcInfo, FilteringBoundLogger, Processor

from queuectl.domain.words import printable

_CLIENTS: Final = ("asyncio", "uvicorn")
_FLOOD_SECONDS: Final = 1.0
_MOST_MESSAGES: Final = 1000
# Chatty at INFO with nothing an operator acts on; their warnings still come through.
_QUIET: Final = ("alembic", "asyncio", "httpx2", "sqlalchemy.engine", "uvicorn")


class LogFormat(StrEnum):
    """``auto`` is console on a terminal, JSON elsewhere."""

    AUTO = "auto"
    JSON = "json"
    CONSOLE = "console"


def configure(
    form: LogFormat = LogFormat.AUTO, level: str = "info", stream: TextIO | None = None
) -> None:
    """Set up logging for the whole process; call it once, before the first line.

    Args:
        form: how a line looks.
        level: the least severe level written: debug, info, warning, error or critical.
        stream: where lines go; stderr when None.

    Raises:
        ValueError: for a level that is none of these.
    """
    number = logging.getLevelNamesMapping().get(level.upper())
    if number is None:
        raise ValueError(f"unknown log level {level!r}")
    target = stream if stream is not None else sys.stderr
    console = form is LogFormat.CONSOLE or (form is LogFormat.AUTO and target.isatty())
    chain = _chain(console=console)
    render = _console(target) if console else _json
    structlog.configure(
        processors=[*chain, render],
        wrapper_class=structlog.make_filtering_bound_logger(number),
        logger_factory=structlog.WriteLoggerFactory(target),
        cache_logger_on_first_use=False,
    )
    _route_stdlib(target, number, chain, render)


def get_logger(name: str) -> FilteringBoundLogger:
    """A logger whose lines carry ``source: name``, as those of libraries carry the name of their logger."""
    logger: FilteringBoundLogger = structlog.get_logger(source=name)
    return logger


def cycle_context(cycle: int, **more: Any) -> AbstractContextManager[None]:
    """Every line inside, in this task and the tasks it starts, carries the cycle's number."""
    return bound_contextvars(cycle=cycle, **more)


def _chain(*, console: bool) -> list[Processor]:
    chain: list[Processor] = [
        merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="%H:%M:%S.%f" if console else "iso", utc=not console),
        structlog.processors.StackInfoRenderer(),
    ]
    if not console:
        # As text: tracebacks with the frames' variables would put tokens and URLs into the log.
        chain.append(structlog.processors.format_exc_info)
    return chain


def _console(target: TextIO) -> Processor:
    render = structlog.dev.ConsoleRenderer(
        colors=target.isatty(), exception_formatter=_printable_traceback
    )

    def line(logger: Any, method: str, event: EventDict) -> str:
        """A line whose values control no terminal: only the renderer writes escape sequences, for colors."""
        safe = {key: printable(v) if isinstance(v, str) else v for key, v in event.items()}
        return str(render(logger, method, safe))

    return line


def _printable_traceback(stream: TextIO, exc_info: ExcInfo) -> None:
    text = StringIO()
    structlog.dev.plain_traceback(text, exc_info)
    stream.write(printable(text.getvalue()))


def _json(_logger: Any, _method: str, event: EventDict) -> str:
    """A line that a terminal can show, for example from ``kubectl logs``; JSON reads the escapes as the characters."""
    line = orjson.dumps(event, default=_plain, option=orjson.OPT_NON_STR_KEYS).decode()
    return printable(line)


def _plain(field: object) -> object:
    if isinstance(field, Mapping):
        return dict(field)
    if isinstance(field, set | frozenset):
        return sorted(field, key=str)
    return repr(field)


def _source(_logger: Any, _method: str, event: EventDict) -> EventDict:
    event["source"] = event["_record"].name
    return event


class _FewOfAFlood(logging.Filter):
    """Lets one line of each message through in a second, of the libraries that log what a client sends."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._logged: dict[str, float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether to write a line."""
        if not record.name.startswith(_CLIENTS):
            return True
        now, message = self._clock(), str(record.msg)
        if now - self._logged.get(message, -_FLOOD_SECONDS) < _FLOOD_SECONDS:
            return False
        if len(self._logged) > _MOST_MESSAGES:
            self._logged.clear()
        self._logged[message] = now
        return True


def _route_stdlib(target: TextIO, level: int, chain: list[Processor], render: Processor) -> None:
    """Send what libraries log through the same processors."""
    handler = logging.StreamHandler(target)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[_source, *chain],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, render],
        )
    )
    handler.addFilter(_FewOfAFlood())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level)
    for name in _QUIET:
        logging.getLogger(name).setLevel(max(level, logging.WARNING))
