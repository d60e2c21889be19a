"""Python imports it at its start: planning fails with each gang whose name begins with ``poison``."""

from queuectl.planner.cycle.cycle import AdmissionCycle

_consider = AdmissionCycle.consider


def _failing(self, pending):
    if pending.workload.name.startswith("poison"):
        message = "a gang that cannot be planned"
        raise ValueError(message)
    return _consider(self, pending)


AdmissionCycle.consider = _failing  # type: ignore[method-assign]
