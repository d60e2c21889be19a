"""The snapshots of the documentation: what each ``queuectl plan`` of a page that names files of the repository plans."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from contextlib import chdir
from itertools import pairwise
from pathlib import Path
from typing import Final

import typer
from typer.testing import CliRunner

from queuectl.cli.plan import plan_command
from queuectl.control import checked_plan
from tests.corpus.captured import Named, captured
from tests.support.pages import PAGES

ROOT: Final = Path(__file__).parents[2]
_EXAMPLES: Final = Path("docs/examples")
_COMMAND: Final = re.compile(r"queuectl plan ((?:[^\n`|]*\\\n)*[^\n`|]*)")
_FILES: Final = frozenset({"-f", "--file", "--config"})
_app = typer.Typer()
_app.command()(plan_command)


def documentation() -> Iterator[Named]:
    """Commands of the pages, then each example alone and alongside the nodes and queues of the examples."""
    with chdir(ROOT):
        for number, arguments in enumerate(_commands()):
            yield from _planned(f"command {number}", arguments)
        state = ("-f", str(_EXAMPLES / "nodes.yaml"), "-f", str(_EXAMPLES / "queues.yaml"))
        for path in sorted(_EXAMPLES.glob("*.yaml")):
            for before in ((), state):
                arguments = [*before, "-f", str(path)]
                for more in ((), ("--defrag",)):
                    name = f"{path.stem}{', beside nodes' * bool(before)}{' '.join(more)}"
                    yield from _planned(name, [*arguments, *more])


def _commands() -> Iterator[list[str]]:
    seen = set[tuple[str, ...]]()
    for page in PAGES.values():
        for found in _COMMAND.finditer(page.read_text()):
            try:
                arguments = shlex.split(found[1].replace("\\\n", " "), comments=True)
            except ValueError:
                continue  # prose
            files = [b for a, b in pairwise(arguments) if a in _FILES]
            if files and all(Path(f).is_file() for f in files) and tuple(arguments) not in seen:
                seen.add(tuple(arguments))
                yield arguments


def _planned(name: str, arguments: list[str]) -> Iterator[Named]:
    def run() -> None:
        CliRunner().invoke(_app, arguments)  # refused ones are given to no planner

    yield from ((name, snapshot) for _, snapshot in captured(checked_plan, run, name, most=1))
