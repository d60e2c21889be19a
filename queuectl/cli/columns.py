"""Table columns of each kind of object."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from queuectl.cli.render import Column, Json, age, expected, until, used
from queuectl.domain.budgets import holder_of
from queuectl.domain.queues import StopPolicy
from queuectl.domain.words import counted, gpu_count
from queuectl.objects.configuration.config_kinds import ConfigKind


def _amounts(resources: Json) -> str:
    return ", ".join(f"{_short(amount)} {name}" for name, amount in resources.items())


def _transition(line: Json) -> str:
    before = line["fromState"]
    return line["toState"] if before in (None, line["toState"]) else f"{before}>{line['toState']}"


def _status(node: Json) -> str:
    if not node["ready"]:
        return "NotReady"
    if node.get("unhealthy"):
        return "Unhealthy"
    mig = node.get("migReconfiguration")
    if mig and mig["active"]:
        return "Reconfiguring"
    return "Ready" if node["schedulable"] else "Cordoned"


def _short(amount: float) -> str:
    return f"{amount:g}"


def _gpus(name: str) -> Callable[[Json], str]:
    return lambda row: gpu_count(row[name])


def _tenants(node: Json) -> str:
    return ", ".join(f"{each['workload']} ({gpu_count(each['gpus'])})" for each in node["tenants"])


def _largest_free(domain: Json) -> str | None:
    largest = domain["largestFree"]
    return None if largest is None else f"{largest['node']} ({gpu_count(largest['freeGpus'])})"


def _domain_use(domain: Json) -> str | None:
    known = domain["utilization"]
    return None if known is None else f"{known:.0%}"


def placed_nodes(step: Json) -> list[str]:
    """The nodes on which a step placed its workload, by name; empty if it placed none."""
    placement = step.get("placement")
    podsets = placement["podSets"] if placement else []
    return sorted({node for podset in podsets for node in podset["nodes"]})


HISTORY_COLUMNS: Final = (
    Column("TIME", lambda o: o["at"][:19] + "Z"),
    Column("EVENT", lambda o: o["event"]),
    Column("STATE", _transition),
    Column("CYCLE", lambda o: o["cycle"], wide=True),
    Column("ATTEMPT", lambda o: o["attempt"], wide=True),
    Column("NODES", lambda o: ",".join(placed_nodes(o)), wide=True),
    Column("REASON", lambda o: o["reason"]["code"], spare=1),
    Column("MESSAGE", lambda o: o["reason"]["message"], long=True),
)

EVENT_COLUMNS: Final = (
    HISTORY_COLUMNS[0],
    Column("WORKLOAD", lambda o: f"{o['namespace']}/{o['name']}"),
    Column("CLUSTERQUEUE", lambda o: o["clusterQueue"], wide=True),
    *HISTORY_COLUMNS[1:],
)


NODE_COLUMNS: Final = (
    Column("NAME", lambda o: o["name"]),
    Column("STATUS", _status),
    Column("GPUS", _gpus("gpus")),
    Column("FREE", _gpus("freeGpus")),
    Column("FRAGMENTED", _gpus("fragmentedGpus"), wide=True),
    Column("DOMAINS", lambda o: ",".join(f"{k}={v}" for k, v in o["domains"].items()), wide=True),
    Column("WORKLOADS", _tenants, long=True),
)


NODE_SUM_COLUMNS: Final = (
    Column("FLAVOR", lambda o: ",".join(o["flavors"])),
    Column("MODEL", lambda o: o["model"], spare=2),
    Column("NODES", lambda o: o["nodes"]),
    Column("GPUS", _gpus("gpus")),
    Column("USED", _gpus("usedGpus")),
    Column("FREE", _gpus("freeGpus")),
    Column("CORDONED", lambda o: o["closedNodes"], spare=1),
    Column("DOWN", lambda o: o["downNodes"]),
)


DOMAIN_COLUMNS: Final = (
    Column("TOPOLOGY", lambda o: o["topology"]),
    Column("DOMAIN", lambda o: "/".join(o["path"])),
    Column("LEVEL", lambda o: o["level"], spare=3),
    Column("NODES", lambda o: o["nodes"]),
    Column("OPEN", lambda o: o["openNodes"], wide=True),
    Column("GPUS", _gpus("gpus")),
    Column("FREE", _gpus("freeGpus")),
    Column("LARGEST FREE", _largest_free, spare=2),
    Column("FRAGMENTED", _gpus("fragmentedGpus"), wide=True),
    Column("WORKLOADS", lambda o: o["gangs"]),
    Column("USE", _domain_use, spare=1),
)


COMMAND_COLUMNS: Final = (
    Column("ID", lambda o: o["id"]),
    Column("TIME", lambda o: o["at"][:19] + "Z"),
    Column("AGE", lambda o: age(o["at"]), spare=2),
    Column("WORKLOAD", lambda o: o["workload"], spare=3),
    Column("ACTION", lambda o: o["action"]),
    Column("TO", lambda o: o["priority"] if o["queue"] is None else o["queue"]),
    Column("UNTIL", lambda o: o["until"], wide=True),
    Column("BY", lambda o: o["by"], spare=1),
    Column("WHY", lambda o: o["why"], wide=True),
    Column("STATE", lambda o: o["state"]),
    Column("OUTCOME", lambda o: o["outcome"], long=True),
    Column("REQUEST", lambda o: o["requestId"], wide=True),
)


DECISION_COLUMNS: Final = (
    Column("ID", lambda o: o["id"]),
    Column("TIME", lambda o: o["at"][:19] + "Z"),
    Column("AGE", lambda o: age(o["at"]), spare=2),
    Column("STARTED", lambda o: o["started"]),
    Column("GPUS", _gpus("gpusStarted")),
    Column("EVICTED", lambda o: o["evicted"]),
    Column("MOVED", lambda o: o["moved"]),
    Column("PENDING", lambda o: o["waiting"]),
    Column("MILLISECONDS", lambda o: f"{o['milliseconds']:.0f}", spare=1),
    Column("PROOF", lambda o: o["proof"], wide=True),
    Column("NODES", lambda o: o["nodes"], wide=True),
    Column("EPOCH", lambda o: o["epoch"], wide=True),
    Column("CYCLE", lambda o: o["cycle"], wide=True),
    Column("REASONS", lambda o: ", ".join(f"{n} {r}" for r, n in o["reasons"].items()), long=True),
)


def _delivery(name: str) -> Callable[[Json], object]:
    """A sum over the modes of a receiver; nothing for callers that may not see its status."""
    return lambda row: None if row["status"] is None else sum(each[name] for each in row["status"])


def _errors(receiver: Json) -> str:
    return "; ".join(each["error"] for each in receiver["status"] or () if each["error"])


RECEIVER_COLUMNS: Final = (
    Column("NAME", lambda o: o["name"]),
    Column("KIND", lambda o: o["kind"]),
    Column("MODES", lambda o: ",".join(o["modes"])),
    Column("WAITING", _delivery("waiting")),
    Column("DELIVERED", _delivery("delivered"), spare=1),
    Column("DROPPED", _delivery("dropped"), spare=2),
    Column("FAILURES", _delivery("failures")),
    Column("ERROR", _errors, long=True),
)


SUBSCRIPTION_COLUMNS: Final = (
    Column("ID", lambda o: o["id"]),
    Column("OWNER", lambda o: o["owner"], wide=True),
    Column("SCOPE", lambda o: o["scope"]),
    Column("TARGET", lambda o: o["target"], spare=1),
    Column("RECEIVER", lambda o: o["receiver"]),
    Column("MODE", lambda o: o["mode"]),
    Column("EVENTS", lambda o: ",".join(o["events"]) or "all", spare=2),
    Column("WARNING", lambda o: o["warning"], long=True),
)


PAST_USE_COLUMNS: Final = (
    Column("SCOPE", lambda o: o["scope"]),
    Column("NAMESPACE", lambda o: o["namespace"]),
    Column("NAME", lambda o: o["name"]),
    Column("CLUSTERQUEUE", lambda o: o["clusterQueue"], spare=1),
    Column("USAGE", lambda o: None if o["usage"] is None else _short(o["usage"])),
    Column("SHARE", lambda o: None if o["share"] is None else f"{o['share']:.0%}"),
    Column("RESOURCES", lambda o: _amounts(o["resources"]), long=True),
)

UNMANAGED_SUM_COLUMNS: Final = (
    Column("NAMESPACE", lambda o: o["namespace"]),
    Column("PODS", lambda o: o["pods"]),
    Column("GPUS", _gpus("gpus")),
)

UNMANAGED_COLUMNS: Final = (
    Column("POD", lambda o: f"{o['namespace']}/{o['name']}"),
    Column("NODE", lambda o: o["node"], spare=2),
    Column("GPUS", _gpus("gpus")),
    Column("FOR", lambda o: age(o["since"]), spare=1),
    Column("SINCE", lambda o: o["since"], wide=True),
)

AUDIT_COLUMNS: Final = (
    Column("TIME", lambda o: o["at"][:19] + "Z"),
    Column("USER", lambda o: o["caller"]),
    Column("WHAT", lambda o: o["what"]),
    Column("STATUS", lambda o: o["status"], wide=True),
    Column("METHOD", lambda o: o["method"], wide=True),
    Column("PATH", lambda o: o["path"], wide=True),
    Column("OPERATION", lambda o: o["operation"], wide=True),
    Column("REQUEST", lambda o: o["requestId"], wide=True),
    Column("RESULT", lambda o: o["result"], long=True),
)


# ---- configuration and workloads


def _spec(document: Json) -> Json:
    spec = document.get("spec")
    return spec if isinstance(spec, dict) else {}


def _stop(document: Json) -> str | None:
    from queuectl.objects.configuration.stops import stop_of  # slow, and needed after an answer

    policy = stop_of(document)
    return None if policy is StopPolicy.NONE else policy.value


def _quotas(document: Json) -> str:
    """Nominal quotas of a ClusterQueue, as ``flavor: 64 nvidia.com/gpu``."""
    parts = []
    for group in _spec(document).get("resourceGroups") or []:
        for flavor in group.get("flavors") or []:
            amounts = ", ".join(
                f"{resource.get('nominalQuota')} {resource.get('name')}"
                for resource in flavor.get("resources") or []
            )
            parts.append(f"{flavor.get('name')}: {amounts}")
    return "; ".join(parts)


def override_amount(document: Json) -> str:
    """The amount of a QuotaOverride: ``64`` replaces the nominal quota, ``+8`` or ``-8`` changes it."""
    spec = _spec(document)
    if spec.get("nominalQuota") is not None:
        return str(spec["nominalQuota"])
    added = str(spec.get("add"))
    return added if added.startswith("-") else f"+{added}"


def reserved_capacity(document: Json) -> str:
    """The capacity or the nodes of a Reservation: ``16 pods x 8 nvidia.com/gpu``, or ``2 nodes``."""
    spec = _spec(document)
    capacity = spec.get("capacity")
    if not capacity:
        return counted(len(spec.get("nodes") or []), "node")
    asked = " + ".join(f"{amount} {name}" for name, amount in capacity["requests"].items())
    return f"{counted(capacity['pods'], 'pod')} x {asked}"


def _reserved_nodes(document: Json) -> str:
    status = _reservation_status(document)
    names = ",".join(node["name"] for node in status.get("nodes") or [])
    later = f"; earliest {status['earliest']}" if status.get("earliest") else ""
    return names or f"{status.get('reason') or ''}{later}"


def _reservation_status(document: Json) -> Json:
    status: Json = document.get("status") or {}
    return status


def _pairs(mapping: object) -> str:
    return ",".join(f"{k}={v}" for k, v in mapping.items()) if isinstance(mapping, dict) else ""


def _strategies(document: Json) -> list[str]:
    return (document.get("fairSharing") or {}).get("preemptionStrategies") or []


_NAME: Final = Column("NAME", lambda o: o["metadata"]["name"])
_VERSION: Final = Column("VERSION", lambda o: o["metadata"].get("resourceVersion"), wide=True)

_CONFIG: Final[dict[str, tuple[Column, ...]]] = {
    "LocalQueue": (
        Column("NAMESPACE", lambda o: o["metadata"].get("namespace")),
        _NAME,
        Column("CLUSTERQUEUE", lambda o: _spec(o).get("clusterQueue")),
        Column("STOP", _stop, wide=True),
        _VERSION,
    ),
    "QuotaOverride": (
        _NAME,
        Column("CLUSTERQUEUE", lambda o: _spec(o).get("clusterQueue")),
        Column("FLAVOR", lambda o: _spec(o).get("flavor")),
        Column("RESOURCE", lambda o: _spec(o).get("resource")),
        Column("QUOTA", override_amount),
        Column("FROM", lambda o: _spec(o).get("from")),
        Column("UNTIL", lambda o: _spec(o).get("until")),
        Column("REASON", lambda o: _spec(o).get("reason"), wide=True),
        _VERSION,
    ),
    "Budget": (
        _NAME,
        Column("FOR", lambda o: holder_of(_spec(o))),
        Column("GPU-HOURS", lambda o: _spec(o).get("gpuHoursPerMonth")),
        Column("WHEN SPENT", lambda o: _spec(o).get("whenSpent") or "Hold"),
        Column("TIME ZONE", lambda o: _spec(o).get("timeZone") or "UTC", wide=True),
        _VERSION,
    ),
    "BudgetTopUp": (
        _NAME,
        Column("BUDGET", lambda o: _spec(o).get("budget")),
        Column("MONTH", lambda o: _spec(o).get("month")),
        Column("GPU-HOURS", lambda o: f"+{_spec(o).get('gpuHours')}"),
        Column("BY", lambda o: _spec(o).get("by")),
        Column("AT", lambda o: _spec(o).get("at")),
        Column("REASON", lambda o: _spec(o).get("reason"), long=True),
        _VERSION,
    ),
    "Reservation": (
        _NAME,
        Column("CLUSTERQUEUE", lambda o: _spec(o).get("clusterQueue")),
        Column("CAPACITY", reserved_capacity),
        Column("FROM", lambda o: _reservation_status(o).get("from") or _spec(o).get("from")),
        Column("UNTIL", lambda o: _reservation_status(o).get("until") or _spec(o).get("until")),
        Column("PHASE", lambda o: _reservation_status(o).get("phase")),
        Column("RECURRENCE", lambda o: _spec(o).get("recurrence"), wide=True),
        Column("NODES", _reserved_nodes, wide=True),
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
    "AdmissionCheck": (
        _NAME,
        Column("CONTROLLER", lambda o: _spec(o).get("controllerName")),
        Column("PARAMETERS", lambda o: (_spec(o).get("parameters") or {}).get("name")),
        _VERSION,
    ),
    "ProvisioningRequestConfig": (
        _NAME,
        Column("CLASS", lambda o: _spec(o).get("provisioningClassName")),
        Column("RESOURCES", lambda o: ",".join(_spec(o).get("managedResources") or []) or "all"),
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


def _labels(labels: Mapping[str, str]) -> str:
    """As in a selector."""
    return ",".join(f"{name}={label}" for name, label in labels.items())


def _gpu_use(queue: Json) -> str | None:
    """``12/64``, or ``72/64 (8 borrowed)``."""
    gpus = queue["gpus"]
    if gpus is None:
        return None
    used = "?" if gpus["used"] is None else gpu_count(gpus["used"])
    borrowed = f" ({gpu_count(gpus['borrowed'])} borrowed)" if gpus["borrowed"] else ""
    return f"{used}/{gpu_count(gpus['quota'])}{borrowed}"


CLUSTER_QUEUE_COLUMNS: Final = (
    Column("NAME", lambda o: o["name"]),
    Column("GPUS", _gpu_use),
    Column("PENDING", lambda o: o["pending"]),
    Column("RUNNING", lambda o: o["running"]),
    Column("STOPPED", lambda o: None if o["stopPolicy"] == "None" else o["stopPolicy"]),
    Column("COHORT", lambda o: o["cohort"], spare=1),
    Column("INACTIVE", lambda o: o["inactive"], wide=True),
    Column(
        "STRATEGY",
        lambda o: _spec(o["object"]).get("queueingStrategy") or "BestEffortFIFO",
        wide=True,
    ),
    Column("QUOTA", lambda o: _quotas(o["object"]), wide=True, long=True),
    Column(
        "PREEMPTION",
        lambda o: (_spec(o["object"]).get("preemption") or {}).get("withinClusterQueue") or "Never",
        wide=True,
    ),
    Column("VERSION", lambda o: o["object"]["metadata"].get("resourceVersion"), wide=True),
)
"""Of the use of ClusterQueues; ``object`` is the configuration, which a wide table has."""

WORKLOAD_COLUMNS: Final = (
    Column("NAMESPACE", lambda o: o["namespace"]),
    Column("NAME", lambda o: o["name"]),
    Column("KIND", lambda o: o["kind"], spare=4),
    Column("QUEUE", lambda o: o["queue"]),
    Column("PRIORITY", lambda o: o["priority"], spare=5),
    Column("GPUS", _gpus("gpus")),
    Column("PODS", lambda o: o["pods"], spare=6),
    Column("STATE", lambda o: o["state"]),
    Column("REASON", lambda o: o["reason"]["code"], spare=1),
    Column("POSITION", lambda o: o["positionInClusterQueue"], spare=3),
    Column("AGE", lambda o: age(o["queuedAt"])),
    Column("EXPECTED IN", lambda o: expected(o["expectedStart"]), spare=2),
    Column("PLANNED IN", lambda o: until((o["plannedStart"] or {}).get("at")), True, spare=7),
    Column("CLUSTERQUEUE", lambda o: o["clusterQueue"], wide=True, spare=8),
    Column("GPU USE", lambda o: (o["use"] or {}).get("state"), wide=True, spare=9),
    Column("UTILIZATION", lambda o: used(o["use"]) if o["use"] else None, wide=True, spare=10),
    Column("STATE AGE", lambda o: age(o["since"]), wide=True, spare=11),
    Column("ATTEMPT", lambda o: o["attempt"], wide=True, spare=12),
    Column("EVICTIONS", lambda o: o["evictions"], wide=True, spare=13),
    Column("LOCALQUEUE POSITION", lambda o: o["positionInLocalQueue"], wide=True, spare=14),
    Column("LABELS", lambda o: _labels(o.get("labels") or {}), wide=True, spare=15),
    Column("UID", lambda o: o["uid"], wide=True, spare=16),
    Column("MESSAGE", lambda o: o["reason"]["message"], wide=True, spare=6, long=True),
)


def config_columns(kind: ConfigKind) -> tuple[Column, ...]:
    """The columns of a configuration kind; none of ClusterQueues, whose table shows their use."""
    return _CONFIG.get(kind.kind, ())
