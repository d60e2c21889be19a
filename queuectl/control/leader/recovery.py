"""The ledger rebuilt from the cluster, after the database was lost.

The cluster shows the running pods. Other facts are taken only from fields that tenants cannot write:

- A complete gang with the attempt of the label on its pod template continues to run.
- An incomplete gang, or a gang that is leaving, is stopped and queues again.
- A held or deactivated gang stays so: the admission policies protect this part of the status annotation.
- All other gangs queue, in the order in which their jobs were created, with the priority of their classes.
"""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from queuectl.control.kueue import KueueDetector
from queuectl.control.leader.election import Leadership
from queuectl.control.leader.leader_state import LeaderState
from queuectl.control.ports import Clock, Cluster
from queuectl.control.settings import Settings
from queuectl.db.ports import Commit, LeaderStore
from queuectl.domain.commands import Action, Command
from queuectl.domain.errors import BadInput
from queuectl.domain.events import CommandReceived
from queuectl.domain.ledger import EntryChange, State
from queuectl.domain.reasons import Code
from queuectl.domain.records import Delta
from queuectl.domain.words import counted
from queuectl.lifecycle.machine import handle
from queuectl.lifecycle.observations import joined
from queuectl.objects.kinds import JobKinds
from queuectl.state.mirror import Mirror

BY: Final = "queuectl recover"
_KEPT: Final = re.compile(r"(?P<state>Deactivated|Held|Evicting): (?P<code>\w+)")
_ROUNDS: Final = 5  # of observations; the result of one can change the next


@dataclass(frozen=True, slots=True)
class Recovered:
    """The result of a recovery.

    Attributes:
        states: the number of workloads in each state.
        left_alone: sentences on running jobs without a queue.
    """

    states: Mapping[State, int]
    left_alone: tuple[str, ...] = ()


async def lost(store: LeaderStore, mirror: Mirror) -> str:
    """Why the database cannot be that of the gangs in the cluster; empty if it can.

    Only admission and queuectl write the attempt on a job, so queuectl has started it. ``mirror``: complete.
    Can raise StoreUnavailable.
    """
    started = [job for job in mirror.jobs.values() if job.attempt and job.outcome is None]
    if not started or (await store.load()).entries:
        return ""
    first = min(started, key=lambda job: (job.namespace, job.name))
    return (
        f"the database has no workload, but queuectl has started {counted(len(started), 'job')} that did not end "
        f"({first.kind} {first.namespace}/{first.name}): connect the database that has them, or, if it is lost, run queuectl recover"
    )


async def refuse_workloads(store: LeaderStore) -> None:
    """Raise BadInput if the database has workloads. Can raise StoreUnavailable."""
    if (await store.load()).entries:
        raise BadInput("the database has workloads: it is not one that was lost")


async def recover(
    store: LeaderStore,
    cluster: Cluster,
    settings: Settings,
    clock: Clock,
    leadership: Leadership,
    kinds: JobKinds,
    configure: Callable[[], Awaitable[None]],
) -> Recovered:
    """Write the configuration, by ``configure``, then the ledger.

    Raises:
        BadInput: the database has workloads.
        StoreUnavailable, ClusterUnavailable: no response; finished writes stay, and a retry writes nothing twice.
    """
    await refuse_workloads(store)
    epoch = await leadership.acquire()  # waits while another process leads
    try:
        await configure()
        mirror = Mirror.of(kinds)
        watching = await _listed(mirror, store, cluster)
        try:
            return await _written(mirror, store, settings, clock, epoch)
        finally:
            watching.cancel()
    finally:
        await leadership.release()


async def _listed(mirror: Mirror, store: LeaderStore, cluster: Cluster) -> asyncio.Task[None]:
    """Fill the copy of the cluster. The watch continues in the task."""
    detector = KueueDetector(cluster, store, mirror.kinds)
    kueue = await detector.keys_count()
    missing = mirror.resources
    complete = asyncio.Event()

    def sink(deltas: Sequence[Delta]) -> None:
        mirror.apply(deltas)

    def synced(resource: str) -> None:
        missing.discard(resource)
        if not missing:
            complete.set()

    watching = asyncio.create_task(cluster.watch(sink, synced, kueue=kueue), name="watch")
    await complete.wait()
    mirror.trust_running()
    return watching


async def _written(
    mirror: Mirror, store: LeaderStore, settings: Settings, clock: Clock, epoch: int
) -> Recovered:
    leader_state = LeaderState(
        mirror,
        settings.solver.limits,
        settings.unschedulable_seconds,
        clock,
        max_age_seconds=settings.utilization.fresh_seconds,
    )
    leader_state.load(await store.load())
    left_alone: list[str] = []
    for _ in range(_ROUNDS):
        seen = leader_state.observer.observe(leader_state.config, clock())
        left_alone += leader_state.observer.log_messages
        leader_state.observer.log_messages.clear()
        changes = [_kept(change, mirror, clock()) for change in seen.changes]
        if not changes:
            break
        marked = leader_state.marked(changes)
        await store.commit(Commit(marked), epoch=epoch, cycle=0)
        leader_state.take_in(marked)
        mirror.touched |= {change.after.uid for change in marked}
    states = Counter(entry.state for entry in leader_state.ledger)
    return Recovered({state: states[state] for state in State if states[state]}, tuple(left_alone))


def _kept(change: EntryChange, mirror: Mirror, now: float) -> EntryChange:
    """Hold or deactivate again the gangs whose objects show it and that are new to the ledger."""
    job = mirror.jobs.get(change.after.uid)
    found = _KEPT.match(job.status) if job is not None and change.before is None else None
    if found is None:
        return change
    if found["state"] == State.DEACTIVATED or found["code"] == Code.DEACTIVATED:
        action = Action.DEACTIVATE
    elif found["code"] == Code.HELD:
        action = Action.HOLD
    else:
        return change
    # The cluster does not show whether an administrator held it, so only an administrator can release it.
    person = found["code"] in (Code.HELD, Code.DEACTIVATED)
    command = Command(0, change.after.uid, action, BY, "", now, admin=person)
    return joined(change, handle(change.after, CommandReceived(command), now)) or change
