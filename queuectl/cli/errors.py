"""How a command fails: a message on stderr and an exit code."""

from __future__ import annotations

from enum import IntEnum

from queuectl.domain.errors import QueuectlError


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
