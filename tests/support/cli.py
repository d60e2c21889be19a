"""Runs the command line in the process of a test."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import copy_context
from dataclasses import dataclass

import pytest

from queuectl.cli.main import run


@dataclass
class Result:
    """Exit code and output of a command."""

    code: int
    out: str
    err: str


Cli = Callable[..., Result]


def queuectl_with(
    monkeypatch: pytest.MonkeyPatch, capture: pytest.CaptureFixture[str], *arguments: str
) -> Result:
    """Run ``queuectl`` with these arguments; ``capture`` is capsys or capfd."""
    monkeypatch.setattr("sys.argv", ["queuectl", *arguments])
    capture.readouterr()
    with pytest.raises(SystemExit) as ended:
        copy_context().run(run)  # the options of the connection end with the program
    return Result(int(ended.value.code or 0), *capture.readouterr())
