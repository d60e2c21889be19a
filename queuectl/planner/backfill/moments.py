"""Several times as one question: each resource counts once for each time.

A gang asks for its resources at each time at which it holds them, and for nothing at the others. So the searches that place gangs at one
time answer for all of these times at once, with the same proofs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

import numpy as np

from queuectl.planner.problem.problem import Shape
from queuectl.planner.problem.request import GangRequest, Pods, PodSetGroup
from queuectl.planner.problem.topology import Ints

Present: TypeAlias = tuple[bool, ...]
"""At each of the times, whether a gang holds its room."""


@dataclass(eq=False)
class Moments:
    """Requests over several times.

    Attributes:
        free: (R, N) for each time, without the gangs of the question.
    """

    free: Sequence[Ints]
    _shapes: dict[tuple[int, Present], Shape] = field(default_factory=dict)

    @property
    def stacked(self) -> Ints:
        """(R times the number of times, N)."""
        return np.concatenate(self.free)

    def request(self, request: GangRequest, present: Present) -> GangRequest:
        """The request of a gang over all the times."""
        groups = tuple(self._group(group, present) for group in request.podset_groups)
        return replace(request, podset_groups=groups)

    def _group(self, group: PodSetGroup, present: Present) -> PodSetGroup:
        pods = tuple(self._pods(p, present) for p in group.pods)
        bundle = self._pods(group.bundle, present) if group.bundle is not None else None
        return replace(group, pods=pods, bundle=bundle)

    def _pods(self, pods: Pods, present: Present) -> Pods:
        return replace(pods, shape=self._shape(pods.shape, present))

    def _shape(self, shape: Shape, present: Present) -> Shape:
        known = self._shapes.get((shape.key, present))
        if known is None:
            size = len(shape.vector)
            vector = np.concatenate([shape.vector * there for there in present])
            columns = tuple(
                size * at + column
                for column in shape.columns
                for at, there in enumerate(present)
                if there
            )
            known = replace(shape, key=len(self._shapes), vector=vector, columns=columns)
            self._shapes[shape.key, present] = known
        return known
