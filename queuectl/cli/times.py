"""Times on the command line: a time, or a duration before or after now."""

from __future__ import annotations

import time

from queuectl.cli.errors import CommandFailed, Exit
from queuectl.domain.words import FIRST_TIME, LAST_TIME
from queuectl.objects.errors import RequestError
from queuectl.objects.times import read_duration, time_of


def hours(period: str) -> str:
    """Durations of the REST API have no days: ``30d`` is ``720h``."""
    number = period.removesuffix("d")
    whole = period.endswith("d") and number.isascii() and number.isdecimal()
    return f"{24 * int(number[:12])}h" if whole else period


def ago(text: str, option: str) -> float:
    """Unix seconds of an RFC 3339 time, or of a duration before now.

    Raises:
        CommandFailed: the text is neither; the message names ``option``.
    """
    return _moment(text, option, -1)


def ahead(text: str, option: str) -> float:
    """Unix seconds of an RFC 3339 time, or of a duration after now. Raises CommandFailed."""
    return _moment(text, option, 1)


def span(text: str, option: str) -> float:
    """Seconds of a duration. Raises CommandFailed; the message names ``option``."""
    try:
        return read_duration(hours(text), option)
    except RequestError as error:
        raise CommandFailed(str(error), Exit.BAD_INPUT) from error


def is_time(text: str) -> bool:
    """Whether the text has the form of a time. Otherwise it is a duration."""
    return text[:1].isdigit() and "-" in text


def _moment(text: str, option: str, sign: int) -> float:
    try:
        if is_time(text):
            return time_of(text, option)
        at = time.time() + sign * read_duration(hours(text), option)
    except RequestError as error:
        raise CommandFailed(str(error), Exit.BAD_INPUT) from error
    if not FIRST_TIME <= at <= LAST_TIME:
        why = f"{option}: {text!r} is too long: the calendar ends with the year 9999"
        raise CommandFailed(why, Exit.BAD_INPUT)
    return at
