"""``python -m queuectl.control.careful_process``: the child process of a careful start (:mod:`queuectl.control.careful_child`)."""

from queuectl.control.careful_child import run
from queuectl.control.composition import careful_child

run(careful_child)
