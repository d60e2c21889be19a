"""How answers are printed: aligned columns for people, JSON, YAML or names for programs."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, Final

import yaml
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from queuectl.api.kinds import ConfigKind

Json = dict[str, Any]

_STYLES: Final = {
    "Running": "green",
    "Starting": "cyan",
    "Reserved": "magenta",
    "Evicting": "yellow",
    "Backoff": "yellow",
    "Held": "dim",
    "Deactivated": "dim",
    "Finished": "dim",
}


class Output(StrEnum):
    """Forms of a listing."""

    TABLE = "table"
    WIDE = "wide"
    JSON = "json"
    YAML = "yaml"
    NAME = "name"


@dataclass(frozen=True, slots=True)
class Column:
    """``wide`` columns are left out of the plain table."""

    title: str
    value: Callable[[Json], object]
    wide: bool = False


def emit_json(body: object) -> None:
    """The answer as the server gave it."""
    sys.stdout.write(json.dumps(body, indent=2, ensure_ascii=False) + "\n")


def emit_yaml(body: object) -> None:
    """The answer as YAML that ``queuectl apply`` reads again."""
    sys.stdout.write(yaml.safe_dump(body, sort_keys=False, allow_unicode=True))


def emit_table(columns: Sequence[Column], rows: Iterable[Json], *, wide: bool) -> None:
    """Aligned columns, never cut or wrapped: they may be read by a program after all."""
    shown = [column for column in columns if wide or not column.wide]
    table = Table(*(c.title for c in shown), box=None, pad_edge=False, padding=(0, 3, 0, 0))
    for column in table.columns:
        column.no_wrap = True
    for row in rows:
        table.add_row(*(_cell(column.value(row)) for column in shown))
    Console(width=natural_width(table), highlight=False).print(table)


def natural_width(table: Table) -> int:
    """Columns the terminal would need for the table to be neither cut nor wrapped."""
    endless = Console(width=100_000)
    return max(Measurement.get(endless, endless.options, table).maximum, 1)


def _cell(value: object) -> Text:
    text = "" if value is None else str(value)
    return Text(text or "-", style=_STYLES.get(text, ""))


def age(moment: str | None, now: datetime | None = None) -> str:
    """Time since an RFC 3339 moment in the shortest form that tells: 45s, 12m, 7h, 3d."""
    if moment is None:
        return ""
    seconds = int(((now or datetime.now(UTC)) - datetime.fromisoformat(moment)).total_seconds())
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= 2 * size:
            return f"{seconds // size}{unit}"
    return f"{max(seconds, 0)}s"


def used(use: Json) -> str:
    """The utilization of a workload's GPUs as people say it; what is not known is not 0 %."""
    known = use["utilization"]
    return "unknown" if known is None else f"{known:.0%}"


def _spec(item: Json) -> Json:
    spec = item.get("spec")
    return spec if isinstance(spec, dict) else {}


def _quotas(item: Json) -> str:
    """Nominal quotas of a ClusterQueue, as ``flavor: 64 nvidia.com/gpu``."""
    parts = []
    for group in _spec(item).get("resourceGroups") or []:
        for flavor in group.get("flavors") or []:
            amounts = ", ".join(
                f"{resource.get('nominalQuota')} {resource.get('name')}"
                for resource in flavor.get("resources") or []
            )
            parts.append(f"{flavor.get('name')}: {amounts}")
    return "; ".join(parts)


def _pairs(mapping: object) -> str:
    return ",".join(f"{k}={v}" for k, v in mapping.items()) if isinstance(mapping, dict) else ""


def _strategies(item: Json) -> list[str]:
    return (item.get("fairSharing") or {}).get("preemptionStrategies") or []


_NAME: Final = Column("NAME", lambda o: o["metadata"]["name"])
_VERSION: Final = Column("VERSION", lambda o: o["metadata"].get("resourceVersion"), wide=True)

_CONFIG: Final[dict[str, tuple[Column, ...]]] = {
    "ClusterQueue": (
        _NAME,
        Column("COHORT", lambda o: _spec(o).get("cohortName")),
        Column("STRATEGY", lambda o: _spec(o).get("queueingStrategy") or "BestEffortFIFO"),
        Column("QUOTA", _quotas),
        Column(
            "PREEMPTION",
            lambda o: (_spec(o).get("preemption") or {}).get("withinClusterQueue") or "Never",
            wide=True,
        ),
        Column("STOP", lambda o: _spec(o).get("stopPolicy"), wide=True),
        _VERSION,
    ),
    "LocalQueue": (
        Column("NAMESPACE", lambda o: o["metadata"].get("namespace")),
        _NAME,
        Column("CLUSTERQUEUE", lambda o: _spec(o).get("clusterQueue")),
        Column("STOP", lambda o: _spec(o).get("stopPolicy"), wide=True),
        _VERSION,
    ),
    "Cohort": (_NAME, Column("PARENT", lambda o: _spec(o).get("parentName")), _VERSION),
    "ResourceFlavor": (
        _NAME,
        Column("TOPOLOGY", lambda o: _spec(o).get("topologyName")),
        Column("NODE LABELS", lambda o: _pairs(_spec(o).get("nodeLabels"))),
        _VERSION,
    ),
    "Topology": (
        _NAME,
        Column(
            "LEVELS",
            lambda o: " > ".join(str(x.get("nodeLabel")) for x in _spec(o).get("levels") or []),
        ),
        _VERSION,
    ),
    "WorkloadPriorityClass": (
        _NAME,
        Column("VALUE", lambda o: o.get("value")),
        Column("DESCRIPTION", lambda o: o.get("description")),
        _VERSION,
    ),
    "Configuration": (
        _NAME,
        Column("FAIR SHARING", lambda o: ",".join(_strategies(o)) or "off"),
        Column(
            "HALF LIFE", lambda o: (o.get("admissionFairSharing") or {}).get("usageHalfLifeTime")
        ),
        Column("START TIMEOUT", lambda o: (o.get("waitForPodsReady") or {}).get("timeout")),
        _VERSION,
    ),
}

WORKLOAD_COLUMNS: Final = (
    Column("NAMESPACE", lambda o: o["namespace"]),
    Column("NAME", lambda o: o["name"]),
    Column("KIND", lambda o: o["kind"]),
    Column("QUEUE", lambda o: o["queue"]),
    Column("PRIORITY", lambda o: o["priority"]),
    Column("GPUS", lambda o: o["gpus"]),
    Column("PODS", lambda o: o["pods"]),
    Column("STATE", lambda o: o["state"]),
    Column("REASON", lambda o: o["reason"]["code"]),
    Column("POSITION", lambda o: o["positionInClusterQueue"]),
    Column("AGE", lambda o: age(o["queuedAt"])),
    Column("CLUSTERQUEUE", lambda o: o["clusterQueue"], wide=True),
    Column("IN LOCALQUEUE", lambda o: o["positionInLocalQueue"], wide=True),
    Column("IN STATE", lambda o: age(o["since"]), wide=True),
    Column("ATTEMPT", lambda o: o["attempt"], wide=True),
    Column("EVICTIONS", lambda o: o["evictions"], wide=True),
    Column("GPU USE", lambda o: (o["use"] or {}).get("state"), wide=True),
    Column("UTILIZATION", lambda o: used(o["use"]) if o["use"] else None, wide=True),
    Column("UID", lambda o: o["uid"], wide=True),
    Column("MESSAGE", lambda o: o["reason"]["message"], wide=True),
)


def config_columns(kind: ConfigKind) -> tuple[Column, ...]:
    """Columns of a configuration kind."""
    return _CONFIG[kind.kind]
