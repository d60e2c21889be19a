"""The program: its start-up, its help, and the table of commands."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

from queuectl.cli.commands import COMMANDS, FIRST
from queuectl.cli.errors import CommandFailed, Exit, exit_code
from queuectl.cli.lazy import Reader
from queuectl.client import ClientError, InvalidOption, NoAnswer, NoCredentials, RequestRefused
from queuectl.domain.errors import BadInput, QueuectlError, StoreUnavailable

EXTRAS = {
    "alembic", "asyncpg", "cryptography", "fastapi", "kubernetes_asyncio", "numpy", "ortools", "sqlalchemy",
    "structlog", "uvicorn",
}  # fmt: skip
"""Modules of the extras: no command of a client imports them."""
SLOW = {"msgspec", "prometheus_client", "pydantic", "rich", "yaml"}
"""Modules of the base that take more than 10 ms to import, and that no client needs before its first request."""


def loaded_by(*arguments: str) -> set[str]:
    """The packages in memory after a command has run."""
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
    return {module.partition(".")[0] for module in done.stderr.split()}


@pytest.mark.parametrize("arguments", [(), ("--help",), ("version",), ("--version",)])
def test_start_up_imports_no_server_and_no_client(arguments: tuple[str, ...]) -> None:
    assert not loaded_by(*arguments) & (EXTRAS | SLOW | {"httpx2", "ssl"})


@pytest.mark.parametrize(
    "arguments", [("get", "workloads"), ("get", "cq", "-n", "y"), ("explain", "x", "-n", "y")]
)
def test_a_client_imports_what_prints_an_answer_after_its_first_request(
    arguments: tuple[str, ...],
) -> None:
    loaded = loaded_by(*arguments, "--server", "http://127.0.0.1:9")
    assert "httpx2" in loaded
    assert not loaded & (EXTRAS | SLOW)


@pytest.mark.parametrize("command", ["doctor", "top", "get", "config", "delete", "whatif"])
def test_help_of_a_client_command_imports_no_server(command: str) -> None:
    assert not loaded_by(command, "--help") & EXTRAS


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
        ("apply", "-f", "docs/examples/queues.yaml", "--server", "http://127.0.0.1:9"),
        ("delete", "cq", "x", "--server", "http://127.0.0.1:9"),
        ("whatif", "--drain", "n0", "--server", "http://127.0.0.1:9"),
    ],
)
def test_client_commands_import_no_server(arguments: tuple[str, ...]) -> None:
    loaded = loaded_by(*arguments)
    assert "httpx2" in loaded
    assert not loaded & EXTRAS


def program(name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the program under this name."""
    code = (
        f"import sys; sys.argv = {[name, *arguments]!r}; from queuectl.cli.main import run; run()"
    )
    return subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)


def test_without_arguments_it_shows_what_a_submitter_needs_first() -> None:
    done = program("queuectl")
    assert done.returncode == 0
    shown = re.findall(r"^  queuectl ([a-z]+) +\S", done.stdout, re.MULTILINE)
    assert shown == [*FIRST]
    assert len(FIRST) == 6
    assert all(COMMANDS[name].reader is Reader.SUBMITTER for name in FIRST)
    assert "queuectl --help  " in done.stdout


def test_the_help_lists_each_command_under_its_reader() -> None:
    sections = program("queuectl", "--help").stdout.split("\n\n")[3:]
    titles = [section.partition(":\n")[0] for section in sections]
    assert titles == [*Reader]
    for reader, section in zip(Reader, sections, strict=True):
        names = re.findall(r"^  (\w+) ", section, re.MULTILINE)
        assert names == [name for name, each in COMMANDS.items() if each.reader is reader]


@pytest.mark.parametrize("name", COMMANDS)
def test_a_help_line_fits_a_terminal_of_80_columns(name: str) -> None:
    assert len(COMMANDS[name].text) <= 62


@pytest.mark.parametrize("called", ["kubectl-queuectl", "/usr/bin/kubectl-queuectl"])
def test_the_help_shows_the_name_by_which_the_program_was_called(called: str) -> None:
    assert "\n  kubectl queuectl get  " in program(called).stdout
    assert program(called, "top", "--help").stdout.startswith("Usage: kubectl queuectl top ")
    assert "Try 'kubectl queuectl get --help'" in program(called, "get").stderr


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_of_the_table_exists_and_has_help(name: str) -> None:
    command = COMMANDS[name].load(name)
    assert command.name == name
    assert command.help


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (CommandFailed("x", Exit.NOT_FOUND), Exit.NOT_FOUND),
        (BadInput("x"), Exit.BAD_INPUT),
        (StoreUnavailable("x"), Exit.FAILURE),
        (QueuectlError("x"), Exit.FAILURE),
        (ClientError("x"), Exit.FAILURE),
        (NoAnswer("x"), Exit.FAILURE),
        (InvalidOption("x"), Exit.BAD_INPUT),
        (NoCredentials("x"), Exit.NOT_ALLOWED),
        (RequestRefused({}, 401), Exit.NOT_ALLOWED),
        (RequestRefused({}, 403), Exit.NOT_ALLOWED),
        (RequestRefused({}, 404), Exit.NOT_FOUND),
        (RequestRefused({}, 412), Exit.CONFLICT),
        (RequestRefused({}, 422), Exit.BAD_INPUT),
        (RequestRefused({}, 500), Exit.FAILURE),
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
