"""The snapshot after a plan: gangs start and leave, victims queue again, nodes fail, gangs arrive, and the configuration changes."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import replace

from queuectl.domain.fleet import Fleet, Node
from queuectl.domain.plan import Plan, Proof
from queuectl.domain.snapshot import Admitted, CapacityLease, Pending, Snapshot
from queuectl.domain.workload import Workload
from tests.planner.generate_features import lose_nodes, snapshot_of, without_level


def following(snapshot: Snapshot, plan: Plan, rng: random.Random) -> Snapshot:
    """The snapshot of the next cycle."""
    now = snapshot.now + rng.choice((1.0, 10.0, 100.0, 1000.0))
    running, left = _running(snapshot, plan, now, rng)
    nodes, running = _failed(snapshot.fleet.nodes, running, rng)
    waiting = [*_waiting(snapshot, plan, rng), *(_again(gang) for gang in left)]
    arriving = _arriving(snapshot, rng)
    states = {state.name: state.nodes for state in plan.reserved}
    occurrences = tuple(
        replace(each, placed=states.get(each.name, each.placed))
        for each in snapshot.reservations
        if each.ends > now
    )
    balances = tuple(replace(b, counted=now) for b in snapshot.budgets)
    made = replace(
        snapshot,
        now=now,
        fleet=Fleet(tuple(nodes)),
        admitted=tuple(running),
        pending=(*waiting, *arriving),
        reservations=occurrences,
        budgets=balances,
    )
    return without_level(made) if rng.random() < 0.1 else made


def _running(
    snapshot: Snapshot, plan: Plan, now: float, rng: random.Random
) -> tuple[list[Admitted], list[Admitted]]:
    """The gangs that hold capacity then, and those that have left and queue again."""
    known = {p.workload.uid: p for p in snapshot.pending}
    repaired = {a.uid: a.placement for a in plan.admitted if a.repaired}
    moves = {m.uid: m.placement for m in plan.moved}
    evicted = {*(p.victim for p in plan.preempted), *(e.uid for e in plan.evicted), *moves}
    found: list[Admitted] = []
    left: list[Admitted] = []
    for gang in snapshot.admitted:
        uid = gang.workload.uid
        if gang.leaving and rng.random() < 0.5:
            left.append(gang)
        elif uid in evicted:
            lease = None
            if uid in moves:
                lease = CapacityLease(moves[uid], (), snapshot.now, snapshot.now + 2000.0)
            stopped = (*gang.evictions, snapshot.now)
            found.append(
                replace(gang, leaving=True, lost=(), returns=True, evictions=stopped, lease=lease)
            )
        elif gang.leaving or not _ended(gang, now, rng):
            placement = repaired.get(uid, gang.placement)
            found.append(
                replace(gang, placement=placement, lost=() if uid in repaired else gang.lost)
            )
    for admission in plan.admitted:
        if (entry := known.get(admission.uid)) is not None:
            run = entry.workload.duration
            found.append(
                Admitted(
                    entry.workload,
                    admission.placement,
                    started_at=snapshot.now,
                    ends_at=snapshot.now + run.seconds if run is not None else None,
                    end_enforced=run is not None and run.enforced,
                )
            )
    return found, left


def _ended(gang: Admitted, now: float, rng: random.Random) -> bool:
    if gang.ends_at is None or gang.ends_at > now:
        return rng.random() < 0.05
    return gang.end_enforced or rng.random() < 0.7


def _again(gang: Admitted) -> Pending:
    """A gang that was evicted, in its queue again, which can lead to another ClusterQueue than at its start."""
    return Pending(replace(gang.workload, charged_queue=None), gang.lease)


def _waiting(snapshot: Snapshot, plan: Plan, rng: random.Random) -> Iterator[Pending]:
    refused = {refusal.uid: refusal for refusal in plan.pending}
    starts = {planned.uid: planned.start for planned in plan.planned}
    for entry in snapshot.pending:
        refusal = refused.get(entry.workload.uid)
        if refusal is None or rng.random() < 0.05:
            continue  # it starts, or is deleted
        open_answers = entry.budget + 1 if refusal.proof is Proof.UNDECIDED else 0
        yield replace(
            entry,
            lease=refusal.lease,
            budget=open_answers,
            planned_start=starts.get(entry.workload.uid),
            ready_checks=entry.ready_checks
            | frozenset(c for c in refusal.checks if rng.random() < 0.3),
        )


def _failed(
    nodes: Sequence[Node], running: list[Admitted], rng: random.Random
) -> tuple[list[Node], list[Admitted]]:
    """A node fails in a third of the cycles, and one is there again in a third."""
    made = list(nodes)
    down = [n.name for n in made if not n.ready]
    if down and rng.random() < 0.3:
        up = rng.choice(down)
        if not any(up in gang.placement.use(gang.workload) for gang in running):
            made = [replace(n, ready=True) if n.name == up else n for n in made]
    ready = [n.name for n in made if n.ready]
    failed = {n.name for n in made if not n.ready}
    if len(ready) > 4 and rng.random() < 0.3:
        failed.add(rng.choice(ready))
    return lose_nodes(made, running, failed)


def _arriving(snapshot: Snapshot, rng: random.Random) -> list[Pending]:
    """A few gangs of another seed, with the queues of this one."""
    names = sorted(snapshot.config.cluster_queues)
    number = rng.randrange(10**6)
    come = [p for p in snapshot_of(number).pending if p.workload.growth is None]
    return [
        replace(entry, workload=_renamed(entry.workload, f"{number}-", rng.choice(names), snapshot))
        for entry in rng.sample(come, min(len(come), rng.randint(0, 5)))
    ]


def _renamed(workload: Workload, prefix: str, queue: str, snapshot: Snapshot) -> Workload:
    uid = f"{prefix}{workload.uid}"
    return replace(workload, uid=uid, name=uid, queue=queue, queued_at=snapshot.now)
