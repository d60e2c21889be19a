"""Every ``queuectl`` line of the pages is one the program takes; those that need no cluster are run."""

from __future__ import annotations

import asyncio
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Final

import pytest
import yaml

from queuectl.cli.commands import COMMANDS
from queuectl.cli.main import run
from tests.api.serving import serving
from tests.api.support import FixedLookout, job, live_through
from tests.doubles.store import MemoryStore
from tests.support.pages import PAGES
from tests.unit.test_cli_watch import FLOOR

ROOT: Final = Path(__file__).parents[2]
_LINE: Final = re.compile(
    r"^(?: {4})?(?:[A-Z_]+=\S+ )*(queuectl (?![a-z]+:)(?:[^\\\n]|\\\n *)+)$", re.MULTILINE
)
_FENCED: Final = re.compile(r"^```[^\n]*\n(.*?)^```", re.MULTILINE | re.DOTALL)
_END: Final = re.compile(r" (?:[|;>&]|#) ?.*|;.*|…")
_RUN: Final = {
    "plan",
    "simulate",
    "advise",
    "apply",
    "get",
    "report",
    "completion",
    "audit",
    "config",
    "init",
}
"""Commands that can be run on a server without workloads. Others name one."""


@dataclass(frozen=True)
class Line:
    """A command as a page shows it."""

    page: str
    words: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.page}: {' '.join(self.words)}"


def shown() -> Iterator[Line]:
    """Lines that are code: indented, or between fences."""
    for page in PAGES.values():
        text = page.read_text()
        code = "".join(re.findall(r"^ {4}.*\n", text, re.MULTILINE)) + "".join(
            _FENCED.findall(text)
        )
        for found in _LINE.findall(code):
            line = _END.sub("", re.sub(r"\\\n *", "", found))
            yield Line(page.name, tuple(shlex.split(line)[1:]))


LINES: Final = sorted(set(shown()), key=str)


def offline(line: Line) -> bool:
    """Whether what it needs is in the repository."""
    words = line.words
    options = ("-f", "--config", "--snapshot", "--trace", "--events")
    files = [value for option, value in pairwise(words) if option in options]
    asked = not {"--watch", "--live", "$kind", "confirm"} & set(words) and (
        words[0] != "init" or bool(files)
    )
    return words[0] in _RUN and asked and all((ROOT / name).is_file() for name in files)


def test_pages_show_commands() -> None:
    assert len(LINES) > 40
    assert {line.words[0] for line in LINES} >= {"plan", "apply", "get", "explain", "doctor", "top"}
    assert len([line for line in LINES if offline(line)]) > 20


@pytest.mark.parametrize("line", LINES, ids=str)
def test_the_program_takes_every_line_of_the_pages(line: Line) -> None:
    """Names, options and their values; nothing is done."""
    name, *arguments = line.words
    if name.startswith("-"):
        return
    command = COMMANDS[name].load(name)
    for each in arguments:
        members = getattr(command, "commands", {})
        if not members:
            break
        command, arguments = members[each], arguments[1:]
    with command.make_context(name, list(arguments), resilient_parsing=False):
        pass


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    """With the queues of the examples, a gang, and nodes."""
    store = MemoryStore()
    for document in yaml.safe_load_all((ROOT / "docs/examples/queues.yaml").read_text()):
        asyncio.run(store.put_config(document))
    for change in live_through(job("train")):
        store._write(change, 1)
    with serving(store, cluster_reader=FixedLookout(FLOOR)) as address:
        yield address


@pytest.mark.parametrize("line", [line for line in LINES if offline(line)], ids=str)
def test_lines_that_need_no_cluster_do_what_they_should(
    line: Line, server: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("QUEUECTL_SERVER", server)
    monkeypatch.setenv("KUBECONFIG", "/nowhere")
    monkeypatch.setattr("sys.argv", ["queuectl", *line.words])
    with pytest.raises(SystemExit) as ended:
        run()
    assert not ended.value.code, capsys.readouterr().err


def test_every_command_is_on_some_page() -> None:
    """A command without a page is not found by users."""
    text = "".join(page.read_text() for page in PAGES.values())
    assert [name for name in COMMANDS if f"queuectl {name}" not in text] == []
