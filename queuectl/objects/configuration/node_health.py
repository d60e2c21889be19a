"""Reads ``queuectl.nodeHealth`` of a Configuration."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from queuectl.domain.node_health import HealthSignal, NodeHealthRules
from queuectl.objects.configuration import settings_wire as wire
from queuectl.objects.configuration.groups import once
from queuectl.objects.durations import read_duration
from queuectl.objects.errors import RequestError


def read_node_health(asked: wire.NodeHealthSettings) -> NodeHealthRules:
    """Omitted fields have their defaults. Raises RequestError naming field and value."""
    path = "queuectl.nodeHealth"
    given: dict[str, Any] = {
        "mode": asked.mode,
        "throttled_above": asked.throttled_above,
        "most": asked.max_unhealthy,
        "straggler_below": asked.straggler_below,
    }
    if asked.hold is not None:
        given["hold"] = read_duration(asked.hold, f"{path}.hold")
    if asked.conditions is not None:
        given["conditions"] = read_conditions(asked.conditions)
    if asked.signals is not None:
        once(asked.signals, f"{path}.signals:")
        if HealthSignal.CONDITION in asked.signals:
            raise RequestError(f"{path}.signals: {HealthSignal.CONDITION} is set by conditions")
        given["signals"] = tuple(asked.signals)
    if asked.xids is not None:
        once(map(str, asked.xids), f"{path}.xids:")
        given["xids"] = tuple(asked.xids)
    return replace(NodeHealthRules(), **{key: v for key, v in given.items() if v is not None})


def read_conditions(given: wire.NodeConditions) -> tuple[tuple[str, str], ...]:
    """(type, status) of conditions of nodes. YAML reads an unquoted True as a Boolean."""
    return tuple((kind, str(status)) for kind, status in given.items())
