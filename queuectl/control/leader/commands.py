"""Commands of users, which the leader executes, and pods that a dead node keeps Terminating, which it deletes if an administrator has configured it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from math import inf
from typing import Final

import structlog

from queuectl.control.leader.namespace_tasks import NamespaceTasks, NamespaceWrite
from queuectl.control.leader.schedule import Pauses
from queuectl.control.ports import Cluster
from queuectl.domain.commands import (
    DONE,
    FAILED,
    Action,
    Answer,
    Command,
    objection,
    reserved_to_admins,
)
from queuectl.domain.containment import Boundary, Containment
from queuectl.domain.errors import ClusterError, ObjectGone, WriteConflict
from queuectl.domain.events import CommandReceived
from queuectl.domain.jobs import PodRecord
from queuectl.domain.ledger import Entry, EntryChange, State
from queuectl.domain.rules import Rules
from queuectl.lifecycle.machine import handle
from queuectl.state.ledger import Ledger
from queuectl.state.mirror import Mirror

# ---- Commands of users

NOTHING_NEW = "it was so already"
TOO_LATE = "the time it was for is over"
GONE = "the workload no longer exists"
_COMMANDS: Final = "commands"


def carry_out(
    commands: Iterable[Command],
    ledger: Ledger,
    observed: Iterable[EntryChange],
    now: float,
    rules: Rules,
    command_refusal: Callable[[Entry, Command], str | None],
    containment: Containment,
) -> tuple[list[EntryChange], list[Answer]]:
    """Changes to commit with the observations, and the results of the commands.

    A workload changes once in a commit, and each change has its own line in the history. Thus a command for a workload that
    changes already, or a second command for the same workload, waits for the next commit.

    Args:
        commands: oldest first.
        ledger: as committed.
        observed: changes of the same commit.
        now: unix seconds.
        rules: for notice.
        command_refusal: why the queues do not allow a command; None if they do.
        containment: of commands that fail.
    """
    busy = {change.after.uid for change in observed}
    changes: list[EntryChange] = []
    answers: list[Answer] = []
    for command in commands:
        if command.uid in busy:
            continue
        busy.add(command.uid)
        entry = ledger.get(command.uid)
        if entry is None:
            answers.append(Answer(command.id, GONE))
            continue
        unit = f"{command.action} of {entry.ref}"
        try:
            change, why = _carried_out(entry, command, now, rules, command_refusal)
        except Exception as error:  # noqa: BLE001 - contained
            failed = containment.failed(Boundary.TASK, _COMMANDS, error, unit)
            answers.append(Answer(command.id, FAILED.format(error=failed.error)))
            continue
        containment.passed(Boundary.TASK, _COMMANDS)
        if change is not None:
            changes.append(replace(change, commanded=True))
            answers.append(Answer(command.id, DONE, command.uid))
        else:
            answers.append(Answer(command.id, why or NOTHING_NEW))
    return changes, answers


def _carried_out(
    entry: Entry,
    command: Command,
    now: float,
    rules: Rules,
    command_refusal: Callable[[Entry, Command], str | None],
) -> tuple[EntryChange | None, str | None]:
    """The change, or the reason for which nothing changes."""
    reserved = None if command.admin else reserved_to_admins(entry, command.action)
    why = (
        reserved
        or objection(entry, command.action)
        or _in_the_way(entry, command, now, command_refusal)
    )
    return handle(entry, CommandReceived(command), now, rules) if why is None else None, why


def _in_the_way(
    entry: Entry,
    command: Command,
    now: float,
    command_refusal: Callable[[Entry, Command], str | None],
) -> str | None:
    """Conditions that only the leader knows: the current time, and the commands that the queues allow."""
    if command.action is Action.PRIORITY and command.until is not None and command.until <= now:
        return TOO_LATE
    return command_refusal(entry, command)


# ---- Pods that a dead node keeps Terminating
#
# It deletes only pods of evicting gangs, and only after their node was deleted or not ready for the whole timeout. Each leader measures
# the time itself: a new leader waits for the whole timeout again.

log = structlog.get_logger()

POLL_SECONDS = 1.0
AGAIN_SECONDS = 60.0
"""The time after a deletion in which the pod is not deleted again: a finalizer can keep it. The longest pause after a refusal."""
REASON = "PodForceDeleted"


class ForceDeletion:
    """Deletes the pods that a dead node keeps terminating, for one leadership."""

    def __init__(
        self, cluster: Cluster, mirror: Mirror, ledger: Callable[[], Ledger], dead_seconds: float
    ) -> None:
        """``dead_seconds``: seconds for which a node must be deleted or not ready."""
        self._cluster = cluster
        self._mirror = mirror
        self._ledger = ledger
        self._dead_seconds = dead_seconds
        self._dead_since: dict[str, float] = {}  # by node, on the event loop's clock
        self._tried: dict[str, float] = {}  # by uid of a due pod, on the event loop's clock
        self._deleted: dict[str, float] = {}  # the same, of those that were deleted and still exist
        self._pauses = Pauses[str](POLL_SECONDS, AGAIN_SECONDS)  # the same, after a failure
        self._tasks = NamespaceTasks(Boundary.TASK, mirror.containment)

    async def run(self) -> None:
        """Check periodically until canceled."""
        clock = asyncio.get_running_loop().time
        async with asyncio.TaskGroup() as group:
            while True:
                self._tasks.start_due(group, self._writes(clock()))
                await asyncio.sleep(POLL_SECONDS)

    def _writes(self, now: float) -> list[NamespaceWrite]:
        """The deletions at ``now``: those that were not tried for the longest time come first."""
        due = list(self.due(now))
        self._tried = {pod.uid: self._tried.get(pod.uid, 0.0) for _, pod in due}
        due.sort(key=lambda each: self._tried[each[1].uid])
        return [
            NamespaceWrite(
                pod.namespace,
                pod.uid,
                f"Pod/{pod.namespace}/{pod.name}",
                partial(self._delete, entry, pod),
            )
            for entry, pod in due
        ]

    def due(self, now: float) -> Iterator[tuple[Entry, PodRecord]]:
        """Pods to delete at ``now`` (monotonic seconds), with their gangs."""
        stuck = list(self._stuck(self._ledger().entries(State.EVICTING)))
        nodes = {pod.node for _, pod in stuck if pod.node is not None}
        self._dead_since = {node: self._dead_since.get(node, now) for node in nodes}
        uids = {pod.uid for _, pod in stuck}
        self._deleted = {uid: at for uid, at in self._deleted.items() if uid in uids}
        self._pauses.keep(uids)
        for entry, pod in stuck:
            dead = pod.node is not None and now - self._dead_since[pod.node] >= self._dead_seconds
            kept = now < self._deleted.get(pod.uid, -inf) + AGAIN_SECONDS
            if dead and not kept and self._pauses.over(pod.uid, now):
                yield entry, pod

    def _stuck(self, leaving: Iterable[Entry]) -> Iterator[tuple[Entry, PodRecord]]:
        nodes = self._mirror.nodes
        for entry in leaving:
            for pod in self._mirror.pods_of(entry):
                if pod.terminating and not pod.terminal and pod.node is not None:
                    record = nodes.get(pod.node)
                    if record is None or not record.node.ready:
                        yield entry, pod

    async def _delete(self, entry: Entry, pod: PodRecord) -> None:
        where, clock = f"{pod.namespace}/{pod.name}", asyncio.get_running_loop().time
        self._tried[pod.uid] = clock()
        try:
            await self._cluster.delete_pod(pod.namespace, pod.name, pod.uid, pod.version)
        except (ObjectGone, WriteConflict):
            return  # the watch shows its current state
        except ClusterError as error:
            if self._pauses.failed(pod.uid, error, clock()):
                log.warning("pod_not_force_deleted", pod=where, node=pod.node, error=str(error))
            return
        self._pauses.passed(pod.uid)
        self._deleted[pod.uid] = clock()
        log.warning("pod_force_deleted", pod=where, node=pod.node)
        job = self._mirror.jobs.get(entry.uid)
        if job is not None and job.has_object:
            text = f"pod {pod.name} did not terminate on node {pod.node}, which is deleted or not ready"
            try:
                await self._cluster.create_event(job, "Warning", REASON, text)
            except ClusterError as error:
                log.info("event_not_written", workload=entry.ref, error=str(error))
