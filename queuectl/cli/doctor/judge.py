"""Findings from what was read. Each function handles one subject."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlsplit

from queuectl.cli.doctor.findings import Finding, Level
from queuectl.domain.errors import (
    BadInput,
    DatabaseLoginRefused,
    StoreError,
    StoreUnavailable,
    UnusableSchema,
)
from queuectl.domain.fleet import HOSTNAME
from queuectl.domain.gpus import Gpus, summed
from queuectl.domain.records import LeaderRecord
from queuectl.domain.words import counted, counted_gpus, some

Document = Mapping[str, Any]

BUNDLED_SERVICE: Final = "queuectl-database"
"""The Service of the bundled database (deploy/chart/templates/bundled-database.yaml)."""

_APPLY: Final = "apply the manifests again: docs/how-to/install.md"
_MANY_CALLERS: Final = 3  # with one address
_ANSWERS: Final = (200, 401)  # 401: it works, and the request has no credentials
_LATE: Final = 0.1  # of the lifetime of a certificate; tools renew it earlier
_LISTED: Final = 8  # rights or objects in one message
_FOREIGN: Final = {
    "Kueue": "kueue",
    "Volcano": "volcano",
    "KAI": "kai-scheduler",
    "coscheduling": "coscheduling",
    "YuniKorn": "yunikorn",
}
_ADVICE: Final = {
    "Kueue": "let Kueue keep its jobs (kueueKeys: off), or migrate: docs/how-to/coming-from-kueue.md",
    "coscheduling": "remove its PodGroup label from jobs in queues of queuectl",
}


@dataclass(frozen=True, slots=True)
class CheckedNode:
    """A node. ``gpus``: that it offers, in parts for MIG instances and shared GPUs."""

    name: str
    labels: Mapping[str, str]
    gpus: Gpus
    ready: bool


def server_version(version: str, oldest: str, needs: Sequence[str], *, old: bool) -> list[Finding]:
    """Findings on the version of the API server.

    Args:
        version: the version.
        oldest: the oldest version on which queuectl runs.
        needs: what queuectl needs on this version and on no newer one.
        old: whether queuectl does not run on it.
    """
    if old:
        fix = f"upgrade the cluster to {oldest} or newer"
        return [Finding("cluster", Level.PROBLEM, f"Kubernetes {version} is too old", fix)]
    more = f"; on this version, queuectl needs {' and '.join(needs)}" if needs else ""
    return [Finding("cluster", Level.OK, f"Kubernetes {version}{more}")]


def rights(refused: Sequence[str]) -> list[Finding]:
    """Findings on the rights of queuectl's ServiceAccount. ``refused``: the rights that it lacks."""
    if not refused:
        return [
            Finding("rights", Level.OK, "the ServiceAccount queuectl has all rights that it needs")
        ]
    message = f"the ServiceAccount queuectl lacks rights: {some(refused, _LISTED)}"
    return [Finding("rights", Level.PROBLEM, message, _APPLY)]


def objects(missing: Sequence[str]) -> list[Finding]:
    """Findings on installed policies and priority classes. ``missing``: as ``Kind name``."""
    if missing:
        message = f"not installed: {some(missing, _LISTED)}"
        return [Finding("policies", Level.PROBLEM, message, _APPLY)]
    return [Finding("policies", Level.OK, "all objects of deploy/ are installed")]


def acting(sentences: Sequence[str]) -> list[Finding]:
    """Findings on the effect of the policies. ``sentences``: policies without effect in a dry run."""
    if not sentences:
        return [Finding("policies", Level.OK, "dry runs show that they have effect")]
    fix = f"{_APPLY}, then wait a few seconds for the API server"
    return [Finding("policies", Level.PROBLEM, each, fix) for each in sentences]


def mutation(*, policies: bool, webhook: bool, has_policies: bool) -> list[Finding]:
    """Findings on what changes new jobs.

    Args:
        policies: whether the MutatingAdmissionPolicies are installed.
        webhook: whether the configuration of the webhook is.
        has_policies: whether the API server has the kind MutatingAdmissionPolicy.
    """
    page = "docs/how-to/older-kubernetes.md"
    if policies and webhook:
        message = (
            "the MutatingAdmissionPolicies and the webhook both change new jobs, to the same fields"
        )
        return [
            Finding(
                "policies",
                Level.WARNING,
                message,
                f"remove the webhook: {page}#move-to-the-policies",
            )
        ]
    if policies:
        return [Finding("policies", Level.OK, "the MutatingAdmissionPolicies change new jobs")]
    if webhook:
        later = "; this version has MutatingAdmissionPolicies, which can replace it"
        more = f"{later} ({page}#move-to-the-policies)" if has_policies else ""
        return [Finding("policies", Level.OK, f"the webhook changes new jobs{more}")]
    fix = f"set the value mutation of the chart to auto, then apply it: {page}"
    return [Finding("policies", Level.PROBLEM, "nothing changes new jobs in queues", fix)]


def kinds(declared: int, sentences: Sequence[str]) -> list[Finding]:
    """Findings on the declared job kinds: their number, and their errors."""
    if sentences:
        fix = "correct the value jobKinds of the chart"
        return [Finding("kinds", Level.PROBLEM, each, fix) for each in sentences]
    if not declared:
        return []
    return [Finding("kinds", Level.OK, f"{declared} declared, with fields that exist")]


def leader(record: LeaderRecord | None, now: float, holder: str = "") -> list[Finding]:
    """Findings on the leader.

    Args:
        record: the Lease; None if it does not exist.
        now: Unix seconds.
        holder: the name of this replica in the Lease; empty outside of a replica.
    """
    if record is None or not record.holder:
        message, fix = "there has been no leader yet", "kubectl get pods -n queuectl-system"
        return [Finding("leader", Level.PROBLEM, message, fix)]
    late = now - record.renewed - record.duration
    if late > 0:
        message = (
            f"no leader: the lease of the last leader, {record.holder}, expired {late:.0f} s ago"
        )
        fix = "kubectl logs -n queuectl-system deployment/queuectl, and compare the clocks of the nodes"
        return [Finding("leader", Level.PROBLEM, message, fix)]
    if not holder:
        return [Finding("leader", Level.OK, f"{record.holder} is the leader")]
    here = "this replica" if record.holder == holder else f"this replica, {holder}, is a standby"
    return [Finding("leader", Level.OK, f"{record.holder} is the leader: {here}")]


def reservations(documents: Iterable[Document]) -> list[Finding]:
    """Findings on Reservations that have no placement. ``documents``: all of them."""
    findings = []
    for each in documents:
        status = each.get("status") or {}
        if status.get("phase") == "NotPlaceable":
            message = f"Reservation {each['metadata']['name']}: {status['reason']}"
            fix = "change it: docs/how-to/reservations.md#when-no-placement-exists"
            findings.append(Finding("reserved", Level.WARNING, message, fix))
    return findings


def foreign(deployments: Iterable[Document]) -> list[Finding]:
    """Findings on other gang schedulers in the cluster."""
    found: dict[str, list[str]] = {}
    for each in deployments:
        meta = each["metadata"]
        name = f"{meta['namespace']}/{meta['name']}"
        for controller, word in _FOREIGN.items():
            if any(re.search(rf"(^|[/-]){word}", text) for text in (meta["name"], *_images(each))):
                found.setdefault(controller, []).append(name)
    findings = []
    for controller, names in found.items():
        advice = _ADVICE.get(controller, "let no job in a queue of queuectl use its scheduler")
        message = f"{controller} runs here ({some(names)}): only one of the two may schedule a gang"
        findings.append(Finding("others", Level.WARNING, message, advice))
    return findings or [Finding("others", Level.OK, "no other gang scheduler runs here")]


def _images(deployment: Document) -> list[str]:
    spec = deployment["spec"]["template"]["spec"]
    return [str(container.get("image")) for container in spec.get("containers") or ()]


def nodes(listed: Sequence[CheckedNode]) -> list[Finding]:
    """Findings on GPUs, and on nodes with GPUs that are not ready."""
    with_gpus = [node for node in listed if node.gpus]
    if not with_gpus:
        message = f"none of {len(listed)} nodes offers GPUs"
        fix = "install the vendor's device plugin, and read the logs of its pods"
        return [Finding("nodes", Level.PROBLEM, message, fix)]
    total = summed(node.gpus for node in with_gpus)
    message = f"{counted_gpus(total)} on {len(with_gpus)} of {len(listed)} nodes"
    findings = [Finding("nodes", Level.OK, message)]
    if away := [node.name for node in with_gpus if not node.ready]:
        verb = "is" if len(away) == 1 else "are"
        message = f"{counted(len(away), 'node')} with GPUs {verb} not ready: {some(away)}"
        findings.append(
            Finding("nodes", Level.WARNING, message, f"kubectl describe node {away[0]}")
        )
    return findings


def labels(
    listed: Sequence[CheckedNode], flavors: Sequence[Document], topologies: Sequence[Document]
) -> list[Finding]:
    """Findings on the node labels that ResourceFlavors and Topologies name."""
    levels = {
        topology["metadata"]["name"]: [
            level["nodeLabel"] for level in topology["spec"].get("levels") or ()
        ]
        for topology in topologies
    }
    findings: list[Finding] = []
    taken: set[str] = set()
    for flavor in flavors:
        name, spec = flavor["metadata"]["name"], flavor.get("spec") or {}
        wanted = (spec.get("nodeLabels") or {}).items()
        mine = [node for node in listed if wanted <= node.labels.items()]
        taken |= {node.name for node in mine}
        findings += _flavor(
            name, dict(wanted), mine, levels.get(spec.get("topologyName") or "", [])
        )
    if flavors and (left := [n.name for n in listed if n.gpus and n.name not in taken]):
        match, them = ("matches", "it") if len(left) == 1 else ("match", "them")
        message = f"{counted(len(left), 'node')} with GPUs {match} no ResourceFlavor, so no gang can use {them}: {some(left)}"
        fix = f"add the labels of a ResourceFlavor to {them}, or create a ResourceFlavor for {them}"
        findings.append(Finding("labels", Level.WARNING, message, fix))
    return findings or [
        Finding(
            "labels",
            Level.WARNING,
            "no ResourceFlavor exists yet",
            "queuectl apply -f queues.yaml",
        )
    ]


def _flavor(
    name: str, node_labels: Mapping[str, str], mine: Sequence[CheckedNode], levels: Sequence[str]
) -> list[Finding]:
    """Findings on one flavor: its nodes, and the labels of its Topology."""
    if not mine:
        shown = ",".join(f"{key}={value}" for key, value in node_labels.items())
        message = f"no node matches ResourceFlavor {name} ({shown})"
        return [Finding("labels", Level.WARNING, message, f"kubectl label node NAME {shown}")]
    findings = []
    for label in levels:
        without = [n.name for n in mine if label != HOSTNAME and label not in n.labels]
        if without:
            message = (
                f"{len(without)} of {len(mine)} nodes of ResourceFlavor {name} lack the label {label} of its Topology, "
                f"so gangs with a topology request cannot use them: {some(without)}"
            )
            fix = f"kubectl label node {without[0]} {label}=…"
            findings.append(Finding("labels", Level.PROBLEM, message, fix))
    return findings or [
        Finding(
            "labels",
            Level.OK,
            f"ResourceFlavor {name}: {counted(len(mine), 'node')}, all with the labels of its Topology",
        )
    ]


def readiness(blockers: Sequence[str]) -> list[Finding]:
    """Findings on the readiness of the server."""
    if not blockers:
        return [Finding("server", Level.OK, "ready")]
    fix = "docs/how-to/monitor.md explains each message"
    return [Finding("server", Level.PROBLEM, f"not ready: {each}", fix) for each in blockers]


def rest_api(url: str, status: int) -> list[Finding]:
    """Findings on the REST API, by its answer to a request without credentials. ``status``: of the answer."""
    if status in _ANSWERS:
        return [Finding("rest", Level.OK, f"{url} answers")]
    fix = "read the errors in the log of this pod: docs/how-to/on-call.md#logs"
    return [Finding("rest", Level.PROBLEM, f"{url} answers {status}", fix)]


def certificate(names: Sequence[str], begins: float, ends: float, now: float) -> list[Finding]:
    """Findings on the certificate that the REST API uses.

    Args:
        names: hosts for which it is valid.
        begins: the start of its validity, in Unix seconds.
        ends: the end of its validity, in Unix seconds.
        now: Unix seconds.
    """
    what = f"the certificate for {some(names) or 'no host'}"
    day = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(ends))
    fix = "renew it in its Secret, which needs no restart: docs/how-to/install.md"
    if ends <= now:
        message = f"{what} expired at {day}, so clients refuse the REST API"
        return [Finding("rest", Level.PROBLEM, message, fix)]
    message = f"{what} is valid until {day}"
    if ends - now < _LATE * (ends - begins):
        return [Finding("rest", Level.WARNING, message, fix)]
    return [Finding("rest", Level.OK, message)]


def addresses(callers: float, address_count: float) -> list[Finding]:
    """Findings on the addresses of callers. ``callers``, ``address_count``: the callers of the last hour, and their addresses."""
    if address_count != 1 or callers < _MANY_CALLERS:
        return []
    message = (
        f"all {callers:.0f} callers of the last hour have one address, so they share its limits"
    )
    fix = "set QUEUECTL_TRUSTED_PROXIES to the addresses of the proxy: docs/how-to/expose-api.md#behind-a-proxy"
    return [Finding("callers", Level.WARNING, message, fix)]


def skew(theirs: str | None, ours: str) -> list[Finding]:
    """Findings on the versions. ``theirs``: of the server; ``ours``: of this program."""
    if theirs is None:
        return [Finding("versions", Level.UNKNOWN, "the server does not report its version")]
    if theirs == ours:
        return [Finding("versions", Level.OK, f"the server and this program are version {ours}")]
    message = f"the server is version {theirs}, this program {ours}"
    fix = f"install queuectl {theirs} here, or finish the rollout of {ours}"
    return [Finding("versions", Level.WARNING, message, fix)]


def measured(
    alarms: Mapping[str, float] | None, ask_leader: str, *, leads: bool, trusts: str = ""
) -> list[Finding]:
    """Findings on GPU metrics.

    Args:
        alarms: pods with unknown GPU use, by reason; None = no source of metrics is configured.
        ask_leader: how to examine the leader.
        leads: the server that answered is the leader.
        trusts: the trusted sources of measurements, in words.
    """
    if alarms is None and not leads:
        message = "the server that answered is a standby, and only the leader measures"
        return [Finding("metrics", Level.UNKNOWN, message, ask_leader)]
    if alarms is None:
        message = "no source of GPU metrics is configured, so idle gangs keep their GPUs"
        fix = "set QUEUECTL_PROMETHEUS_URL of the server, or configure exporters: docs/how-to/utilization.md"
        return [Finding("metrics", Level.WARNING, message, fix)]
    bad = {reason: number for reason, number in alarms.items() if number}
    trusted = (
        [Finding("metrics", Level.OK, f"trusted sources of GPU metrics: {trusts}")]
        if trusts
        else []
    )
    if not bad:
        return [Finding("metrics", Level.OK, "the GPU use of all pods is known"), *trusted]
    fix = "docs/how-to/runbook.md has a fix for each reason"
    unknown = [
        Finding(
            "metrics",
            Level.WARNING,
            f"GPU use unknown ({reason}): {counted(round(number), 'pod')}",
            fix,
        )
        for reason, number in bad.items()
    ]
    return unknown + trusted


def contained(aside: Mapping[str, float]) -> list[Finding]:
    """Findings on the units that internal errors set aside. ``aside``: how many, by boundary; empty if the server is older."""
    if not aside:
        return []
    found = [f"{boundary} {number:g}" for boundary, number in aside.items() if number]
    if not found:
        return [
            Finding("containment", Level.OK, "no unit is set aside because of an internal error")
        ]
    message = f"internal errors set units aside, by boundary: {', '.join(found)}"
    return [
        Finding(
            "containment", Level.PROBLEM, message, "docs/how-to/runbook.md, QueuectlUnitSetAside"
        )
    ]


def followed(kinds: Mapping[str, float], edits: Mapping[str, float]) -> list[Finding]:
    """Findings on objects that own the configuration.

    Args:
        kinds: by resource, 1 = its objects are not known; empty if the database owns the configuration, or the server is a standby.
        edits: edits without effect, by status.
    """
    if not kinds:
        return []
    unknown = [resource for resource, value in kinds.items() if value]
    findings = []
    if unknown:
        message = f"objects own the configuration and cannot be read: {some(unknown)}"
        fix = "docs/how-to/runbook.md, QueuectlConfigurationUnknown"
        findings.append(Finding("owner", Level.PROBLEM, message, fix))
    for status in ("faulty", "unconfirmed"):
        if number := edits.get(status, 0):
            message = (
                f"edits of objects that own the configuration have no effect ({status}): {number:g}"
            )
            fix = "queuectl config owner"
            findings.append(Finding("owner", Level.WARNING, message, fix))
    return findings or [Finding("owner", Level.OK, "queuectl follows all objects of the cluster")]


def audit(checked: Mapping[str, Any]) -> list[Finding]:
    """Findings of a complete check of the invariants."""
    fix = "docs/how-to/runbook.md, QueuectlInvariantViolated"
    found = [
        Finding(
            "audit",
            Level.PROBLEM,
            f"{one['kind']} {one['namespace']}/{one['name']}: {one['invariant']}: {one['message']}",
            fix,
        )
        for one in checked["violations"]
    ]
    counts = ", ".join(f"{checked[what]} {what}" for what in ("workloads", "pods", "nodes"))
    return found or [Finding("audit", Level.OK, f"no invariant is violated; checked: {counts}")]


def unusable(address: str, error: BadInput | StoreError, variable: str) -> list[Finding]:
    """Findings on a database that queuectl cannot use.

    Args:
        address: its database, host and role; empty if the URL cannot be read.
        error: why.
        variable: the environment variable with its URL.
    """
    message = f"{address}: {error}" if address else str(error)
    if isinstance(error, DatabaseLoginRefused):
        fix = f"correct the role and the password of {variable}, then restart queuectl; a password file needs no restart"
    elif isinstance(error, StoreUnavailable):
        fix = f"start the database, or correct {variable}: docs/how-to/troubleshoot.md#the-database-does-not-answer"
    elif isinstance(error, UnusableSchema):
        fix = "use the release of the schema, or another database: docs/how-to/upgrade.md"
    else:
        fix = f"correct {variable}: docs/how-to/database.md"
    return [Finding("database", Level.PROBLEM, message, fix)]


def schema(address: str, current: str | None, head: str, *, migrated: bool) -> list[Finding]:
    """Findings on the revision of the database schema.

    Args:
        address: the database, its host and the role.
        current: the revision; None for an empty database.
        head: the revision of this release.
        migrated: no newer release has upgraded it.
    """
    if not migrated:
        message = f"{address}: the schema ({current}) belongs to a newer release, as is normal during a rollout"
        return [Finding("database", Level.WARNING, message, "finish the rollout")]
    if current == head:
        return [Finding("database", Level.OK, f"{address}: reachable, schema {current}")]
    message = f"{address}: the schema is {current or 'empty'}, older than {head}"
    return [Finding("database", Level.PROBLEM, message, "queuectl db upgrade")]


def bundled(url: str) -> list[Finding]:
    """Findings on the server that the chart installs, which the URL shows by its Service."""
    name, _, rest = (urlsplit(url).hostname or "").partition(".")
    if name != BUNDLED_SERVICE or not rest.endswith(".svc"):
        return []
    message = "the bundled database is for evaluation: it has no replica and no backup"
    fix = "move to your own database before production: docs/how-to/move-the-database.md"
    return [Finding("database", Level.WARNING, message, fix)]


def replicas(registered: Sequence[tuple[str, str, bool]], ours: str) -> list[Finding]:
    """Findings on the replicas that are registered in the database.

    Args:
        registered: for each replica its description, its version, and whether its registration has expired.
        ours: the version of this program.
    """
    running = [(text, theirs) for text, theirs, expired in registered if not expired]
    if not running:
        return [Finding("database", Level.WARNING, "no replica is registered", "start queuectl")]
    other_versions = [
        Finding(
            "database",
            Level.WARNING,
            f"a replica of another release is registered: {text}",
            f"finish the rollout of {ours} before `queuectl db upgrade`",
        )
        for text, theirs in running
        if theirs != ours
    ]
    texts = ", ".join(text for text, _ in running)
    return other_versions or [Finding("database", Level.OK, f"registered replicas: {texts}")]
