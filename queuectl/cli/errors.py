"""How a command fails: a message on stderr and an exit code."""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from typing import Final

from queuectl.client.errors import InvalidOption, NoCredentials, RequestRefused, Unauthenticated
from queuectl.domain.errors import BadInput, QueuectlError


class Exit(IntEnum):
    """Exit codes of every command."""

    OK = 0
    FAILURE = 1
    BAD_INPUT = 2
    NOT_FOUND = 3
    CONFLICT = 4
    NOT_ALLOWED = 5


class CommandFailed(QueuectlError):
    """Ends the program with a message and an exit code."""

    def __init__(self, message: str, code: Exit = Exit.FAILURE) -> None:
        super().__init__(message)
        self.code = code


_STATUSES: Final[Mapping[int, Exit]] = {
    400: Exit.BAD_INPUT,
    401: Exit.NOT_ALLOWED,
    403: Exit.NOT_ALLOWED,
    404: Exit.NOT_FOUND,
    409: Exit.CONFLICT,
    412: Exit.CONFLICT,
    413: Exit.BAD_INPUT,
    415: Exit.BAD_INPUT,
    422: Exit.BAD_INPUT,
}


def exit_code(error: QueuectlError) -> Exit:
    """The exit code of an error."""
    match error:
        case CommandFailed():
            return error.code
        case RequestRefused():
            return _STATUSES.get(error.status, Exit.FAILURE)
        case NoCredentials():
            return Exit.NOT_ALLOWED
        case BadInput() | InvalidOption():
            return Exit.BAD_INPUT
        case _:
            return Exit.FAILURE


def message(error: QueuectlError) -> str:
    """The text of an error, and how to get a token if the server refuses that of the user."""
    if isinstance(error, Unauthenticated):
        from queuectl.client.credentials import HOW_TO_CREATE

        return f"{error}: {HOW_TO_CREATE}"
    return str(error)
