"""The table shows queuectl's state and the nodes of the pods; without a terminal each change is one line."""

from __future__ import annotations

import io
from datetime import UTC, datetime
from typing import Any

import pytest
from rich.console import Console

from queuectl.demo.audit import AuditFinding
from queuectl.demo.progress_table import ProgressTable, TableState, moment, verdicts
from queuectl.demo.scenario import Gang
from queuectl.demo.scenario import gangs as all_gangs
from queuectl.domain.fleet import Node
from queuectl.domain.jobs import PodRecord
from queuectl.domain.ledger import State
from queuectl.domain.quantity import GPU, Resources
from queuectl.localcluster.nodes import RACK

GANG = all_gangs()[0]
NOW = 1_800_000_000.0
NODES = {name: Node(name, {RACK: f"rack-{name}"}) for name in "abc"}


def stamp(ago: float) -> str:
    return datetime.fromtimestamp(NOW - ago, UTC).isoformat().replace("+00:00", "Z")


def workload(
    state: State,
    code: str = "Queued",
    message: str = "",
    times: dict[str, str | None] | None = None,
    use: str | None = None,
) -> dict[str, Any]:
    times_shown = {"queuedAt": stamp(30), "startedAt": None, "finishedAt": None} | (times or {})
    reason = {"code": code, "message": message}
    seen = {"state": use, "message": f"it is {use}"} if use is not None else None
    said = {"uid": "u", "state": state.value, "priority": 100, "reason": reason, "use": seen}
    return said | times_shown


def pods(*nodes: str) -> list[PodRecord]:
    return [
        PodRecord("team-b", f"p{i}", f"p{i}", 1, Resources({GPU: 8}), "u", node=node)
        for i, node in enumerate(nodes)
    ]


def look(
    said: dict[str, Any] | None, placed: list[PodRecord], before: TableState | None = None
) -> TableState:
    workloads = {} if said is None else {GANG.ref: said}
    return moment(NOW, NOW - 1, [GANG], workloads, NODES, placed, before)


def test_a_gang_queuectl_does_not_know_yet_has_no_state():
    [row] = look(None, []).rows
    assert (row.state, row.racks) == (None, "")


@pytest.mark.parametrize(
    ("nodes", "where"),
    [("aa", "rack-a"), ("ba", "rack-a rack-b"), ("abc", "rack-a rack-b +1")],
)
def test_where_names_the_racks_of_its_pods(nodes: str, where: str):
    [row] = look(workload(State.RUNNING), pods(*nodes)).rows
    assert row.racks == where


def test_gpus_are_counted_from_the_pods():
    now = look(workload(State.RUNNING), pods("a", "a", "b"))
    assert now.gpus == 24
    assert now.racks == {"rack-a": 16, "rack-b": 8, "rack-c": 0}
    assert now.sentence == "24/512 GPUs in use on 2/3 racks; 1 running"


def test_a_gang_whose_pods_end_keeps_the_place_it_had():
    running = look(workload(State.RUNNING), pods("a", "b"))
    ending = look(workload(State.RUNNING), pods("b"), running)
    done = look(workload(State.FINISHED, "Succeeded"), [], ending)
    assert [m.rows[0].racks for m in (ending, done)] == ["rack-a rack-b"] * 2


def test_a_gang_that_waits_again_is_nowhere():
    running = look(workload(State.RUNNING), pods("a"))
    [row] = look(workload(State.PENDING), [], running).rows
    assert row.racks == ""


@pytest.mark.parametrize(
    ("times", "seconds"),
    [({}, 30), ({"startedAt": stamp(20)}, 10), ({"startedAt": None, "finishedAt": stamp(5)}, 25)],
)
def test_waiting_ends_with_the_latest_start(times: dict[str, str | None], seconds: float):
    [row] = look(workload(State.PENDING, times=times), []).rows
    assert row.waited == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("state", "code", "shown"),
    [
        (State.PENDING, "WaitingForQuota", "WaitingForQuota"),
        (State.EVICTING, "Preempted", "Preempted"),
        (State.RUNNING, "PodsReady", ""),
        (State.FINISHED, "Succeeded", ""),
        (State.FINISHED, "Failed", "Failed"),
    ],
)
def test_a_reason_is_shown_where_the_state_does_not_say_it_all(state: State, code: str, shown: str):
    [row] = look(workload(state, code), []).rows
    assert row.code == shown


def lines(*moments: TableState) -> list[str]:
    out = io.StringIO()
    with ProgressTable(Console(file=out, width=80)) as board:
        for one in moments:
            board.show(one)
    return [line for line in out.getvalue().splitlines() if GANG.ref in line]


def test_without_a_terminal_each_change_is_one_line():
    waiting = look(workload(State.PENDING, "WaitingForQuota", "waits for quota"), [])
    running = look(workload(State.RUNNING), pods("a"))
    said = lines(waiting, waiting, running, running)
    assert len(said) == 2
    assert said[0].split()[-5:] == ["Pending", "WaitingForQuota", "waits", "for", "quota"]
    assert said[1].split()[-2:] == ["Running", "rack-a"]


def test_idle_gpus_are_reported_once_and_busy_gpus_never():
    starts, works, idles = (
        look(workload(State.RUNNING, use=use), pods("a")) for use in ("Warmup", "Active", "Idle")
    )
    said = lines(starts, works, idles, idles)
    assert len(said) == 2
    assert said[1].split()[-6:] == ["Running", "rack-a", "Idle", "it", "is", "Idle"]


def test_on_a_terminal_the_table_holds_every_gang():
    out = io.StringIO()
    gangs: list[Gang] = all_gangs()
    now = moment(NOW, NOW - 1, gangs, {GANG.ref: workload(State.RUNNING)}, NODES, pods("a"), None)
    with ProgressTable(Console(file=out, width=140, height=50, force_terminal=True)) as board:
        board.show(now)
    shown = out.getvalue()
    assert all(gang.name in shown for gang in gangs)
    assert "8/512 GPUs in use" in shown


def test_verdicts_mark_each_finding_and_list_its_problems():
    good = AuditFinding("fine", "3 of 3")
    bad = AuditFinding("broken", "1 of 3", tuple(f"problem {i}" for i in range(7)))
    said = [line.plain for line in verdicts([good, bad])]
    assert said[0] == "✓ fine: 3 of 3"
    assert said[1] == "✗ broken: 1 of 3"
    assert said[-1].strip() == "and 2 more"
