"""Values that threads share stay right when another thread asks at a moment between two steps. The moment is fixed: no thread runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, SupportsIndex

import pytest

from queuectl.devices import table
from queuectl.devices.table import NOTHING_READ, AlikeNodes
from queuectl.domain.devices import Device, DeviceId, DeviceKind, NodeDevices
from queuectl.domain.plan import Proof, Refusal
from queuectl.domain.reasons import Code, Reason
from queuectl.domain.snapshot import Pending
from queuectl.domain.workload import Workload
from queuectl.planner.backfill import earliest_start
from queuectl.planner.backfill.earliest_start import Answers
from queuectl.planner.cache import PlannerCache
from queuectl.planner.order.pending_gangs import EqualGangs, pending_gangs
from queuectl.planner.placement.feasible import Arrangement
from queuectl.planner.problem.limit_rows import reservation_of_row, with_limit_rows
from queuectl.planner.solver import Status
from tests.planner.backfill_clock import job
from tests.planner.build import NOW, node, world
from tests.planner.test_advance import cluster, reserved

Ask = Callable[[], object]


class Turn:
    """Another thread asks once, at the next step."""

    ask: Ask | None = None

    def take(self) -> None:
        ask, self.ask = self.ask, None
        if ask is not None:
            ask()


class Gangs(list[Pending]):
    """Gangs of which each reader can be interrupted."""

    def __init__(self, gangs: Any, turn: Turn) -> None:
        super().__init__(gangs)
        self.turn = turn

    def __iter__(self) -> Iterator[Pending]:
        self.turn.take()
        return super().__iter__()

    def __getitem__(self, at: SupportsIndex | slice) -> Any:
        self.turn.take()
        return super().__getitem__(at)


def interrupted() -> tuple[EqualGangs, Turn]:
    """Three equal gangs with different lengths."""
    pending = [job(f"g{n}", 1, 10.0 + n, queued_at=NOW - n, priority=n) for n in range(3)]
    ((group,),) = pending_gangs(
        world([node("n", gpu=1)], pending), PlannerCache()
    ).by_queue.values()
    turn = Turn()
    return replace(group, gangs=Gangs(group.gangs, turn)), turn


def refusal(text: str) -> Refusal:
    return Refusal("g0", (Reason(Code.TOPOLOGY_PLACEMENT_FAILED, text),), None, Proof.OPTIMAL)


def test_a_thread_refuses_gangs_for_its_own_reasons() -> None:
    group, turn = interrupted()
    own, other = refusal("no node is free"), refusal("no node is free in the what-if")
    turn.ask = lambda: group.refuse(0, other)
    refused = group.refuse(0, own)
    assert [each.reasons for each in refused.values()] == [own.reasons] * 3


class Read:
    """A workload of which one field is read while another thread asks."""

    def __init__(self, workload: Workload, field: str, turn: Turn) -> None:
        self._workload, self._field, self._turn = workload, field, turn

    def __getattr__(self, name: str) -> Any:
        if name == self._field:
            self._turn.take()
        return getattr(self._workload, name)


@pytest.mark.parametrize("field", ["duration", "queued_at", "priority"])
def test_lengths_queue_times_and_priorities_stay_apart_when_two_threads_read_them_first(
    field: str,
) -> None:
    group, turn = interrupted()
    workloads = [gang.workload for gang in group.gangs]
    read: Any = [SimpleNamespace(workload=Read(workload, field, turn)) for workload in workloads]
    shared = replace(group, gangs=read)
    turn.ask = lambda: shared.priorities
    assert shared.lengths.tolist() == [w.duration.seconds for w in workloads if w.duration]
    assert shared.queued_at.tolist() == [w.queued_at for w in workloads]
    assert shared.priorities.tolist() == [float(w.priority) for w in workloads]


def test_a_thread_gets_its_nodes_with_rows_although_others_ask_for_other_reservations() -> None:
    cache = PlannerCache()
    snapshot = cluster(reserved(1), pending=[job("g", 1, None, gpu=2)])

    def others() -> None:
        for number in range(4):
            occurrences = (reserved(1, name=f"other-{number}"),)
            with_limit_rows(replace(snapshot, reservations=occurrences), cache)

    turn = Turn()
    pending: Any = Gangs(snapshot.pending, turn)
    asking = replace(snapshot, pending=pending)
    turn.ask = others
    resources = with_limit_rows(asking, cache).fleet.nodes[0].allocatable
    assert "talk" in {reservation_of_row(name) for name in resources}


class ReadAnswers(Answers):
    """Answers of which another thread forgets the oldest between the choice of one and its end."""

    turn: Turn

    def __iter__(self) -> Iterator[bytes]:
        oldest = list(super().__iter__())
        self.turn.take()
        return iter(oldest)


def test_two_threads_can_forget_the_oldest_answer_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(earliest_start, "_KEPT", 2)
    answers = ReadAnswers()
    answers.turn = Turn()
    refuted = Arrangement(Status.REFUTED)
    for name in (b"first", b"second"):
        answers.note(name, refuted)
    answers.turn.ask = lambda: answers.pop(b"first")
    answers.note(b"third", refuted)
    assert dict.keys(answers) == {b"second", b"third"}


def test_devices_can_be_verified_while_those_of_other_nodes_are_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    alike, turn, kinds = AlikeNodes(NOTHING_READ), Turn(), table._kinds
    kept, gone, new = (devices_of(f"driver-{number}") for number in range(3))

    def interrupted_kinds(devices: NodeDevices) -> Iterator[DeviceKind]:
        turn.take()
        return kinds(devices)

    monkeypatch.setattr(table, "_kinds", interrupted_kinds)
    shared = alike.of(kept)
    alike.of(gone)
    turn.ask = lambda: alike.of(new)
    alike.keep([kept])
    assert alike.of(kept) is shared


def devices_of(driver: str) -> NodeDevices:
    return NodeDevices((Device(DeviceId(driver, "pool", "device"), DeviceKind(driver)),))
