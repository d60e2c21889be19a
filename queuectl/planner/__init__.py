"""The planner: one snapshot in, one plan out. Pure; OR-Tools CP-SAT decides every admission.

- :mod:`planning`, :mod:`answer`: the way from snapshot to plan
- :mod:`fleetindex`, :mod:`topology`, :mod:`usage`, :mod:`arena`, :mod:`ledger`: the snapshot as numbers
- :mod:`flavors`, :mod:`asking`, :mod:`demand`: what a gang asks, under each choice of flavors
- :mod:`fill`, :mod:`bounds`, :mod:`witness`, :mod:`decide`: fast paths that order, refuse with a proof and hint
- :mod:`cells`, :mod:`model`, :mod:`pack`, :mod:`unpack`, :mod:`joint`, :mod:`solve`: CP-SAT
- :mod:`order`, :mod:`classes`, :mod:`batch`, :mod:`leases`, :mod:`repair`: the walk in queue order
- :mod:`tidy`, :mod:`tidy_rounds`, :mod:`tidy_units`, :mod:`tidy_model`, :mod:`measure`: the same gangs, less scattered
- :mod:`preempt`: victims, and what losing them costs (:mod:`cost`)
- :mod:`explain`, :mod:`placing`: the answer in words and in node names
- :mod:`verify`: the independent check of a plan
"""

from queuectl.planner.planning import plan
from queuectl.planner.solve import StopSignal

__all__ = ["StopSignal", "plan"]
