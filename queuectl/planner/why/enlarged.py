"""The arena of a snapshot after nodes were added to it, from the arena before: what a survey would find, in a tenth of the time."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from queuectl.domain.snapshot import Snapshot
from queuectl.planner.arena import Arena
from queuectl.planner.topology import Ints
from queuectl.planner.usage import Usage


def enlarged(arena: Arena, snapshot: Snapshot) -> Arena:
    """The arena of ``snapshot``, which has the nodes and the running gangs of ``arena`` and a few empty nodes more."""
    index = arena.index.with_more(snapshot.fleet)
    old = np.array([index.position[node.name] for node in arena.index.nodes], dtype=np.int64)

    def wider(matrix: Ints, rest: Ints) -> Ints:
        wide = rest.copy()
        wide[:, old] = matrix
        return wide

    nothing = np.zeros_like(index.allocatable)
    held = wider(arena.usage.held, nothing)
    staying = (
        held if arena.usage.staying is arena.usage.held else wider(arena.usage.staying, nothing)
    )
    entries = {
        key: replace(entry, slots=(old[entry.slots[0]], entry.slots[1]))
        for key, entry in arena.usage.entries.items()
    }
    usage: Usage = replace(arena.usage, entries=entries, held=held, staying=staying)
    now = wider(arena.now, index.allocatable)
    later = now if arena.later is arena.now else wider(arena.later, index.allocatable)
    return Arena(snapshot, index, usage, now, later)
