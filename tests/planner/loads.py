"""Pods without a gang, for what counting says of them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from queuectl.planner.model.bounds import Load
from queuectl.planner.problem.topology import Ints


def exceeds(pods: Sequence[tuple[Ints, int]], free: Ints) -> bool:
    """Whether counting says that these pods (vector, count) do not fit nodes with this much free, (R, N)."""
    load = Load(free)
    for vector, count in pods:
        load.put(vector, count, np.ones(free.shape[1], dtype=np.bool_))
    return load.exceeds()
