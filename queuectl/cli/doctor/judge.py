"""What facts mean for queuectl. Each function judges one thing."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from queuectl.cli.doctor.findings import Finding, Level, some
from queuectl.domain.fleet import HOSTNAME
from queuectl.domain.records import LeaderRecord

Document = Mapping[str, Any]

_APPLY: Final = "kubectl apply -f deploy/"
_LISTED: Final = 8  # rights or objects that are named
_FOREIGN: Final = {
    "Kueue": "kueue",
    "Volcano": "volcano",
    "KAI": "kai-scheduler",
    "coscheduling": "coscheduling",
    "YuniKorn": "yunikorn",
}
_ADVICE: Final = {
    "Kueue": "leave its jobs to it (kueueKeys: off), or move over: docs/how-to/coming-from-kueue.md",
    "coscheduling": "let no job with a queue of queuectl carry its PodGroup label",
}


@dataclass(frozen=True, slots=True)
class Node:
    """``gpus``: devices it offers."""

    name: str
    labels: Mapping[str, str]
    gpus: int
    ready: bool


def server_version(found: tuple[int, int], needed: tuple[int, int]) -> list[Finding]:
    """Whether the API server is new enough."""
    has, needs = (".".join(map(str, one)) for one in (found, needed))
    if found >= needed:
        return [Finding("cluster", Level.OK, f"Kubernetes {has}")]
    return [
        Finding(
            "cluster",
            Level.PROBLEM,
            f"Kubernetes {has} is too old",
            f"upgrade the cluster to {needs} or newer",
        )
    ]


def rights(refused: Sequence[str]) -> list[Finding]:
    """Whether queuectl's service account may do what it must. ``refused``: what it may not."""
    if not refused:
        return [Finding("rights", Level.OK, "the service account queuectl may do all it needs")]
    message = f"the service account queuectl may not {some(refused, _LISTED)}"
    return [Finding("rights", Level.PROBLEM, message, _APPLY)]


def objects(missing: Sequence[str]) -> list[Finding]:
    """Whether policies and priority class are there. ``missing``: as ``Kind name``."""
    if missing:
        message = f"not installed: {some(missing, _LISTED)}"
        return [Finding("policies", Level.PROBLEM, message, _APPLY)]
    return [Finding("policies", Level.OK, "all objects of deploy/ are there")]


def acting(sentences: Sequence[str]) -> list[Finding]:
    """Whether the policies act. ``sentences``: what a dry run found missing."""
    if not sentences:
        return [Finding("policies", Level.OK, "dry runs show that they act")]
    mend = f"{_APPLY}, and give the API server some seconds"
    return [Finding("policies", Level.PROBLEM, each, mend) for each in sentences]


def leader(record: LeaderRecord | None, now: float) -> list[Finding]:
    """Whether somebody leads."""
    if record is None or not record.holder:
        message, mend = "nobody has ever led", "kubectl get pods -n queuectl-system"
        return [Finding("leader", Level.PROBLEM, message, mend)]
    late = now - record.renewed - record.duration
    if late > 0:
        message = f"{record.holder} led last, and its lease ended {late:.0f} s ago: nobody decides"
        mend = "kubectl logs -n queuectl-system deployment/queuectl, or see whether clocks differ"
        return [Finding("leader", Level.PROBLEM, message, mend)]
    return [Finding("leader", Level.OK, f"{record.holder} leads")]


def foreign(deployments: Iterable[Document]) -> list[Finding]:
    """Who else decides on gangs in this cluster."""
    found: dict[str, list[str]] = {}
    for each in deployments:
        meta = each["metadata"]
        name = f"{meta['namespace']}/{meta['name']}"
        for controller, word in _FOREIGN.items():
            if any(re.search(rf"(^|[/-]){word}", text) for text in (meta["name"], *_images(each))):
                found.setdefault(controller, []).append(name)
    findings = []
    for controller, names in found.items():
        advice = _ADVICE.get(controller, "let no job with a queue of queuectl name its scheduler")
        message = f"{controller} runs here ({some(names)}): two must not decide on the same gang"
        findings.append(Finding("others", Level.WARNING, message, advice))
    return findings or [Finding("others", Level.OK, "no other gang controller runs here")]


def _images(deployment: Document) -> list[str]:
    spec = deployment["spec"]["template"]["spec"]
    return [str(container.get("image")) for container in spec.get("containers") or ()]


def nodes(found: Sequence[Node]) -> list[Finding]:
    """Whether there are GPUs, on nodes that are ready."""
    with_gpus = [node for node in found if node.gpus]
    if not with_gpus:
        message = f"none of {len(found)} nodes offers GPUs"
        mend = "install the vendor's device plugin, and see its pods' logs"
        return [Finding("nodes", Level.PROBLEM, message, mend)]
    total = sum(node.gpus for node in with_gpus)
    message = f"{total} GPUs on {len(with_gpus)} of {len(found)} nodes"
    findings = [Finding("nodes", Level.OK, message)]
    if away := [node.name for node in with_gpus if not node.ready]:
        message = f"{len(away)} nodes with GPUs are not ready: {some(away)}"
        findings.append(
            Finding("nodes", Level.WARNING, message, f"kubectl describe node {away[0]}")
        )
    return findings


def labels(
    found: Sequence[Node], flavors: Sequence[Document], topologies: Sequence[Document]
) -> list[Finding]:
    """Whether nodes carry the labels that flavors choose by and topologies go by."""
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
        mine = [node for node in found if wanted <= node.labels.items()]
        taken |= {node.name for node in mine}
        findings += _flavor(
            name, dict(wanted), mine, levels.get(spec.get("topologyName") or "", [])
        )
    if flavors and (left := [n.name for n in found if n.gpus and n.name not in taken]):
        message = f"{len(left)} nodes with GPUs belong to no ResourceFlavor, so nobody gets them: {some(left)}"
        mend = "label them as a flavor says, or write a flavor for them"
        findings.append(Finding("labels", Level.WARNING, message, mend))
    return findings or [
        Finding(
            "labels",
            Level.WARNING,
            "there is no ResourceFlavor yet",
            "queuectl apply -f queues.yaml",
        )
    ]


def _flavor(
    name: str, wanted: Mapping[str, str], mine: Sequence[Node], levels: Sequence[str]
) -> list[Finding]:
    """One flavor, its nodes, and the labels of its topology."""
    if not mine:
        shown = ",".join(f"{key}={value}" for key, value in wanted.items())
        message = f"no node is of ResourceFlavor {name} ({shown})"
        return [Finding("labels", Level.WARNING, message, f"kubectl label node NODE {shown}")]
    findings = []
    for label in levels:
        without = [n.name for n in mine if label != HOSTNAME and label not in n.labels]
        if without:
            message = (
                f"{len(without)} of {len(mine)} nodes of ResourceFlavor {name} lack the label {label} of its Topology, "
                f"so gangs that ask for a domain get no place there: {some(without)}"
            )
            mend = f"kubectl label node {without[0]} {label}=…"
            findings.append(Finding("labels", Level.PROBLEM, message, mend))
    return findings or [
        Finding("labels", Level.OK, f"ResourceFlavor {name}: {len(mine)} nodes, all labelled")
    ]


def readiness(blockers: Sequence[str]) -> list[Finding]:
    """Whether the server says it is ready."""
    if not blockers:
        return [Finding("server", Level.OK, "it answers, and is ready")]
    mend = "docs/how-to/operate.md says what each sentence means"
    return [Finding("server", Level.PROBLEM, f"not ready: {each}", mend) for each in blockers]


def skew(theirs: str | None, ours: str) -> list[Finding]:
    """Whether server and command line are of one release."""
    if theirs is None:
        return [Finding("versions", Level.UNKNOWN, "the server does not say its version")]
    if theirs == ours:
        return [Finding("versions", Level.OK, f"server and command line are {ours}")]
    message = f"the server is {theirs}, this command line {ours}"
    mend = f"install queuectl {theirs} here, or finish the rollout of {ours}"
    return [Finding("versions", Level.WARNING, message, mend)]


def measured(alarms: Mapping[str, float] | None, *, leads: bool, trusts: str = "") -> list[Finding]:
    """Whether what GPUs do is known, and who says so.

    Args:
        alarms: pods whose use is not known, by reason; None = no source is configured.
        leads: the server that answered measures.
        trusts: whose measurements count, in words.
    """
    if alarms is None and not leads:
        message = "the server that answered does not lead, and only the leader measures"
        return [Finding("metrics", Level.UNKNOWN, message, "ask the one that leads: --server")]
    if alarms is None:
        message = "nobody tells what GPUs do, so idle gangs keep them"
        mend = "set QUEUECTL_PROMETHEUS_URL of the server, or name exporters: docs/how-to/utilization.md"
        return [Finding("metrics", Level.WARNING, message, mend)]
    bad = {reason: number for reason, number in alarms.items() if number}
    trusted = [Finding("metrics", Level.OK, f"trusted to measure GPUs: {trusts}")] if trusts else []
    if not bad:
        return [Finding("metrics", Level.OK, "the GPU use of all pods is known"), *trusted]
    mend = "docs/how-to/runbook.md says what to do for each reason"
    unknown = [
        Finding("metrics", Level.WARNING, f"GPU use unknown ({reason}): {number:g} pods", mend)
        for reason, number in bad.items()
    ]
    return unknown + trusted


def audit(checked: Mapping[str, Any]) -> list[Finding]:
    """What a complete check of the invariants found."""
    mend = "docs/how-to/runbook.md, QueuectlInvariantViolated"
    found = [
        Finding(
            "audit",
            Level.PROBLEM,
            f"{one['kind']} {one['namespace']}/{one['name']}: {one['invariant']}: {one['message']}",
            mend,
        )
        for one in checked["violations"]
    ]
    counts = ", ".join(f"{checked[what]} {what}" for what in ("workloads", "pods", "nodes"))
    return found or [Finding("audit", Level.OK, f"no invariant is violated: {counts} were checked")]


def schema(current: str | None, head: str, *, known: bool) -> list[Finding]:
    """Whether the database is at the revision this release needs."""
    if not known:
        message = f"the schema ({current}) is of a newer release, which is fine during a rollout"
        return [Finding("database", Level.WARNING, message, "finish the rollout")]
    if current == head:
        return [Finding("database", Level.OK, f"it answers, and its schema is {current}")]
    message = f"its schema is {current or 'empty'}, behind {head}"
    return [Finding("database", Level.PROBLEM, message, "queuectl db upgrade")]
