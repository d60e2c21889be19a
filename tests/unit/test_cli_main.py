"""The program itself: quick to start, and every command where the table says it is."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from queuectl.cli.errors import CommandFailed, Exit
from queuectl.cli.main import MOUNTS, exit_code
from queuectl.domain.errors import BadInput, QueuectlError, StoreUnavailable

HEAVY = ("kubernetes_asyncio", "sqlalchemy", "fastapi", "ortools", "asyncpg", "uvicorn")


def loaded_by(*arguments: str) -> set[str]:
    """The heavy modules in memory after a command has run."""
    code = f"""
import sys
from queuectl.cli.main import run
sys.argv = ["queuectl", *{list(arguments)!r}]
try:
    run()
except SystemExit:
    pass
print(*sys.modules, file=sys.__stderr__)
"""
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    return set(done.stderr.split()) & {*HEAVY, "httpx2", "msgspec", "rich.table"}


@pytest.mark.parametrize("arguments", [(), ("--help",), ("--version",), ("completion", "bash")])
def test_help_imports_no_server_and_no_client(arguments: tuple[str, ...]) -> None:
    assert not loaded_by(*arguments) - {"rich.table"}


@pytest.mark.parametrize("command", ["doctor", "top", "get", "config", "delete", "whatif"])
def test_help_of_a_client_command_imports_no_server(command: str) -> None:
    assert not loaded_by(command, "--help") & set(HEAVY)


@pytest.mark.parametrize(
    "arguments",
    [
        ("get", "wl", "--server", "http://127.0.0.1:9"),
        ("explain", "x", "--server", "http://127.0.0.1:9"),
        ("describe", "wl", "x", "--server", "http://127.0.0.1:9"),
        ("top", "--once", "--server", "http://127.0.0.1:9"),
        ("history", "x", "--server", "http://127.0.0.1:9"),
        ("audit", "--server", "http://127.0.0.1:9"),
        ("config", "export", "--server", "http://127.0.0.1:9"),
        ("apply", "-f", "/dev/null"),
        ("delete", "cq", "x", "--server", "http://127.0.0.1:9"),
        ("whatif", "--drain", "n0", "--server", "http://127.0.0.1:9"),
    ],
)
def test_client_commands_import_no_server(arguments: tuple[str, ...]) -> None:
    loaded = loaded_by(*arguments)
    assert "httpx2" in loaded
    assert not loaded & set(HEAVY)


@pytest.mark.parametrize("name", MOUNTS)
def test_every_command_of_the_table_exists_and_has_help(name: str) -> None:
    command = MOUNTS[name].load(name)
    assert command.name == name
    assert command.help


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (CommandFailed("x", Exit.NOT_FOUND), Exit.NOT_FOUND),
        (BadInput("x"), Exit.BAD_INPUT),
        (StoreUnavailable("x"), Exit.FAILURE),
        (QueuectlError("x"), Exit.FAILURE),
    ],
)
def test_errors_become_exit_codes(error: QueuectlError, code: Exit) -> None:
    assert exit_code(error) is code


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("queuectl exp", {"explain"}),
        ("queuectl get --na", {"--namespace"}),
        ("queuectl db upg", {"upgrade"}),
    ],
)
def test_the_shell_completes_commands_that_are_not_imported_yet(
    line: str, offered: set[str]
) -> None:
    environment = {
        **os.environ,
        "COMP_WORDS": line,
        "COMP_CWORD": str(line.count(" ")),
        "_QUEUECTL_COMPLETE": "complete_bash",
    }
    code = "import sys; sys.argv = ['queuectl']; from queuectl.cli.main import run; run()"
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, check=True, capture_output=True, text=True
    )
    assert set(done.stdout.split()) == offered
