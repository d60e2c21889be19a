"""The groups of similar work that a gang belongs to."""

from __future__ import annotations

from collections.abc import Hashable
from itertools import product

from queuectl.domain.runs import Work
from queuectl.durations.names import name_pattern


def groups(work: Work) -> tuple[Hashable, ...]:
    """The keys of the groups of a gang, from the most specific to all gangs.

    LocalQueue, user and pattern of the name; LocalQueue and user; LocalQueue and pattern; LocalQueue; ClusterQueue; all. Each of them
    first with the shape and then without. Groups of what is not known are left out.
    """
    local = (work.namespace, work.queue) if work.queue else None
    pattern = name_pattern(work.name)
    wide: list[tuple[str, ...]] = []
    if local is not None:
        if work.user and pattern:
            wide.append(("user and name", *local, work.user, pattern))
        if work.user:
            wide.append(("user", *local, work.user))
        if pattern:
            wide.append(("name", *local, pattern))
        wide.append(("LocalQueue", *local))
    if work.cluster_queue:
        wide.append(("ClusterQueue", work.cluster_queue))
    wide.append(("all",))
    shapes = ((work.pods, work.gpus), None) if work.pods else (None,)
    return tuple(product(wide, shapes))
