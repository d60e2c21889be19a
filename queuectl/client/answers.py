"""Answers of a server and their decoders, with a limit for each thing that a hostile server can send endlessly. No I/O."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, NoReturn

from queuectl.client.errors import BadAnswer, NoAnswer, ProxyAnswer, refused

Json = dict[str, Any]

LARGEST_BODY: Final = 64 * 2**20
"""Bytes of an answer, decompressed. The largest answer of the API is a map of the cluster, with about 10 MiB."""
LONGEST_BODY_SECONDS: Final = 120.0
"""Time in which a body must arrive completely."""
MOST_VALUES: Final = 5_000_000
"""By the number of commas. Small values take thirty times the memory of their text."""
MOST_LEVELS: Final = 100
MOST_DIGITS: Final = 40
_ENCODINGS: Final = ("", "identity", "gzip")
"""Each further layer of compression could multiply the size by a thousand before the limit is checked."""
_LONG_NUMBER: Final = re.compile(rb"[0-9]{%d}|[eE][+]?[0-9]{3}" % MOST_DIGITS)
_OF_PROXIES: Final = (502, 503, 504)
"""Statuses of a proxy, and of queuectl with a problem."""
_ADVICE: Final = "so it is not from queuectl: check the address of the REST API"


@dataclass(frozen=True)
class HttpAnswer:
    """An answer. ``headers`` have lower-case names."""

    url: str
    status: int
    headers: Mapping[str, str]
    body: bytes


class BodyReader:
    """Collects the body of an answer."""

    def __init__(self, url: str, status: int, headers: Mapping[str, str], began: float) -> None:
        """``began``: a time of the monotonic clock. Raises BadAnswer for an encoding that was not requested."""
        self._url, self._status, self._headers = url, status, headers
        self._until = began + LONGEST_BODY_SECONDS
        self._chunks: list[bytes] = []
        self._size = 0
        if headers.get("content-encoding", "").lower() not in _ENCODINGS:
            raise BadAnswer(f"{url}: the answer is compressed in a way that was not requested")

    def add(self, chunk: bytes, now: float) -> None:
        """A part of the body. Raises BadAnswer or NoAnswer at a limit."""
        self._size += len(chunk)
        if self._size > LARGEST_BODY:
            raise BadAnswer(f"{self._url}: the answer is larger than {LARGEST_BODY // 2**20} MiB")
        if now > self._until:
            raise NoAnswer(
                f"{self._url}: the answer is not complete after {LONGEST_BODY_SECONDS:.0f} s"
            )
        self._chunks.append(chunk)

    def answer(self) -> HttpAnswer:
        """The complete answer."""
        return HttpAnswer(self._url, self._status, self._headers, b"".join(self._chunks))


def check(answer: HttpAnswer) -> None:
    """Raise RequestRefused for a problem, ProxyAnswer for an error of a proxy, and BadAnswer for a redirect: a token is sent to no other address."""
    if 300 <= answer.status < 400:
        where = answer.headers.get("location", "")[:200]
        raise BadAnswer(
            f"{answer.url}: the answer redirects to {where!r}: give this address if the REST API is there"
        )
    if answer.status >= 400:
        source = f"{answer.url}: HTTP {answer.status}"
        try:
            problem = parsed(answer.body, source)
        except BadAnswer:
            if answer.status not in _OF_PROXIES:
                raise
            what = "a proxy answers, which does not reach queuectl: check that queuectl runs"
            raise ProxyAnswer(f"{source}: {what}") from None
        raise refused(problem, answer.status, _retry_after(answer.headers))


def text(answer: HttpAnswer) -> str:
    """The body of an answer that is not JSON."""
    return answer.body.decode(errors="replace")


def nothing(answer: HttpAnswer) -> None:
    """For a request whose answer has no content."""
    del answer


def json_object(answer: HttpAnswer) -> Json:
    """The JSON object of an answer.

    Raises:
        BadAnswer: it is not one, or exceeds a limit.
    """
    return parsed(answer.body, answer.url)


def page(answer: HttpAnswer) -> Json:
    """The JSON object of a page, whose ``items`` is a list. Raises BadAnswer."""
    body = json_object(answer)
    if not isinstance(body.get("items"), list):
        raise BadAnswer(f"{answer.url}: the answer has no list `items`, {_ADVICE}")
    return body


def parsed(body: bytes, source: str) -> Json:
    """The JSON object in a text. ``source``: for the message. Raises BadAnswer."""
    if body.count(b",") > MOST_VALUES:
        raise BadAnswer(f"{source}: the answer has more than {MOST_VALUES} values")
    hooks: dict[str, Any] = {}
    if _LONG_NUMBER.search(body):  # this can also be in a string; the hooks see numbers only
        hooks = {"parse_int": _integer, "parse_float": _float}
    try:
        document = json.loads(body, parse_constant=_no_constant, **hooks)
    except RecursionError:
        raise BadAnswer(f"{source}: the answer has more than {MOST_LEVELS} levels") from None
    except _LongNumber:
        raise BadAnswer(f"{source}: the answer has a number of too many digits") from None
    except ValueError:
        document = None
    if not isinstance(document, dict):
        raise BadAnswer(f"{source}: the answer is not JSON, {_ADVICE}")
    _check_levels(document, source)
    return document


class _LongNumber(Exception):
    pass


def _integer(digits: str) -> int:
    if len(digits) > MOST_DIGITS:
        raise _LongNumber
    return int(digits)


def _float(digits: str) -> float:
    number = float(digits)
    if len(digits) > MOST_DIGITS or number in (float("inf"), float("-inf")):
        raise _LongNumber
    return number


def _no_constant(name: str) -> NoReturn:
    raise ValueError(name)


def _check_levels(document: Json, source: str) -> None:
    """Code that prints or compares an answer is recursive, so its depth has a limit."""
    level: list[Any] = [document]
    for _ in range(MOST_LEVELS):
        level = [
            inner
            for outer in level
            for inner in (outer.values() if type(outer) is dict else outer)
            if type(inner) in (dict, list)
        ]
        if not level:
            return
    raise BadAnswer(f"{source}: the answer has more than {MOST_LEVELS} levels")


def _retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds of ``Retry-After``; None for a date, which queuectl never sends."""
    seconds = headers.get("retry-after", "")
    return (
        float(seconds) if seconds.isascii() and seconds.isdecimal() and len(seconds) < 9 else None
    )
