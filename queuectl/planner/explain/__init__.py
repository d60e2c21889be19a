"""Why one gang waits and what would let it start, computed by solving and off the admission path.

- :mod:`diagnosis`: the blocking constraints of a gang, a minimal set, and the table of all kinds of suggested fixes
- :mod:`context`: the gang when the cycle considers it, and what others hold at that moment
- :mod:`left_out`: the gang without some constraints; :mod:`constraints`: each of them in words
- :mod:`relaxation`: would it fit if? :mod:`remedy`: from that to a fix that holds with all gangs before it
- :mod:`change_request`, :mod:`change_queue`, :mod:`change_nodes`, :mod:`others_leave`, :mod:`allow_preemption`: the fixes, by
  what they change; :mod:`fix_checks` plans each of them before it is shown
"""

from queuectl.planner.explain.diagnosis import Reconfiguration, diagnose, diagnose_those

__all__ = ["Reconfiguration", "diagnose", "diagnose_those"]
