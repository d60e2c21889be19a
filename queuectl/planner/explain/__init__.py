"""Why one gang waits and what would let it start, computed by solving and off the admission path.

- :mod:`diagnosis`: the blocking constraints of a gang, a minimal set, and the table of all kinds of suggested fixes
- :mod:`context`: the gang when the cycle considers it, and what others hold at that moment
- :mod:`left_out`: the gang without some constraints; :mod:`constraints`: each of them in words
- :mod:`relaxation`: would it fit if? :mod:`remedy`: from that to a fix that holds beside all gangs before it
- :mod:`change_request`, :mod:`change_queue`, :mod:`change_nodes`, :mod:`mig`, :mod:`others_leave`, :mod:`allow_preemption`: the
  fixes, by what they change; :mod:`fix_checks` plans each of them before it is shown
"""

from queuectl.planner.explain.diagnosis import diagnose, diagnose_those
from queuectl.planner.explain.mig import MigScope, plan_mig, plan_moves

__all__ = ["MigScope", "diagnose", "diagnose_those", "plan_mig", "plan_moves"]
