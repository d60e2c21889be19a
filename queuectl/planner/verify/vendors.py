"""A gang gets GPUs of one vendor, unless its requests name several."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from queuectl.domain.devices import DeviceOption, NodeDevices
from queuectl.domain.errors import QueuectlError
from queuectl.planner.verify.allocations import Selects
from queuectl.planner.verify.plan_index import Claim, PlanIndex, Rule, Violation

_GPUS: Final = "gpu."  # the drivers of each vendor's GPUs have names that begin so


def check_vendors(index: PlanIndex, selects: Selects) -> Iterator[Violation]:
    """Each claim: no option of a request selects GPUs of two drivers on the nodes of all pods together.

    A gang asks for several vendors by several requests or alternatives. Access for administration takes no device.
    """
    for claim in index.claims:
        for option, drivers in _drivers(index, claim, selects).items():
            if len(drivers) > 1:
                text = f"a request for DeviceClass {option.device_class} can get GPUs of {' and '.join(sorted(drivers))}"
                yield Violation(Rule.VENDORS, claim.workload.uid, text)


def _drivers(index: PlanIndex, claim: Claim, selects: Selects) -> dict[DeviceOption, set[str]]:
    """Option of a request to the drivers of the GPUs that it selects on the nodes of its podsets."""
    inventory = index.snapshot.devices.nodes
    found: dict[DeviceOption, set[str]] = {}
    for podset, placed in claim.parts():
        claims = podset.shape.devices.claims if podset.shape.devices is not None else ()
        requests = [request for each in claims for request in each.requests]
        options = dict.fromkeys(o for r in requests for o in r.options if not o.admin)
        for name, _ in placed.nodes if options else ():
            devices = inventory.get(name, NodeDevices())
            for option in options:
                found.setdefault(option, set()).update(_of_node(option, devices, selects))
    return found


def _of_node(option: DeviceOption, devices: NodeDevices, selects: Selects) -> Iterator[str]:
    try:
        chosen = selects(option, devices)
    except QueuectlError:
        return  # the node cannot serve it
    for at in chosen:
        driver = devices.devices[at].kind.driver
        if driver.startswith(_GPUS):
            yield driver
