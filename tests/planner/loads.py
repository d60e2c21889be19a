"""Pods without a gang, and the answer of the counting bound for them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from queuectl.planner.model.counts import GangLoad
from queuectl.planner.problem.fleet import Ints


def exceeds(pods: Sequence[tuple[Ints, int]], free: Ints) -> bool:
    """Whether counting refutes that these pods (vector, count) fit nodes with this free capacity, (R, N)."""
    load = GangLoad(free)
    for vector, count in pods:
        load.put(vector, count, np.ones(free.shape[1], dtype=np.bool_))
    return load.exceeds()
