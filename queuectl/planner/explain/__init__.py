"""Why one gang waits and what would let it start, computed by solving and off the admission path.

- :mod:`turn`: the world at the gang's turn, by who holds what
- :mod:`known`: a walk that takes over what is planned already
- :mod:`trial`: one "what if" question; :mod:`merge`: the one about cutting pods in pieces
- :mod:`conflict`, :mod:`obstacles`: what stands in its way, reduced, and in words
- :mod:`offer`: from "it would fit if" to a way out that holds for everybody before it
- :mod:`ease`, :mod:`allow`, :mod:`heal`, :mod:`grow`, :mod:`leave`, :mod:`moving`, :mod:`permit`: the ways, by who can go them
- :mod:`usercap`: of a gang whose user holds all that one user may
- :mod:`diagnosing`: all of it
"""

from queuectl.planner.explain.diagnosing import diagnose, diagnose_those

__all__ = ["diagnose", "diagnose_those"]
