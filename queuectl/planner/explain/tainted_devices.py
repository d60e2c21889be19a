"""The devices that a pending gang could use without their taints, as evidence beside its blocking constraints."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Final

from queuectl.devices.matching import Matching, NotMatched
from queuectl.devices.taints import effective, out_of_placement
from queuectl.domain.devices import DeviceOption
from queuectl.domain.diagnosis import Limit, Obstacle
from queuectl.domain.words import counted
from queuectl.planner.explain.context import Context
from queuectl.planner.reasons.words import some

_OF_NODES: Final = (Limit.FLEET, Limit.SHAPE, Limit.TOPOLOGY, Limit.RUNNING, Limit.HEALTH)
_MOST: Final = 50  # in the details


def with_tainted_devices(ctx: Context, conflict: tuple[Obstacle, ...]) -> tuple[Obstacle, ...]:
    """The blocking constraints; the last one of those about nodes names the devices with taints."""
    at = next((i for i in reversed(range(len(conflict))) if conflict[i].limit in _OF_NODES), None)
    found = list(_tainted(ctx)) if at is not None else []
    if at is None or not found:
        return conflict
    are = "is" if len(found) == 1 else "are"
    listed = some(
        [f"{one['device']} on {one['node']} ({', '.join(one['taints'])})" for one in found]
    )
    text = f"{conflict[at].message}; {counted(len(found), 'device')} {are} not used because of taints: {listed}"
    details = {**conflict[at].details, "taintedDevices": found[:_MOST]}
    return (
        *conflict[:at],
        replace(conflict[at], message=text, details=details),
        *conflict[at + 1 :],
    )


def _tainted(ctx: Context) -> Iterator[dict[str, Any]]:
    """The devices that its requests select, with the taints that none of these requests tolerates."""
    options = dict.fromkeys(_options(ctx))
    devices = ctx.snapshot.devices
    matching = Matching(devices.classes)
    for name in out_of_placement(devices) if options else ():
        node = devices.nodes[name]
        taints: dict[int, set[str]] = {}
        for option in options:
            try:
                selected = matching(option, node)
            except NotMatched:
                continue
            for at in selected:
                bad = {
                    str(taint)
                    for taint in effective(node.devices[at])
                    if not any(one.tolerates(taint) for one in option.tolerations)
                }
                taints[at] = taints.get(at, bad) & bad
        for at in sorted(at for at, bad in taints.items() if bad):
            yield {"node": name, "device": str(node.devices[at].id), "taints": sorted(taints[at])}


def _options(ctx: Context) -> Iterator[DeviceOption]:
    for podset in ctx.pending.workload.podsets:
        devices = podset.shape.devices
        for claim in devices.claims if devices is not None else ():
            for request in claim.requests:
                yield from (option for option in request.options if not option.admin)
