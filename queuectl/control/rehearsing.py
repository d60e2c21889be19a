"""``python -m queuectl.control.rehearsing``: the child process of a careful start (:mod:`queuectl.control.rehearsal`)."""

from queuectl.control.composition import rehearsed
from queuectl.control.rehearsal import run

run(rehearsed)
