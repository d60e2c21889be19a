"""The work of a leader up to a verified plan, in a child process that writes nothing.

It lists all objects, observes, plans and verifies with the code of the leader, under limits, and ends with status 0. Before each unit it
leaves a breadcrumb, so that its parent (:mod:`queuectl.control.careful`) knows at which unit it ended.
"""

from __future__ import annotations

import asyncio
import faulthandler
import json
import os
import resource
import sys
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

from queuectl.control.breadcrumb import Breadcrumb
from queuectl.control.careful import NO_MEMORY
from queuectl.control.checked_plan import CheckedPlan, DeviceRows, PlanStep, checked_plan
from queuectl.control.contained_plan import contained_plan
from queuectl.control.kueue import KueueDetector
from queuectl.control.leader.leader_state import LeaderState
from queuectl.control.ports import Clock, Cluster
from queuectl.control.settings import Settings
from queuectl.db.ports import LeaderStore
from queuectl.domain.containment import Boundary, Containment, Suspect, entering, trace
from queuectl.domain.records import Delta
from queuectl.domain.snapshot import Admitted, Pending, Snapshot
from queuectl.objects.kinds import JobKinds
from queuectl.planner import StopSignal
from queuectl.planner.cache import PlannerCache
from queuectl.state.mirror import Mirror


@dataclass(frozen=True, slots=True)
class ChildArguments:
    """The values that the parent gives to its child.

    Attributes:
        database_url: of the database.
        suspects: the units to leave out.
        breadcrumb: the descriptor of its file.
        cpu_seconds: the limit of CPU time.
        memory: the limit of memory, in bytes.
    """

    database_url: str
    suspects: tuple[Suspect, ...]
    breadcrumb: int
    cpu_seconds: int
    memory: int

    @classmethod
    def read(cls, document: Mapping[str, Any]) -> ChildArguments:
        """From the document on standard input."""
        suspects = tuple(
            Suspect(**{**row, "boundary": Boundary(row["boundary"])})
            for row in document["suspects"]
        )
        return cls(**{**document, "suspects": suspects})


class _Units:
    """Leaves a breadcrumb before each unit. Later boundaries know only the key of an object, which an earlier one has named."""

    def __init__(self, crumb: Breadcrumb) -> None:
        self._crumb = crumb
        self._known: dict[str, tuple[str, str]] = {}

    def entered(self, boundary: Boundary, key: str, ref: str, namespace: str) -> None:
        if ref:
            self._known[key] = ref, namespace
        else:
            ref, namespace = self._known.get(key, ("", namespace))
        if boundary is Boundary.GANG:  # then no snapshot of any plan or question has it
            boundary = Boundary.SNAPSHOT
        self._crumb.entered(boundary, key, ref, namespace)


def begin(arguments: ChildArguments, clock: Clock) -> Containment:
    """Limit this process, and report its units. Returns its record, with the suspects."""
    faulthandler.enable()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    seconds = arguments.cpu_seconds
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 1))
    resource.setrlimit(resource.RLIMIT_DATA, (arguments.memory, arguments.memory))
    containment = Containment(clock, lambda _, error: end_without_memory(error))
    containment.suspect(arguments.suspects)
    trace(_Units(Breadcrumb(arguments.breadcrumb)).entered)
    return containment


def end_without_memory(error: BaseException | None) -> None:
    """End this process after a lack of memory, which is not contained here: its unit ends a process with other limits."""
    while error is not None:
        if isinstance(error, MemoryError):
            os._exit(NO_MEMORY)
        error = error.__cause__


async def try_everything(
    store: LeaderStore,
    cluster: Cluster,
    settings: Settings,
    clock: Clock,
    kinds: JobKinds,
    containment: Containment,
) -> None:
    """Do the work of a leader up to a verified plan. It reads only.

    Raises:
        StoreUnavailable, ClusterError: no answer.
    """
    mirror = Mirror.of(kinds, containment)
    await _listed(cluster, KueueDetector(cluster, store, kinds), mirror)
    entering(Boundary.TASK, "ledger")
    state = LeaderState(
        mirror,
        settings.solver.limits,
        settings.unschedulable_seconds,
        clock,
        max_age_seconds=settings.utilization.fresh_seconds,
    )
    mirror.trust_running()
    state.load(await store.load())
    budgets = state.config.budgets
    if budgets:
        state.planning.budgets.learn(budgets, await store.usage.spent(budgets.values(), clock()))
    for change in state.observer.observe(state.config, clock()).changes:
        after = change.after
        entering(Boundary.OBSERVATION, after.uid, f"{after.kind}/{after.ref}", after.namespace)
        state.take_in([change])
    entering(Boundary.TASK, "snapshot")
    if state.anything_to_plan():
        _plan(state.snapshot(seek_room=True))


async def _listed(cluster: Cluster, kueue: KueueDetector, mirror: Mirror) -> None:
    """Fill the copy of the cluster with all objects."""
    missing, synced = mirror.resources, asyncio.Event()

    def complete(resource: str) -> None:
        missing.discard(resource)
        if not missing:
            synced.set()

    entering(Boundary.TASK, "list")
    count = await kueue.keys_count()
    if count:
        mirror.take_over(await kueue.admissions())

    def sink(deltas: Sequence[Delta]) -> None:
        mirror.apply(deltas)

    async with asyncio.TaskGroup() as group:
        watch = group.create_task(cluster.watch(sink, complete, kueue=count))
        await synced.wait()
        watch.cancel()


def _plan(snapshot: Snapshot) -> None:
    """Plan and verify."""
    cache, stop = PlannerCache(), StopSignal()
    _evaluate_claims(snapshot, DeviceRows.of(cache).lowered)

    def within(step: PlanStep) -> AbstractContextManager[None]:
        entering(Boundary.TASK, step.value)
        return nullcontext()

    def plan_once(snapshot: Snapshot) -> CheckedPlan:
        try:
            return checked_plan(snapshot, stop, cache, within)
        except Exception as error:
            end_without_memory(error)
            raise

    contained_plan(snapshot, (), plan_once, stop)


def _evaluate_claims(snapshot: Snapshot, lower: Callable[[Snapshot], object]) -> None:
    """Evaluate the expressions of each gang alone. A plan evaluates those of all gangs together, so it names no gang."""
    seen = set[tuple[object, ...]]()
    gangs: tuple[Pending | Admitted, ...] = (*snapshot.pending, *snapshot.admitted)
    for gang in gangs:
        workload = gang.workload
        asked = tuple(podset.shape.devices for podset in workload.podsets)
        if not any(asked) or asked in seen:
            continue
        seen.add(asked)
        ref = f"{workload.kind}/{workload.ref}"
        entering(Boundary.GANG, workload.uid, ref, workload.namespace)
        pending = (gang,) if isinstance(gang, Pending) else ()
        admitted = (gang,) if isinstance(gang, Admitted) else ()
        lower(replace(snapshot, pending=pending, admitted=admitted))


def run(main: Callable[[ChildArguments], Coroutine[Any, Any, None]]) -> None:
    """Read what the parent gives, and work with it."""
    try:
        asyncio.run(main(ChildArguments.read(json.load(sys.stdin))))
    except* MemoryError:
        os._exit(NO_MEMORY)
