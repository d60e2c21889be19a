"""The program: its start-up, its help, and the table of commands."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from queuectl.cli.commands import COMMANDS, FIRST
from queuectl.cli.errors import CommandFailed, Exit, exit_code
from queuectl.cli.examples import EXAMPLES
from queuectl.cli.lazy import Reader
from queuectl.cli.main import run
from queuectl.cli.reads import cluster_connection
from queuectl.cli.targets import read_objects
from queuectl.client import ClientError, InvalidOption, NoAnswer, NoCredentials, RequestRefused
from queuectl.client.credentials import from_file
from queuectl.domain.errors import BadInput, QueuectlError, StoreUnavailable
from queuectl.kubeconfig import current_context
from tests.support.cli import queuectl_with

EXTRAS = {
    "alembic", "asyncpg", "cryptography", "fastapi", "kubernetes_asyncio", "numpy", "ortools", "sqlalchemy",
    "structlog", "uvicorn",
}  # fmt: skip
"""Modules of the extras: no command of a client imports them."""
NO_EXAMPLES = ("localcluster status", "localcluster build", "mcp", "options", "version")
"""Commands without options."""
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


@pytest.mark.parametrize("called", ["kubectl-queuectl", "/usr/bin/kubectl-queuectl"])
def test_the_help_shows_the_name_by_which_the_program_was_called(called: str) -> None:
    assert "\n  kubectl queuectl get  " in program(called).stdout
    assert program(called, "top", "--help").stdout.startswith("Usage: kubectl queuectl top ")
    assert "Use `kubectl queuectl describe --help`" in program(called, "describe").stderr
    assert "\n    kubectl queuectl top | cat\n" in program(called, "top", "-h").stdout


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_of_the_table_exists_and_has_help_for_a_terminal_of_80_columns(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    command = COMMANDS[name].load(name)
    assert command.name == name
    assert command.help
    assert len(COMMANDS[name].text) <= 62
    members = dict(leaves(name, command))
    assert all(len(EXAMPLES.get(p, ())) in (2, 3) for p in members if p not in NO_EXAMPLES)
    for path, member in {name: command, **members}.items():
        context = member.make_context(f"queuectl {path}", ["--help"], resilient_parsing=True)
        assert context.help_option_names == ["-h", "--help"]
        lines = member.get_help(context).splitlines()
        assert max(map(len, lines)) <= 80
        assert not [line for line in lines[1:] if line.endswith("...")]


def leaves(path: str, command: Any) -> list[tuple[str, Any]]:
    """The command, or the commands of a group, with their words."""
    members = getattr(command, "commands", None)
    if not members:
        return [(path, command)]
    return [leaf for name in members for leaf in leaves(f"{path} {name}", members[name])]


def test_every_example_is_accepted() -> None:
    """Names, options and their values; nothing is done."""
    assert set(EXAMPLES) == {
        path for name, mount in COMMANDS.items() for path, _ in leaves(name, mount.load(name))
    } - set(NO_EXAMPLES)
    for path, examples in EXAMPLES.items():
        for _, line in examples:
            words, _, _ = line.partition(" | ")
            assert words == path or words.startswith(f"{path} ")
            name, *arguments = shlex.split(words)
            command: Any = COMMANDS[name].load(name)
            for _ in path.split()[1:]:
                command, arguments = command.commands[arguments[0]], arguments[1:]
            with command.make_context(name, list(arguments)):
                pass


@pytest.fixture
def printed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., str]:
    """The output of a command line that succeeds, of this process."""

    def of(*words: str) -> str:
        monkeypatch.setattr("sys.argv", ["queuectl", *words])
        with pytest.raises(SystemExit) as ended:
            run()
        assert not ended.value.code
        return capsys.readouterr().out

    return of


def test_the_options_of_the_connection_have_their_own_page(
    printed: Callable[..., str],
) -> None:
    options = set(re.findall(r"^  (--[a-z-]+)", printed("options"), re.MULTILINE))
    assert options >= {"--server", "--token-file", "--ca-file", "--kubeconfig", "--context"}
    for name in ("get", "explain", "report"):
        shown = printed(name, "-h")
        assert not [option for option in options if f" {option} " in shown]
        assert "queuectl options" in shown


def test_help_shows_the_help_of_a_command(printed: Callable[..., str]) -> None:
    for words in ((), ("get",), ("config", "diff")):
        assert printed("help", *words) == printed(*words, "--help")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("explian",), "error: no such command 'explian'; did you mean 'explain' or 'plan'?\n"),
        (("qqq",), "error: no such command 'qqq'\n"),
        (("submit", "x"), "error: no such command 'submit': to submit a job, use `kubectl create"),
        (("scancel",), "error: no such command 'scancel': to cancel jobs, use `queuectl cancel`"),
        (("get", "--qqq"), "error: no such option: --qqq\nUse `queuectl get --help` to show"),
        (("get", "--sort"), "error: option '--sort' requires an argument\nUse `queuectl get --help`"),
        (("get", "jobz"), "error: unknown kind 'jobz'; did you mean job?\n"),
        (("plan", "--file", "x"), "error: no such option: --file; did you mean '--filename'?\nUse"),
        (("version", "x"), "error: unexpected argument: x\nUse `queuectl version --help`"),
        (("report",), "error: missing argument 'REPORT'; choose from usage, cost, waste, waits,"),
        (("priority", "x", str(2**31)), "error: invalid value for 'PRIORITY': '2147483648' "),
        (("priority", "x", "1e"), "error: invalid value for 'PRIORITY': '1e' is not a valid integer\n"),
        (("config",), "Usage: queuectl config [OPTIONS] COMMAND"),
    ],
    ids=str,
)  # fmt: skip
def test_wrong_usage_is_reported_as_each_other_error(
    words: tuple[str, ...],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("sys.argv", ["queuectl", *words])
    with pytest.raises(SystemExit) as ended:
        run()
    assert ended.value.code == Exit.BAD_INPUT
    out, err = capsys.readouterr()
    assert err.startswith(message)
    assert not out


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


def homeless(monkeypatch: pytest.MonkeyPatch) -> None:
    """The account of a container with a random uid."""
    for name in ("HOME", "XDG_STATE_HOME", "XDG_CACHE_HOME", "QUEUECTL_CACHE", "KUBECONFIG"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("pwd.getpwuid", {}.__getitem__)


@pytest.mark.parametrize(
    ("words", "variable"),
    [
        (("status",), "XDG_STATE_HOME"),
        (("down", "--all"), "XDG_STATE_HOME"),
        (("down",), "XDG_STATE_HOME"),
        (("exporters",), "XDG_STATE_HOME"),
        (("build",), "QUEUECTL_CACHE"),
    ],
    ids=str,
)
def test_a_local_cluster_needs_a_home_directory_or_a_variable(
    words: tuple[str, ...],
    variable: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    homeless(monkeypatch)
    monkeypatch.setattr("sys.argv", ["queuectl", "localcluster", *words])
    with pytest.raises(SystemExit) as ended:
        run()
    assert ended.value.code == Exit.FAILURE
    assert f"is not known: set {variable} to" in capsys.readouterr().err


@pytest.mark.parametrize("words", ["version", "help get", "--help"])
@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&-"])
def test_a_closed_stream_drops_its_output(words: str, closed: str) -> None:
    code = f"import sys; sys.argv = {['queuectl', *words.split()]!r}; from queuectl.cli.main import run; run()"
    line = f"{shlex.join([sys.executable, '-c', code])} {closed}"
    done = subprocess.run(["/bin/sh", "-c", line], check=False, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_negative_number_needs_two_dashes_before_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    result = queuectl_with(monkeypatch, capsys, "priority", "team-a/train", "-5")
    assert result.code == 2
    first = "error: no such option: -5; write -- before a negative number"
    assert result.err.splitlines()[0] == first


@pytest.mark.parametrize("dry_run", [[], ["--dry-run"]])
def test_a_missing_file_of_a_recovery_is_bad_input(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], dry_run: list[str]
) -> None:
    monkeypatch.setenv("QUEUECTL_DATABASE_URL", "postgresql://127.0.0.1:9/q")
    result = queuectl_with(monkeypatch, capsys, "recover", "-f", "nowhere.yaml", *dry_run)
    assert (result.code, result.out) == (2, "")
    assert result.err == "error: nowhere.yaml: No such file or directory\n"


@pytest.mark.parametrize("dry_run", [[], ["--dry-run"]])
@pytest.mark.parametrize(
    ("name", "value", "problem"),
    [
        (
            "QUEUECTL_DATABASE_ULR",
            "postgresql://127.0.0.1:9/q",
            "unknown variable; did you mean QUEUECTL_DATABASE_URL",
        ),
        ("QUEUECTL_IN_FLIGHT", "0", "must be greater than or equal to 1"),
    ],
)
def test_a_recovery_refuses_wrong_settings(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    name: str,
    value: str,
    problem: str,
    dry_run: list[str],
) -> None:
    monkeypatch.setenv(name, value)
    words = ("recover", "-f", "docs/examples/queues.yaml", *dry_run)
    result = queuectl_with(monkeypatch, capsys, *words)
    assert (result.code, result.out) == (2, "")
    assert result.err.startswith(f"error: {name}: {problem}")


def test_an_empty_variable_of_the_kubeconfig_is_as_none(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / ".kube").mkdir()
    (tmp_path / ".kube/config").touch()
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("KUBECONFIG", "")
    assert cluster_connection().kubeconfig == tmp_path / ".kube/config"


def test_a_client_needs_no_home_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    homeless(monkeypatch)
    assert current_context() is None
    assert cluster_connection().kubeconfig is None
    with pytest.raises(InvalidOption, match="token file ~/token: No such file"):
        from_file(Path("~/token"))


def test_the_library_of_kubernetes_is_imported_without_a_home_directory() -> None:
    code = """
import os, pwd
os.environ.pop("HOME", None)
pwd.getpwuid = {}.__getitem__
import queuectl.cluster.library
assert "HOME" not in os.environ
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_file_system_error_of_a_local_cluster_is_a_message(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", "/dev/null")
    monkeypatch.setattr("sys.argv", ["queuectl", "localcluster", "status"])
    with pytest.raises(SystemExit) as ended:
        run()
    assert ended.value.code == Exit.FAILURE
    assert capsys.readouterr().err.startswith("error: /dev/null/queuectl/clusters: Not a directory")


@pytest.mark.parametrize(
    ("words", "code", "out", "err"),
    [
        ("version >/dev/full", Exit.FAILURE, "", "error: No space left on device\n"),
        ("completion bash >/dev/full", Exit.FAILURE, "", "error: No space left on device\n"),
        ("version | true; exit ${PIPESTATUS[0]}", None, "", ""),
        ("plan -f - <&-", Exit.BAD_INPUT, "", "error: stdin: is closed\n"),
    ],
    ids=str,
)  # fmt: skip
def test_errors_of_the_system_are_reported_as_each_other_error(
    words: str, code: Exit | None, out: str, err: str
) -> None:
    script = f"{shlex.quote(str(Path(sys.executable).with_name('queuectl')))} {words}"
    done = subprocess.run(
        ["bash", "-c", script],
        check=False,
        capture_output=True,
        text=True,
    )
    assert (done.stdout, done.stderr[: len(err)]) == (out, err)
    assert "Traceback" not in done.stderr
    assert "ignored" not in done.stderr
    assert code is None or done.returncode == code


def test_a_character_that_the_output_cannot_hold_is_escaped() -> None:
    """JSON still is JSON."""
    code = """
from queuectl.cli import main, render
main.app = lambda **_: render.emit_json({"name": "\u00e9 \u8a9e \U0001f600"})
main.run()
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        check=True,
        capture_output=True,
        encoding="latin-1",
        env={**os.environ, "PYTHONIOENCODING": "latin-1"},
    )
    assert "\\u8a9e" in done.stdout
    assert json.loads(done.stdout) == {"name": "\u00e9 \u8a9e \U0001f600"}


def test_a_directory_that_cannot_be_read_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(_: Path) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "iterdir", refused)
    with pytest.raises(BadInput, match=r"^docs: Permission denied$"):
        read_objects(["docs"])


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
