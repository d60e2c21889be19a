"""Ways out that an admin of queues can go: more quota, or one more flavor."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from queuectl.domain.changes import AllowFlavor
from queuectl.domain.diagnosis import Remedy, Way
from queuectl.domain.queues import FlavorQuotas, ResourceGroup
from queuectl.planner.explain.offer import Idea, finish, offer
from queuectl.planner.explain.trial import ask, past_heads
from queuectl.planner.explain.turn import Turn
from queuectl.planner.reasons.words import amount

_FLAVORS_TRIED: Final = 4


def more_quota(turn: Turn) -> Iterator[Way]:
    """Exactly what is missing, where there are nodes for it."""
    if turn.queue is None:
        return
    verdict = ask(turn, replace(past_heads(turn), uncounted=None))
    if verdict.fits and verdict.short:
        idea = Idea(Remedy.ADD_QUOTA, "add", {}, (), least=True)
        yield from finish(turn, idea, verdict.short)


def one_more_flavor(turn: Turn) -> Iterator[Way]:
    """A flavor that its ClusterQueue does not have, with the quota that the gang takes of it."""
    if turn.queue is None:
        return
    config = turn.snapshot.config
    listed = {q.flavor for group in turn.queue.groups for q in group.flavors}
    for number, group in enumerate(turn.queue.groups):
        nominal = _charges(turn, group)
        for name in sorted(config.flavors.keys() - listed)[:_FLAVORS_TRIED]:
            if not nominal:
                continue
            change = AllowFlavor(turn.queue.name, number, FlavorQuotas(name, nominal))
            world = replace(past_heads(turn), config=change.apply(turn.snapshot).config)
            asked = " + ".join(amount(r, v) for r, v in sorted(nominal.items()) if "/" in r)
            message = f"allow flavor {name} in ClusterQueue {turn.queue.name}"
            message += f", with quota for {asked}" if asked else ""
            details = {"clusterQueue": turn.queue.name, "flavor": name, "nominal": dict(nominal)}
            yield from offer(turn, world, Idea(Remedy.ALLOW_FLAVOR, message, details, (change,)))


def _charges(turn: Turn, group: ResourceGroup) -> dict[str, int]:
    requests = turn.pending.workload.requests
    return {r: requests[r] for r in sorted(group.covered) if requests[r]}
