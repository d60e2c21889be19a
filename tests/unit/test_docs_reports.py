"""The example tables of docs/how-to/reports.md are what the command prints of such a day."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
import time
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from queuectl.cli.main import run
from queuectl.domain.accounting import (
    HOUR,
    AccountingTerms,
    FlavorGpus,
    Free,
    LostWork,
    Mark,
    Subject,
    UsagePhase,
)
from queuectl.domain.cluster_map import ClusterMap
from queuectl.domain.fleet import Node
from queuectl.domain.folding import Fold
from queuectl.domain.queues import ResourceFlavor
from queuectl.domain.utilization import GangUse, UseState
from tests.api.serving import serving
from tests.api.support import FixedLookout
from tests.doubles.store import MemoryStore
from tests.planner.build import gang as gang_of
from tests.planner.build import holding, node, podset, resources, world
from tests.support.counted import map_of
from tests.support.pages import PAGES
from tests.support.samples import all_along

PAGE = PAGES["reports.md"].read_text()
TEAM = PAGES["team.md"].read_text()
OPENCOST = PAGES["opencost.md"].read_text()
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

    def mark(at: float, phase: UsagePhase, lost: LostWork | None = None) -> Mark:
        return Mark(team, at, at, phase, 1, gpus, (FlavorGpus("h100", "spot", gpus),), who, lost)

    marks = [mark(DAY, UsagePhase.WAITS), mark(END - hours * HOUR, UsagePhase.HOLDS)]
    if loss:
        marks.append(mark(END - HOUR, UsagePhase.HOLDS, LostWork("Preempted", loss * HOUR)))
    state, utilization = look
    fold.workload(
        None, marks, all_along(GangUse(team, 1, state, DAY, END, utilization, 1.0, ""), DAY)
    )


async def day() -> MemoryStore:
    store = MemoryStore()
    fold = Fold(DAY, END, AccountingTerms({}, {"spot": 1.1}))
    gang(fold, "vision", 64, 20.0, (UseState.ACTIVE, 0.62), loss=12.5)
    gang(fold, "speech", 32, 24.0, (UseState.IDLE, 0.0))
    gang(fold, "nlp", 16, 6.0, (UseState.UNKNOWN, None))
    none = Fold(DAY, DAY, AccountingTerms())
    await store.usage.keep(none, over=None, until=DAY, marks=(), epoch=0, free={})
    free = {"h100": Free(160, 48, 20.0, 4, 2)}
    await store.usage.keep(fold, over=DAY, until=END, marks=(), epoch=0, free=free)
    return store


def allocations(uid: str, cost: float) -> dict[str, object]:
    """OpenCost's answer without aggregation, with a step of an hour: in each hour the two pods of a gang, and an unmanaged pod."""
    labels = {"vision-0": uid, "vision-1": uid, "unmanaged": None}
    return {
        "code": 200,
        "data": [
            {
                f"cluster/node/team/{pod}/main": {
                    "properties": {
                        "namespace": "team",
                        "pod": pod,
                        "labels": {"queuectl_dev_workload": owner} if owner else None,
                    },
                    "window": {"start": hour(number), "end": hour(number + 1)},
                    "gpuCost": cost,
                    "totalCost": 2 * cost,
                }
                for pod, owner in labels.items()
            }
            for number in range(24)
        ],
    }


def hour(number: int) -> str:
    return datetime.fromtimestamp(DAY + number * HOUR, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def test_allocations_of_opencost_are_joined_as_the_page_describes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    period = [f"--since={stamp(DAY)}", f"--until={stamp(END)}"]
    with serving(asyncio.run(day())) as address:
        monkeypatch.setenv("QUEUECTL_SERVER", address)
        command = ["queuectl", "report", "cost", "--by", "workload,hour", *period, "-o", "csv"]
        monkeypatch.setattr("sys.argv", command)
        with pytest.raises(SystemExit):
            run()
    (tmp_path / "gangs.csv").write_text(capsys.readouterr().out)
    (tmp_path / "opencost.json").write_text(json.dumps(allocations("vision", 40.0)))
    (program,) = re.findall(r"```python\n(.*?)```", OPENCOST, re.DOTALL)
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    rows = [line.split("\t") for line in done.stdout.splitlines()]
    joined = {(at, team): (float(ours), float(theirs)) for at, team, _, ours, theirs in rows}
    assert len(joined) == 3 * 24
    assert joined[hour(4), "vision"] == (64 * 1.1, 80.0)
    assert joined[hour(3), "vision"] == (0.0, 80.0)
    assert joined[hour(4), "speech"] == (32 * 1.1, 0.0)


def stamp(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat()


@pytest.mark.parametrize("kind", ["usage", "waste", "cost", "waits"])
def test_the_tables_are_the_output_of_the_reports(
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


async def week(begins: float, ends: float) -> MemoryStore:
    """The three gangs of team-b in docs/how-to/team.md, with a price of 2.90 for a GPU-hour."""
    store = MemoryStore()
    fold = Fold(begins, ends, AccountingTerms({}, {"h100": 2.9}))
    for name, gpus, waited, started, ran, state, utilization, lost in (
        ("train", 96, 6, 30, 100, UseState.ACTIVE, 0.82, 48),
        ("sweep", 64, 2, 40, 60, UseState.IDLE, 0.0, 0),
        ("eval", 16, 12, 50, 25, UseState.ACTIVE, 0.55, 0),
    ):
        who = Subject(name, "Job", "team-b", name, "training", "team-b", user="bo")
        held = (FlavorGpus("h100", "h100", gpus),)
        loss = LostWork("Preempted", lost * HOUR) if lost else None
        marks = [
            Mark(name, at, at, phase, 1, gpus, held, who, work)
            for at, phase, work in (
                (begins + (started - waited) * HOUR, UsagePhase.WAITS, None),
                (begins + started * HOUR, UsagePhase.HOLDS, None),
                (begins + (started + ran - 1) * HOUR, UsagePhase.HOLDS, loss),
                (begins + (started + ran) * HOUR, UsagePhase.GONE, None),
            )
        ]
        use = GangUse(name, 1, state, begins, ends, utilization, 1.0, "")
        fold.workload(None, marks, all_along(use, begins))
    none = Fold(begins, begins, AccountingTerms())
    await store.usage.keep(none, over=None, until=begins, marks=(), epoch=0, free={})
    await store.usage.keep(fold, over=begins, until=ends, marks=(), epoch=0, free={})
    return store


def test_the_tables_for_team_leads_are_the_output_of_their_commands(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    begins = datetime(2026, 11, 16, tzinfo=UTC).timestamp()
    commands = re.findall(r"^queuectl report .*--since 2026.*$", TEAM, re.MULTILINE)
    assert len(commands) == 4
    with serving(asyncio.run(week(begins, begins + 7 * 24 * HOUR))) as address:
        monkeypatch.setenv("QUEUECTL_SERVER", address)
        for command in commands:
            monkeypatch.setattr("sys.argv", command.split())
            with pytest.raises(SystemExit):
                run()
            printed = "\n".join(map(str.rstrip, capsys.readouterr().out.splitlines()))
            assert f"{command}\n```\n\n```text\n{printed}\n```" in TEAM


MODELS = {
    "h100": {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"},
    "a100": {"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB"},
}


def nodes_of(model: str, count: int) -> list[Node]:
    return [node(f"{model}-{i:02}", gpu=8, labels=MODELS[model]) for i in range(count)]


def cluster() -> ClusterMap:
    """Gangs of whole nodes. One H100 node is cordoned, and half of another one has failed."""
    h100, a100 = nodes_of("h100", 16), nodes_of("a100", 8)
    h100[13] = replace(h100[13], unschedulable=True)
    h100[14] = replace(h100[14], allocatable=resources(gpu=4, pods=110), failed=resources(gpu=4))
    held = {
        "train": (h100[:12], 0.75),
        "asleep": (h100[12:13], 0.0),
        "tune": (a100[:4], 0.75),
        "silent": (a100[4:6], None),
    }
    flavors = [ResourceFlavor(name, tuple(of.items())) for name, of in MODELS.items()]
    admitted = [
        holding(
            gang_of(uid, podset(count=len(on), gpu=8)),
            {each.name: 1 for each in on},
            flavor=on[0].name.partition("-")[0],
        )
        for uid, (on, _) in held.items()
    ]
    uses = {
        uid: GangUse(uid, 1, UseState.ACTIVE, DAY, END, utilization, 1.0, "")
        for uid, (_, utilization) in held.items()
    }
    return map_of(world([*h100, *a100], [], admitted, flavors=flavors), uses)


def test_the_table_of_efficiency_is_the_output_for_such_a_cluster(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with serving(MemoryStore(), cluster_reader=FixedLookout(cluster())) as address:
        monkeypatch.setenv("QUEUECTL_SERVER", address)
        command = ["queuectl", "report", "efficiency", "--by", "nvidia.com/gpu.product"]
        monkeypatch.setattr("sys.argv", command)
        with pytest.raises(SystemExit):
            run()
    _, *lines = capsys.readouterr().out.splitlines()
    for line in lines:
        assert line.rstrip() in PAGE, line
