"""Text of users controls no terminal, whichever command prints it and however."""

from __future__ import annotations

import ast
import csv
import json
import sys
import unicodedata
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import pytest
import typer
import yaml
from hypothesis import given
from hypothesis import strategies as st
from rich.table import Table

from queuectl.cli import report, simulate, terminal
from queuectl.cli.commands import COMMANDS
from queuectl.cli.errors import CommandFailed
from queuectl.cli.lazy import LazyCommand
from queuectl.cli.main import app
from queuectl.cli.render import Column, as_yaml, emit_json, emit_table
from queuectl.domain.words import printable
from tests.support.cli import Result, queuectl_with

HOSTILE = "x\x1b]0;PWNED\x07\x1b[31mred\x1b[2J\x9b2J\x7f\r\u202eabc\u2066"
SHOWN = r"x\u001b]0;PWNED\u0007\u001b[31mred\u001b[2J\u009b2J\u007f\u000d\u202eabc\u2066"
SOURCES = Path(terminal.__file__).parent
MANAGED = {name: mount for name, mount in COMMANDS.items() if not mount.own_text}


def controls(text: str) -> list[str]:
    """The characters that control a terminal or reorder text."""
    bidirectional = ("LRE", "RLE", "PDF", "LRO", "RLO", "LRI", "RLI", "FSI", "PDI")
    return [
        c
        for c in text
        if (unicodedata.category(c) == "Cc" and c not in "\n\t")
        or unicodedata.bidirectional(c) in bidirectional
        or c in "\u061c\u200e\u200f\u2028\u2029"
    ]


@given(st.text())
def test_no_control_remains_and_other_text_is_unchanged(text: str) -> None:
    shown = printable(text)
    assert not controls(shown)
    if not controls(text):
        assert shown == text


# ---- ways to print


def by_echo() -> None:
    typer.echo(HOSTILE)
    typer.echo(HOSTILE, err=True)


def by_stream() -> None:
    sys.stdout.write(HOSTILE)
    sys.stdout.writelines([HOSTILE, "\n"])
    print(HOSTILE, file=sys.stderr)
    csv.writer(sys.stdout).writerow([HOSTILE])


def by_table() -> None:
    table = Table(HOSTILE, "[link=http://example.com]markup[/link]", title=HOSTILE)
    table.add_row(HOSTILE, "[bold]text[/bold]")
    terminal.console(width=400, force_terminal=True, color_system=None).print(table)
    terminal.console(stderr=True).print(HOSTILE, ":smile:")


def by_json() -> None:
    emit_json({HOSTILE: HOSTILE})


WAYS: dict[str, Callable[[], None]] = {
    "echo": by_echo,
    "stream": by_stream,
    "table": by_table,
    "JSON": by_json,
}


def printed_by(
    mount: LazyCommand,
    way: Callable[[], None],
    name: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Result:
    """The output of a command whose body is replaced."""
    monkeypatch.setattr(mount, "load", lambda _: click.Command(name, callback=way))
    return queuectl_with(monkeypatch, capsys, name)


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
@pytest.mark.parametrize("name", MANAGED)
def test_whatever_a_command_prints_has_no_controls(
    name: str,
    way: Callable[[], None],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    result = printed_by(COMMANDS[name], way, name, monkeypatch, capsys)
    assert result.code == 0, result.err
    assert not controls(result.out + result.err)
    assert r"\u001b]0;PWNED" in result.out


def test_the_error_of_a_command_has_no_controls(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails() -> None:
        raise CommandFailed(HOSTILE)

    result = printed_by(COMMANDS["explain"], fails, "explain", monkeypatch, capsys)
    assert result.err == f"error: {SHOWN}\n"


def test_markup_in_the_text_of_a_user_is_text(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    result = printed_by(COMMANDS["get"], by_table, "get", monkeypatch, capsys)
    assert "[link=http://example.com]markup[/link]" in result.out
    assert "[bold]text[/bold]" in result.out
    assert ":smile:" in result.err


@pytest.mark.parametrize("name", ["alice [contractor]", "[/eu] bob", "a :smile: b"])
def test_a_table_of_a_report_or_a_simulation_has_the_whole_text_of_a_user(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    columns = [Column("USER", lambda row: row["user"]), Column("JOBS", lambda row: row["jobs"])]
    report._emit(columns, (), [{"user": name, "jobs": "1"}], None)
    simulate.print_tables([("jobs", ("user", "jobs"), [(name, "1")])])
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert rows.count([*name.split(), "1"]) == 2


@pytest.mark.parametrize("is_terminal", [False, True], ids=["pipe", "terminal"])
def test_a_row_of_a_table_is_one_line_whatever_text_a_user_writes(
    is_terminal: bool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    if is_terminal:
        monkeypatch.setenv("FORCE_COLOR", "1")
        monkeypatch.setenv("COLUMNS", "400")
    request = {
        "at": "2026-12-03T05:00:03Z",
        "by": "mallory",
        "reason": f"maintenance\n2026-12-03T05:00:02Z\talice\r\n{HOSTILE}",
    }
    columns = [
        Column("TIME", lambda row: row["at"]),
        Column("USER", lambda row: row["by"]),
        Column("RESULT", lambda row: row["reason"], long=True),
    ]
    emit_table(columns, [request], wide=True)
    report._emit(columns, (), [request], None)
    simulate.print_tables([("", ("TIME", "RESULT"), [(request["at"], request["reason"])])])
    lines = capsys.readouterr().out.split("\n")
    rows = [line for line in lines if request["at"] in line]
    assert len(rows) == 3
    assert len([line for line in lines if line]) == 6, "a line of titles and one row in each table"
    for row in rows:
        assert rf"maintenance\n2026-12-03T05:00:02Z\talice\u000d\n{SHOWN}" in row


def test_the_commands_with_text_of_their_own_are_few() -> None:
    assert set(COMMANDS) - set(MANAGED) == {"serve", "webhook", "demo", "localcluster", "mcp"}
    assert isinstance(app.info.cls, type)


def test_no_module_makes_its_own_console() -> None:
    allowed = {"terminal.py", "demo.py"}
    found = [
        f"{path.name}:{node.lineno}"
        for path in SOURCES.rglob("*.py")
        if path.name not in allowed
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == "Console"
    ]
    assert found == []


# ---- programs read the same


def test_json_and_yaml_read_back_as_the_same_text(capsys: pytest.CaptureFixture[str]) -> None:
    body = {"annotations": {"note": HOSTILE, "plain": "café"}, "lines": f"a\n{HOSTILE}\nb"}
    with terminal.printable_output():
        emit_json(body)
        as_json = capsys.readouterr().out
        sys.stdout.write(as_yaml(body))
    written = capsys.readouterr().out
    assert not controls(as_json + written)
    assert json.loads(as_json) == yaml.safe_load(written) == body
    assert "plain: café" in written


def test_colors_are_written_to_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    with terminal.printable_output():
        shown = terminal.console(force_terminal=True, color_system="standard")
        shown.print(HOSTILE, style="red")
    kept = SHOWN.replace(r"\u0007", "").replace(r"\u000d", "")  # rich removes these two
    assert capsys.readouterr().out == f"\x1b[31m{kept}\x1b[0m\n"


def test_plan_of_files_prints_no_controls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fixtures = Path(__file__).parent.parent / "fixtures" / "plan"
    documents: list[dict[str, Any]] = list(
        yaml.safe_load_all((fixtures / "cluster.yaml").read_text())
    )
    held = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "name": "held",
            "namespace": "default",
            "labels": {"queuectl.dev/queue-name": "default"},
            "annotations": {"queuectl.dev/admission-gated-by": HOSTILE.replace("\r", "")},
        },
        "spec": {
            "template": {
                "spec": {
                    "restartPolicy": "Never",
                    "containers": [
                        {
                            "name": "main",
                            "image": f"image{HOSTILE}",
                            "resources": {"requests": {"cpu": "1"}},
                        }
                    ],
                }
            }
        },
    }
    file = tmp_path / "all.yaml"
    file.write_text(yaml.safe_dump_all([*documents, held]))
    for output in ("text", "json"):
        options = [] if output == "text" else ["-o", "json"]
        result = queuectl_with(monkeypatch, capsys, "plan", "-f", str(file), *options)
        assert not controls(result.out + result.err), output
