"""The planner: one snapshot in, one plan out. Pure; OR-Tools CP-SAT decides every admission.

- :mod:`planning`, :mod:`batch`, :mod:`answer`: the way from snapshot to plan, the walk in queue order
- :mod:`fleetindex`, :mod:`topology`, :mod:`usage`, :mod:`arena`, :mod:`ledger`: the snapshot as numbers
- :mod:`flavors`, :mod:`choose`, :mod:`asking`, :mod:`demand`, :mod:`split`: what a gang asks, by flavor
- :mod:`decide`, :mod:`packing`, :mod:`solve`: where pods can go; fast paths refuse, order and hint, CP-SAT decides
- :mod:`queueing`, :mod:`leases`, :mod:`owed`: whose turn it is, what quota says, what is kept for whom
- :mod:`victims` and what losing them costs (:mod:`cost`), :mod:`mending`, :mod:`moving`, :mod:`tidying`
- :mod:`explain`, :mod:`why`, :mod:`placing`: the answer in words and in node names
- :mod:`verify`: the independent check of a plan
"""

from queuectl.planner.plan_cycle import plan
from queuectl.planner.solver.solver import StopSignal

__all__ = ["StopSignal", "plan"]
