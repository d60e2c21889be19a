"""A gang whose user holds all that its ClusterQueue lets one user hold: what of his runs, and how it could start.

Nothing else is in its way before that is settled. What would settle it is tried on the changed snapshot, whole walk and all:
his own gangs that wait before it may take what is freed or allowed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import combinations
from typing import Any, Final

from queuectl.domain.changes import Change, FewerPods, Leave, RaiseUserCap, apply_all
from queuectl.domain.diagnosis import Diagnosis, Limit, Obstacle, Remedy, Way
from queuectl.domain.quantity import format_quantity
from queuectl.domain.snapshot import Admitted, Pending
from queuectl.domain.words import counted
from queuectl.domain.workload import Workload
from queuectl.planner.cycle.cycle import AdmissionCycle
from queuectl.planner.order.limits import Bound
from queuectl.planner.plan_cycle import Prepared, begin, turns
from queuectl.planner.problem.partial import shrinks, smallest
from queuectl.planner.problem.problem import survey
from queuectl.planner.reasons.words import amount, some

_ROUNDS: Final = 4  # walks for one way out
_COMBINED: Final = 12  # of his gangs are looked at for the cheapest set

_Held = tuple[Admitted, dict[str, int]]


@dataclass(frozen=True, slots=True)
class Capped:
    """The gang at its turn; ``held``: the gangs of its user in its ClusterQueue."""

    cycle: AdmissionCycle
    pending: Pending
    queue: str
    over: tuple[Bound, ...]
    held: Sequence[_Held]

    @property
    def least(self) -> Workload:
        """Whatever lets the gang start at all lets this start."""
        return smallest(self.pending.workload)


def capped(cycle: AdmissionCycle, pending: Pending) -> Capped | None:
    """The gang whose turn it is, if its user would hold too much with the least of it."""
    least = smallest(pending.workload)
    limits, config = cycle.limits, cycle.problem.snapshot.config
    over = tuple(limits.over_caps(least))
    queue = config.cluster_queue_of(least.namespace, least.queue)
    if queue is None or not over:
        return None
    return Capped(cycle, pending, queue.name, over, limits.users.of_user(least))


def diagnosis_of(turn: Capped) -> Diagnosis:
    """Its one obstacle, and the ways out: of those who leave, the submitter, an admin, the user's own gangs."""
    ways: list[Way] = []
    for finder in (_those_leaving, _fewer_pods, _higher_cap, _own_end):
        if turn.cycle.solver.stop.stopped:
            break
        ways.extend(finder(turn))
    cut = turn.cycle.solver.ended()
    return Diagnosis(turn.least.uid, (_obstacle(turn),), tuple(ways), cut=cut)


def _obstacle(turn: Capped) -> Obstacle:
    first, user = turn.over[0], turn.least.user
    text = (
        f"user: {user} may hold {amount(first.resource, first.most)} in ClusterQueue {turn.queue} "
        f"and holds {_say(first, first.held)}; it needs {_say(first, first.need)}"
    )
    started = sorted(turn.held, key=lambda held: (held[0].started_at, held[0].workload.uid))
    if started:
        text += f"; running there: {some([_named(held, first.resource) for held in started])}"
    details: dict[str, Any] = {
        "clusterQueue": turn.queue,
        "user": user,
        "over": [
            {"resource": o.resource, "most": o.most, "held": o.held, "needed": o.need}
            for o in turn.over
        ],
        "gangs": [
            {
                "workload": gang.workload.ref,
                "holds": dict(sorted(amounts.items())),
                "leaving": gang.leaving,
                "startedAt": gang.started_at,
            }
            for gang, amounts in started
        ],
    }
    return Obstacle(Limit.USER, text, details)


def _those_leaving(turn: Capped) -> Iterator[Way]:
    """Nothing to do: it starts when those of his that are being evicted have left."""
    leaving = [gang.workload for gang, _ in turn.held if gang.leaving]
    change = Leave(tuple(workload.uid for workload in leaving))
    if leaving and _settles(turn, (change,)):
        names = [workload.ref for workload in leaving]
        message = f"wait: it fits once {some(names)} {'has' if len(names) == 1 else 'have'} left"
        yield Way(Remedy.WAIT, message, {"leaving": names}, (change,))


def _fewer_pods(turn: Capped) -> Iterator[Way]:
    """As many pods of its largest podset as its user may still hold."""
    workload = turn.pending.workload
    podset = max(workload.podsets, key=lambda p: (p.count, p.name))
    slices = podset.topology.slices if podset.topology is not None else ()
    step = slices[0].size if slices else 1
    if shrinks(workload):
        return
    limits = turn.cycle.limits
    low, high = 0, podset.count // step  # low is within the cap (or nothing), high is not
    while high - low > 1:
        middle = (low + high) // 2
        part = replace(podset, count=middle * step)
        others = tuple(part if p.name == podset.name else p for p in workload.podsets)
        if any(limits.over_caps(replace(workload, podsets=others))):
            high = middle
        else:
            low = middle
    change = FewerPods(workload.uid, podset.name, low * step)
    if low and _settles(turn, (change,)):
        message = (
            f"start with {low * step} of {counted(podset.count, 'pod')} of podset {podset.name}"
        )
        details = {"podSet": podset.name, "count": low * step, "of": podset.count}
        yield Way(Remedy.FEWER_PODS, message, details, (change,), least=True)


def _higher_cap(turn: Capped) -> Iterator[Way]:
    """Exactly what its user would hold with it, and with those of his that start before it then."""
    caps = {over.resource: over.held + over.need for over in turn.over}
    now = {over.resource: over.most for over in turn.over}
    for tried in range(_ROUNDS):
        changes = tuple(RaiseUserCap(turn.queue, r, most) for r, most in sorted(caps.items()))
        later = _turn_after(turn, changes)
        if later is None:
            return
        again = capped(later[0].cycle, later[1])
        if again is None:
            if _starts(later):
                yield _raised(turn, changes, now, least=not tried)
            return
        for over in again.over:
            now.setdefault(over.resource, over.most)
            caps[over.resource] = over.held + over.need


def _raised(
    turn: Capped, changes: Sequence[RaiseUserCap], now: dict[str, int], *, least: bool
) -> Way:
    said = " and ".join(
        f"{amount(c.resource, c.most)}, {format_quantity(c.resource, c.most - now[c.resource])} more"
        for c in changes
    )
    message = f"let one user hold {said}, in ClusterQueue {turn.queue} (maxPerUser)"
    details = {
        "clusterQueue": turn.queue,
        "maxPerUser": {c.resource: c.most for c in changes},
        "now": {c.resource: now[c.resource] for c in changes},
    }
    return Way(Remedy.RAISE_USER_CAP, message, details, tuple(changes), least)


def _own_end(turn: Capped) -> Iterator[Way]:
    """The fewest of his gangs, of these the smallest, with whose end he holds little enough."""
    running = [held for held in turn.held if not held[0].leaving]
    ending = _fewest(turn, running)
    change = Leave(tuple(gang.workload.uid for gang, _ in ending))
    if not ending or not _settles(turn, (change,)):
        return
    resource = turn.over[0].resource
    names = [_named(held, resource) for held in ending]
    message = f"end {counted(len(ending), 'gang')} of user {turn.least.user}: {some(names)}"
    details = {
        "gangs": [{"workload": gang.workload.ref, "holds": held} for gang, held in ending],
        "user": turn.least.user,
    }
    least = len(turn.over) == 1 or len(ending) == 1
    yield Way(Remedy.END_OTHERS, message, details, (change,), least)


def _fewest(turn: Capped, running: Sequence[_Held]) -> Sequence[_Held]:
    """None where all of them are not enough, or what leaves already is."""

    def enough(ending: Sequence[_Held]) -> bool:
        return all(
            sum(held.get(o.resource, 0) for _, held in ending) >= o.held + o.need - o.most
            for o in turn.over
        )

    def size(ending: Sequence[_Held]) -> tuple[list[int], list[float]]:
        sums = [sum(held.get(o.resource, 0) for _, held in ending) for o in turn.over]
        return sums, sorted(gang.started_at for gang, _ in ending)

    first = turn.over[0].resource
    largest = sorted(running, key=lambda held: (-held[1].get(first, 0), held[0].workload.uid))
    count = next((n for n in range(1, len(largest) + 1) if enough(largest[:n])), None)
    if count is None:
        return ()
    if len(largest) > _COMBINED:
        return largest[:count]
    return min(filter(enough, combinations(largest, count)), key=size)


_Later = tuple[Prepared, Pending]


def _settles(turn: Capped, changes: Sequence[Change]) -> bool:
    later = _turn_after(turn, changes)
    return later is not None and _starts(later)


def _turn_after(turn: Capped, changes: Sequence[Change]) -> _Later | None:
    """The walk on the changed snapshot when it has come to the gang."""
    problem = turn.cycle.problem
    changed = survey(apply_all(changes, problem.snapshot), problem.cache)
    prepared = begin(changed, turn.cycle.solver.stop)
    for pending in turns(prepared):
        if pending.workload.uid == turn.least.uid:
            return prepared, pending
    return None


def _starts(later: _Later) -> bool:
    """Whether it starts, or evicts others and starts when they have left."""
    prepared, pending = later
    prepared.consider(pending)
    uid = pending.workload.uid
    evicts = any(gone.preemptor == uid for gone in prepared.cycle.preempted)
    return evicts or uid in prepared.cycle.starting


def _named(held: _Held, resource: str) -> str:
    gang, amounts = held
    name = f"{gang.workload.ref} ({format_quantity(resource, amounts.get(resource, 0))}"
    if gang.leaving:
        return f"{name}, leaving)"
    if not gang.started_at:
        return f"{name})"
    return f"{name}, since {datetime.fromtimestamp(gang.started_at, UTC):%Y-%m-%d %H:%M:%S} UTC)"


def _say(over: Bound, value: int) -> str:
    return format_quantity(over.resource, value)
