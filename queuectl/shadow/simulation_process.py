"""``python -m queuectl.shadow.simulation_process``: the child process of a simulated report (:mod:`queuectl.shadow.simulation`)."""

from queuectl.shadow.simulation import run

run()
