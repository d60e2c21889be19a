"""The example tables of docs/reports.md are what the command prints of such a day."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime
from pathlib import Path

import pytest

from queuectl.cli.main import run
from queuectl.domain.accounting import HOUR, Free, Held, Loss, Mark, Phase, Subject, Terms
from queuectl.domain.folding import Fold
from queuectl.domain.utilization import GangUse, UseState
from tests.api.serving import serving
from tests.doubles.store import MemoryStore

PAGE = (Path(__file__).parents[2] / "docs" / "reports.md").read_text()
END = float(int(time.time() // HOUR) * HOUR)
DAY = END - 24 * HOUR


def gang(
    fold: Fold,
    team: str,
    gpus: int,
    hours: float,
    look: tuple[UseState, float | None],
    loss: float = 0.0,
) -> None:
    """It waits until it has so many hours left, and runs to the end of the day; it loses work an hour before."""
    who = Subject(team, "PyTorchJob", team, "train", "research", "gpus", labels=(("team", team),))

    def mark(at: float, phase: Phase, lost: Loss | None = None) -> Mark:
        return Mark(team, at, at, phase, 1, gpus, (Held("h100", "spot", gpus),), who, lost)

    marks = [mark(DAY, Phase.WAITS), mark(END - hours * HOUR, Phase.HOLDS)]
    if loss:
        marks.append(mark(END - HOUR, Phase.HOLDS, Loss("Preempted", loss * HOUR)))
    state, utilization = look
    fold.workload(None, marks, GangUse(team, 1, state, DAY, END, utilization, 1.0, ""))


async def day() -> MemoryStore:
    store = MemoryStore()
    fold = Fold(DAY, END, Terms({}, {"spot": 1.1}))
    gang(fold, "vision", 64, 20.0, (UseState.ACTIVE, 0.62), loss=12.5)
    gang(fold, "speech", 32, 24.0, (UseState.IDLE, 0.0))
    gang(fold, "nlp", 16, 6.0, (UseState.UNKNOWN, None))
    none = Fold(DAY, DAY, Terms())
    await store.usage.keep(none, over=None, until=DAY, upto=0, epoch=0, free={})
    free = {"h100": Free(160, 48, 20.0, 4)}
    await store.usage.keep(fold, over=DAY, until=END, upto=0, epoch=0, free=free)
    return store


def stamp(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat()


@pytest.mark.parametrize("kind", ["usage", "waste", "cost", "waits"])
def test_the_tables_are_what_comes_out(
    kind: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with serving(asyncio.run(day())) as address:
        monkeypatch.setenv("QUEUECTL_SERVER", address)
        period = [f"--since={stamp(DAY)}", f"--until={stamp(END)}"]
        monkeypatch.setattr("sys.argv", ["queuectl", "report", kind, "--by", "label:team", *period])
        with pytest.raises(SystemExit):
            run()
    _, *lines = capsys.readouterr().out.splitlines()
    for line in lines:
        assert line.rstrip() in PAGE, line
