"""From "it would fit if" to a way out: with the quota it takes besides, and checked against everybody who comes first.

What changes only the gang itself is exact as it is: nobody before it in line notices. What adds or frees something may be
taken by those before it, so the whole walk up to the gang is done again on the changed snapshot whenever one of them would
like more than it has.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from queuectl.domain.changes import (
    AddNodes,
    AddQuota,
    AllowFlavor,
    Change,
    FewerPods,
    RaisePriority,
    RelaxLevel,
    RelaxRules,
    Withdraw,
    apply_all,
)
from queuectl.domain.diagnosis import Remedy, Way
from queuectl.domain.snapshot import Snapshot
from queuectl.planner.explain.known import know
from queuectl.planner.explain.trial import World, as_it_is, ask, quota_alone
from queuectl.planner.explain.turn import Turn, turn_of
from queuectl.planner.plan_cycle import begin, turns
from queuectl.planner.problem.problem import Problem, enlarged, survey
from queuectl.planner.quota.tree import FlavorResource
from queuectl.planner.reasons.words import amount

_OWN: Final = (RelaxLevel, RelaxRules, FewerPods)
_ROUNDS: Final = 4  # walks for one way out
_SAME_FLEET: Final = (*_OWN, AddQuota, AllowFlavor, RaisePriority, Withdraw)


@dataclass(frozen=True, slots=True)
class Idea:
    """A way out before it is known what it takes besides.

    Attributes:
        remedy: its kind.
        message: what is done, in words.
        details: its sizes.
        changes: what is done.
        least: whether less of it was shown not to be enough.
    """

    remedy: Remedy
    message: str
    details: Mapping[str, Any]
    changes: tuple[Change, ...]
    least: bool = False


def offer(turn: Turn, world: World, idea: Idea) -> Iterator[Way]:
    """A way out, if the gang fits in ``world`` (after the idea), or does with more quota besides; else nothing."""
    verdict = ask(turn, world)
    if not verdict.fits and not quota_alone(turn):
        verdict = ask(turn, replace(world, uncounted=None))
    if verdict.fits:
        yield from finish(turn, idea, verdict.short)


def finish(turn: Turn, idea: Idea, short: Mapping[FlavorResource, int]) -> Iterator[Way]:
    """The idea with the quota that is short besides, and with the priority that takes it past a StrictFIFO head."""
    raised = _past_head(turn, idea)
    quota = settled(turn, (*idea.changes, *raised), short)
    if quota is None:
        return
    message, details = idea.message, dict(idea.details)
    if quota:
        message += f"{', with' if idea.changes else ''} {said(quota)}"
        details["quota"] = plain_quota(quota)
    if raised:
        message += f", and priority {raised[0].priority} or more"
        details["priority"] = raised[0].priority
    changes = (*idea.changes, *quota, *raised)
    least = idea.least and not unsettled(turn, changes)
    yield Way(idea.remedy, message, details, changes, least)


def _past_head(turn: Turn, idea: Idea) -> list[RaisePriority]:
    if turn.head is None or any(isinstance(c, RaisePriority) for c in idea.changes):
        return []
    return [RaisePriority(turn.uid, turn.head.priority + 1)]


def settled(
    turn: Turn, changes: Sequence[Change], short: Mapping[FlavorResource, int]
) -> list[AddQuota] | None:
    """The quota with which the gang starts on the changed snapshot, after everybody before it had his turn.

    Those before it may take what is added: then there is more to add, a few times over. None = it does not start.
    """
    short = dict(short)
    for _ in range(_ROUNDS):
        quota = quota_changes(turn, short)
        everything = (*changes, *quota)
        if not unsettled(turn, everything):
            return quota
        later = turn_after(turn, everything)
        if later is None:
            return None
        world = replace(as_it_is(later), moving=False)
        if ask(later, world).fits:
            return quota
        if not quota:
            return None
        verdict = ask(later, replace(world, uncounted=None))
        if not verdict.fits:
            return None
        for row, more in verdict.short.items():
            short[row] = short.get(row, 0) + more
    return None


def quota_changes(turn: Turn, short: Mapping[FlavorResource, int]) -> list[AddQuota]:
    """Quota that makes up for a shortage, in the gang's own ClusterQueue."""
    if turn.queue is None:
        return []
    return [AddQuota(turn.queue.name, f, r, more) for (f, r), more in sorted(short.items())]


def said(quota: Sequence[AddQuota]) -> str:
    """``32 more nvidia.com/gpu of flavor h100 in ClusterQueue team-a``."""
    parts = [
        f"{amount(q.resource, q.amount).replace(' ', ' more ', 1)} of flavor {q.flavor}"
        for q in quota
    ]
    return f"quota for {' and '.join(parts)} in ClusterQueue {quota[0].queue}"


def plain_quota(quota: Sequence[AddQuota]) -> list[dict[str, Any]]:
    """The same as plain JSON values."""
    return [
        {"clusterQueue": q.queue, "flavor": q.flavor, "resource": q.resource, "amount": q.amount}
        for q in quota
    ]


def unsettled(turn: Turn, changes: Sequence[Change]) -> bool:
    """Whether the gangs before it in line have a say in what these changes lead to."""
    if any(isinstance(change, RaisePriority) for change in changes):
        return True
    return turn.restless and not all(isinstance(change, _OWN) for change in changes)


def turn_after(turn: Turn, changes: Sequence[Change]) -> Turn | None:
    """The gang's turn on the changed snapshot."""
    changed = apply_all(changes, turn.snapshot)
    problem = _arena_after(turn, changes, changed)
    prepared = begin(problem, turn.solver.stop)
    know(prepared.cycle, turn.before)
    if _alike(problem, turn.problem):
        prepared.cycle.classes.share(turn.cycle.classes)
    for pending in turns(prepared):
        if pending.workload.uid == turn.uid:
            return turn_of(prepared.cycle, pending)
    return None


def _arena_after(turn: Turn, changes: Sequence[Change], changed: Snapshot) -> Problem:
    """The arena of the changed snapshot, from the arena before where that is less work."""
    before = turn.problem
    if all(isinstance(change, _SAME_FLEET) for change in changes):
        return replace(before, snapshot=changed)
    if all(isinstance(change, (*_SAME_FLEET, AddNodes)) for change in changes):
        return enlarged(before, changed)
    fresh = survey(changed, before.cache)
    if fresh.index is not before.index:
        return fresh
    return replace(before, snapshot=changed, usage=fresh.usage, now=fresh.now, later=fresh.later)


def _alike(one: Problem, other: Problem) -> bool:
    """Whether gangs ask the same of both: they differ in quotas and in what runs at most."""
    ours, theirs = one.snapshot.config, other.snapshot.config
    return (
        one.index is other.index
        and ours.flavors is theirs.flavors
        and ours.topologies is theirs.topologies
        and ours.rules is theirs.rules
    )
