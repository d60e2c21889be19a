"""The page that compares the commands of everyday tasks: its commands exist, and its numbers are right."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

import typer

from queuectl.cli.commands import COMMANDS
from tests.support.pages import PAGES

_NUMBERS: Final = {"N": "1", "PRIORITY": "1"}
"""Placeholders whose values must be integers."""
_CODE: Final = re.compile(r"`([^`]+)`")
_CELL: Final = re.compile(r"((?:`[^`]+`, )*`[^`]+`) \((\d+)\)")


def rows(title: str) -> Iterator[list[str]]:
    """The cells of the table of a section, without its heads."""
    _, _, text = PAGES["everyday-tasks.md"].read_text().partition(f"\n## {title}\n")
    lines = [line for line in text.partition("\n## ")[0].splitlines() if line.startswith("| ")]
    for line in lines[2:]:
        yield line.removeprefix("| ").removesuffix(" |").split(" | ")


def refused(words: list[str]) -> str | None:
    """Why the program does not accept a command."""
    name, *arguments = words
    if name not in COMMANDS:
        return f"no such command {name!r}"
    command = COMMANDS[name].load(name)
    while members := getattr(command, "commands", {}):
        if arguments[0] not in members:
            return f"no such command {arguments[0]!r}"
        command, arguments = members[arguments[0]], arguments[1:]
    try:
        with command.make_context(name, arguments):
            return None
    except typer.TyperException as error:
        return error.format_message()


def test_the_program_accepts_the_commands_of_everyday_tasks_and_the_page_counts_their_words() -> (
    None
):
    tasks = [*rows("Users"), *rows("Administrators")]
    assert (len(tasks), {len(cells) for cells in tasks}) == (20, {4})
    counts: dict[str, list[int | None]] = {}
    refusals: dict[str, str] = {}
    for task, *cells in tasks:
        counts[task] = []
        for cell in cells:
            shown = _CELL.fullmatch(cell)
            assert shown is not None or cell == "-", cell
            counts[task].append(shown and int(shown[2]))
            commands = _CODE.findall(cell)
            if shown:
                assert int(shown[2]) == sum(len(each.split()) for each in commands), cell
            for program, *words in map(str.split, commands):
                if program == "queuectl":
                    reason = refused([_NUMBERS.get(word, word) for word in words])
                    refusals |= {" ".join(words): reason} if reason else {}
    longer = [
        task
        for task, (own, *others) in counts.items()
        if own is not None and any(other is not None and other < own for other in others)
    ]
    assert [cells[0] for cells in rows("Where queuectl needs more words")] == longer
    sums = []
    for column in (1, 2):
        pairs = [(each[0], each[column]) for each in counts.values()]
        both = [(own, other) for own, other in pairs if own is not None and other is not None]
        own, other = (sum(each) for each in zip(*both, strict=True))
        sums.append([str(len(both)), str(own), str(other)])
    assert [cells[1:] for cells in rows("Sums")] == sums
    assert refusals == {}
