"""Checks of podsets that are split over flavors: the queue allows it, the shares add up, and nothing is torn by it."""

from __future__ import annotations

from collections.abc import Iterator

from queuectl.domain.workload import PodSet, PodSetPlacement, TopologyMode
from queuectl.planner.verify.books import Books, Claim
from queuectl.planner.verify.report import Rule, Violation


def check_shares(books: Books) -> Iterator[Violation]:
    """Every share of every claim; whether its flavors are legal and its nodes theirs is checked with all others."""
    for claim in books.claims:
        uid = claim.workload.uid
        for podset, placed in claim.parts():
            if not placed.shares:
                continue
            if (why := _forbidden(books, claim, podset)) is not None:
                yield Violation(Rule.FLAVOR, uid, f"podset {podset.name} is split, but {why}")
            if (why := _counts(placed, podset)) is not None:
                yield Violation(Rule.WHOLE, uid, f"podset {podset.name}: {why}")
            if (why := _torn(books, podset, placed)) is not None:
                yield Violation(Rule.TOPOLOGY, uid, f"podset {podset.name}: {why}")


def _forbidden(books: Books, claim: Claim, podset: PodSet) -> str | None:
    queue = books.queue_of(claim.workload)
    if podset.group is not None:
        return "podsets of a group share their flavors"
    if claim.running is not None:
        return None  # it keeps what it was given, whatever the queue says by now
    if queue is None or not queue.split_flavors:
        return "its queue does not let podsets be split"
    return None


def _counts(placed: PodSetPlacement, podset: PodSet) -> str | None:
    pods = [share.pods for share in placed.shares]
    if len(pods) < 2 or min(pods) < 1 or sum(pods) != placed.pods_of(podset):
        return f"shares of {pods} pods do not make up its {placed.pods_of(podset)}"
    flavors = [sorted(share.flavors.items()) for share in placed.shares]
    if any(row in flavors[:at] for at, row in enumerate(flavors)):
        return "two shares have the same flavors"
    if dict(placed.flavors) != dict(placed.shares[0].flavors):
        return "its flavors are not those of its first share"
    return None


def _torn(books: Books, podset: PodSet, placed: PodSetPlacement) -> str | None:
    """What must stay in one piece and does not."""
    for layer in podset.topology.slices if podset.topology is not None else ():
        if any(share.pods % layer.size for share in placed.shares):
            return f"a share ends within a slice of {layer.size} pods"
    parts = placed.by_share()
    if len({books.takes_nodes(part) for part in parts}) > 1:
        return "some shares need nodes and others do not"
    required = podset.topology is not None and podset.topology.mode is TopologyMode.REQUIRED
    named = [[topology.name for topology in books.topologies_for(part)] for part in parts]
    if required and any(names != named[0] for names in named):
        return f"requires one domain, but its flavors name the topologies {named}"
    return None
