"""The planner: one snapshot in, one plan out. Pure; OR-Tools CP-SAT decides every admission.

Each package is a layer and imports only those below it (the import-linter contract in pyproject.toml). From the top:

- :mod:`explain`: why a pending gang waits, and what would let it start
- :mod:`cycle`: one admission cycle, gang by gang
- :mod:`repair`, :mod:`relocate`, :mod:`consolidate`: running gangs get other nodes
- :mod:`search`: the flavors and sizes of one gang
- :mod:`preempt`: which running gangs to evict for one gang
- :mod:`reasons`: the answers in words
- :mod:`placement`: whether the pods fit, and on which nodes
- :mod:`model`: the CP-SAT model of a placement
- :mod:`capacity`: what is free, at each instant
- :mod:`order`: whose turn it is
- :mod:`problem`: the snapshot as numbers
- :mod:`quota`, :mod:`solver`: the cohort tree, and the interface to CP-SAT

:mod:`verify` checks a plan independently; it shares no code with the rest.
"""

from queuectl.planner.plan_cycle import plan
from queuectl.planner.solver import StopSignal

__all__ = ["StopSignal", "plan"]
