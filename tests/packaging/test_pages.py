"""The commands of the pages on packages, images and releases exist."""

from __future__ import annotations

import re
import subprocess

import pytest

from tests.support.pages import PAGES, ROOT

_COMMAND = re.compile(r"^ *(make [^\n#]+)$", re.MULTILINE)
COMMANDS = [
    command
    for name in ("build-the-image.md", "release.md")
    for command in _COMMAND.findall(PAGES[name].read_text())
]


@pytest.mark.parametrize("command", COMMANDS)
def test_make_knows_each_target(command: str) -> None:
    words = command.split()
    done = subprocess.run(
        [*words, "--dry-run"], cwd=ROOT, check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert "python -m tests." in done.stdout


def test_the_pages_show_the_commands() -> None:
    assert {command.split()[1] for command in COMMANDS} == {"image", "release"}
