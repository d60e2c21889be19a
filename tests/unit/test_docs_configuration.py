"""The pages on configuration say what the reader does, and their commands print what they show."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from queuectl.domain.snapshot import Snapshot
from queuectl.objects.configuration.queue_config import READERS
from tests.api.serving import serving
from tests.api.support import FixedDiagnoser, running
from tests.doubles.store import MemoryStore
from tests.support.cli import Cli
from tests.support.codeblocks import transcript
from tests.unit.test_cli_clients import queuectl
from tests.unit.test_config_fields import HEAD, HONORED, PASSED_OVER, WARNED, paths

__all__ = ["queuectl"]

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "reference" / "configuration.md").read_text()
COMING = (ROOT / "docs" / "how-to" / "coming-from-kueue.md").read_text()


# ---- the reference


def section(kind: str) -> str:
    return PAGE.split(f"\n## {kind}\n")[1].split("\n## ")[0]


def rows(kind: str) -> dict[str, str]:
    """Field to its description on the page."""
    cells = [line.split("|", 2) for line in section(kind).splitlines() if line.startswith("| `")]
    return {cell[1].strip(" `"): cell[2] for cell in cells}


def fields(kind: str) -> Iterator[str]:
    """Every field the reader knows. A Cohort's quotas are described where a ClusterQueue's are."""
    for path in paths(READERS[kind].wire):
        inside = kind == "Cohort" and path.startswith("spec.resourceGroups.")
        if path.split(".")[0] not in HEAD and path != "spec" and not inside:
            yield path


def is_documented(path: str, documented: dict[str, str]) -> bool:
    """In its own row, or by its name in the row of its parent field."""
    if path in documented:
        return True
    parent, _, leaf = path.rpartition(".")
    while parent and parent not in documented:
        parent = parent.rpartition(".")[0]
    return f"`{leaf}`" in documented.get(parent, "")


@pytest.mark.parametrize("kind", READERS)
def test_every_field_the_reader_knows_is_in_the_reference_and_no_other(kind: str) -> None:
    known, documented = set(fields(kind)), rows(kind)
    passed_over = {field for field, _ in PASSED_OVER} if kind == "Configuration" else set()
    unsaid = {
        p for p in known if p.split(".")[0] not in passed_over and not is_documented(p, documented)
    }
    assert unsaid == set()
    assert set(documented) - known == set()
    for field in passed_over:
        assert f"`{field}`" in section(kind)


def test_the_reference_names_the_fields_that_have_no_effect_and_a_warning() -> None:
    for kind, field, _ in WARNED:
        assert re.search(r"\bwith a warning\b", rows(kind)[field]), (kind, field)
    for kind, field, *_ in HONORED:
        said = rows(kind).get(field, "")
        assert not said.startswith(" ignored with a warning"), (kind, field)


# ---- the page for those who come from Kueue


def shown(page: str) -> Iterator[tuple[list[str], list[str]]]:
    """The words of each command of a page, and the lines shown under it; ``…`` stands for lines left out."""
    for each in transcript(page):
        command = re.sub(r"(?:\\|(\|))\n\s+", r"\1 ", each.command)
        yield shlex.split(command), [line.rstrip() for line in each.output if line.strip()]


COMMANDS = [command for command, _ in shown(COMING)]


@pytest.fixture
def runs() -> Snapshot:
    """The gangs that run during the page's commands: two gangs of 8 GPUs in ``vision``."""
    snapshot = running(("tune-1", 1.0), ("tune-2", 2.0), gpus=8)
    gangs = [replace(g, workload=replace(g.workload, queue="training")) for g in snapshot.admitted]
    return replace(snapshot, admitted=tuple(gangs))


@pytest.fixture
def server(runs: Snapshot) -> Iterator[str]:
    diagnoser = FixedDiagnoser()
    diagnoser.running = runs
    with serving(MemoryStore(), diagnoser) as address:
        yield address


def pieces(lines: list[str]) -> list[list[str]]:
    """The text between the places where lines are left out."""
    found: list[list[str]] = [[]]
    for line in lines:
        if line == "…":
            found.append([])
        else:
            found[-1].append(line)
    return [piece for piece in found if piece]


def check(queuectl: Cli, page: str, work: Path) -> int:
    """Run the page's commands in order; how many there were."""
    count = 0
    for command, lines in shown(page):
        if command[0] == "sed":
            *_, script, source, _, target = command
            old, new = re.fullmatch(r"s/(.*)/(.*)/", script).groups()  # type: ignore[union-attr]
            text = (ROOT / source).read_text()
            assert old in text
            (work / target).write_text(text.replace(old, new))
        if command[0] != "queuectl":
            continue
        arguments = [str(work / a) if (work / a).is_file() else a for a in command[1:]]
        result = queuectl(*arguments)
        assert result.code == 0, result.err
        said = [line.rstrip() for line in (result.out + result.err).splitlines() if line.strip()]
        for piece in pieces(lines):
            at = said.index(piece[0])
            assert said[at : at + len(piece)] == piece
        if "…" not in lines:
            assert said == lines
        count += 1
    return count


def test_the_commands_for_those_who_come_from_kueue_print_what_the_page_shows(
    queuectl: Cli, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(ROOT)
    assert check(queuectl, COMING, tmp_path) == 4


def test_the_page_shows_every_command_it_speaks_of() -> None:
    assert [command[0] for command in COMMANDS] == ["kubectl"] * 2 + ["queuectl"] * 3 + ["sed", "queuectl"] + ["kubectl"] * 2 + ["helm"] + ["kubectl"] * 4 + ["(cat"] + ["kubectl"] * 3  # fmt: skip
