"""Answers of the model about planned starts. The same question comes with each plan until something on its nodes changes."""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b
from typing import Final

from queuectl.planner.capacity.node_counts import TentativeAdmission
from queuectl.planner.placement.joint import Arrangement
from queuectl.planner.problem.problem import Problem
from queuectl.planner.problem.request import GangRequest
from queuectl.planner.problem.topology import Ints

_KEPT: Final = 2048


class Answers(dict[bytes, Arrangement]):
    """By the digest of the question, the oldest first."""

    def note(self, digest: bytes, answer: Arrangement) -> None:
        """Keep one more."""
        self[digest] = answer
        while len(self) > _KEPT:
            del self[next(iter(self))]


def answers_of(problem: Problem) -> Answers:
    """Those that are known for the nodes of a problem."""
    fleet = problem.snapshot.fleet
    known = problem.cache.get(fleet, Answers)
    return known if known is not None else problem.cache.keep(fleet, Answers())


def digest_of(
    stacked: Iterable[TentativeAdmission], request: GangRequest, free: Ints, budget: int
) -> bytes:
    """The same for equal questions.

    Args:
        stacked: gangs that can be placed elsewhere, over several times (:mod:`queuectl.planner.backfill.moments`).
        request: the new gang over these times.
        free: the capacity at these times, without all of them.
        budget: of the new gang.
    """
    made = blake2b(free.tobytes(), digest_size=16)
    made.update(repr((free.shape, budget)).encode())
    requests = [request]
    for admission in stacked:
        requests.append(admission.request)
        for nodes, counts in admission.node_counts:
            made.update(nodes.tobytes() + counts.tobytes())
    for each in requests:
        made.update(repr(each.signature()).encode())
        for group in each.podset_groups:
            made.update(repr((group.preferred, group.on_one_node)).encode())
        for pods in each.pods:
            made.update(repr((pods.podset, pods.size, pods.balanced)).encode())
            made.update(pods.shape.vector.tobytes())
            made.update(pods.shape.eligible.tobytes())
    return made.digest()
