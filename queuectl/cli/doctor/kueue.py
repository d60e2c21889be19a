"""Parts of a Kueue whose controller does not run: webhooks, finalizers, and definitions that Helm owns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from queuectl.cli.doctor.findings import Finding, Level
from queuectl.cli.reads import Document, list_items
from queuectl.cluster.client import Api, document_in
from queuectl.cluster.review import KUEUE_MANAGER, KUEUE_WEBHOOKS
from queuectl.cluster.server import DEFINITIONS
from queuectl.domain.errors import ObjectGone
from queuectl.domain.words import counted, some
from queuectl.objects.configuration.owners import FOLLOWED, Owner

_RELEASE: Final = "meta.helm.sh/release-name"
_RELEASE_NAMESPACE: Final = "meta.helm.sh/release-namespace"
_KEEP: Final = "helm.sh/resource-policy"
_GROUP: Final = "kueue.x-k8s.io/"


@dataclass(frozen=True, slots=True)
class KueueParts:
    """Parts of Kueue in a cluster.

    Attributes:
        running: ready pods of its controller.
        definitions: its CustomResourceDefinitions of configuration.
        webhooks: names of its webhook configurations.
        finalized: objects with one of its finalizers, as ``kind/name``.
    """

    running: int
    definitions: Sequence[Document]
    webhooks: Sequence[str]
    finalized: Sequence[str]


async def examine(api: Api) -> list[Finding]:
    """Findings on Kueue; none if it has no definition in the cluster. Raises ClusterError."""
    definitions: list[Document] = []
    finalized: list[str] = []
    for kind in FOLLOWED[Owner.KUEUE]:
        path = f"{DEFINITIONS}/{kind.definition}"
        try:
            definition = document_in(path, await api.request("GET", path), "metadata", "spec")
        except ObjectGone:
            continue
        definitions.append(definition)
        stored = next((v["name"] for v in definition["spec"]["versions"] if v["storage"]), "")
        finalized += [
            f"{kind.kind.singular}/{item['metadata']['name']}"
            for item in await list_items(api, kind.path(stored))
            if any(one.startswith(_GROUP) for one in item["metadata"].get("finalizers") or ())
        ]
    if not definitions:
        return []
    webhooks = []
    for path in KUEUE_WEBHOOKS:
        try:
            await api.request("GET", path)
        except ObjectGone:
            continue
        webhooks.append(path.rpartition("/")[2])
    deployments = await list_items(api, "/apis/apps/v1/deployments")
    running = sum(
        int((one.get("status") or {}).get("readyReplicas") or 0)
        for one in deployments
        if str(one["metadata"]["name"]).endswith(KUEUE_MANAGER)
    )
    return judged(KueueParts(running, definitions, webhooks, finalized))


def judged(parts: KueueParts) -> list[Finding]:
    """The findings on these parts."""
    findings = list(map(_release, _releases(parts.definitions).items()))
    if parts.running:
        return findings
    if parts.webhooks:
        message = f"the webhooks of Kueue have no server, and refuse writes of its objects: {some(parts.webhooks)}"
        fix = "delete them: docs/how-to/coming-from-kueue.md#2-stop-kueue"
        findings.append(Finding("kueue", Level.PROBLEM, message, fix))
    if parts.finalized:
        number = counted(len(parts.finalized), "object")
        message = f"{number} of Kueue with its finalizer, and no Kueue removes it: a deletion does not end ({some(parts.finalized)})"
        fix = 'kubectl patch KIND NAME --type=merge -p \'{"metadata":{"finalizers":null}}\', for each object that you delete'
        findings.append(Finding("kueue", Level.WARNING, message, fix))
    return findings


def _releases(definitions: Sequence[Document]) -> dict[tuple[str, str], list[str]]:
    """The definitions that Helm deletes, by namespace and name of the release."""
    owned: dict[tuple[str, str], list[str]] = {}
    for definition in definitions:
        metadata: Mapping[str, Any] = definition["metadata"]
        annotations: Mapping[str, str] = metadata.get("annotations") or {}
        if _RELEASE in annotations and annotations.get(_KEEP) != "keep":
            release = (annotations.get(_RELEASE_NAMESPACE, ""), annotations[_RELEASE])
            owned.setdefault(release, []).append(str(metadata["name"]))
    return owned


def _release(owned: tuple[tuple[str, str], list[str]]) -> Finding:
    (namespace, release), names = owned
    message = (
        f"`helm uninstall {release}` deletes the definitions of Kueue, and with them all objects:"
        f" {some(names)}"
    )
    fix = f"do not uninstall it: kubectl -n {namespace} delete secret -l owner=helm,name={release} makes Helm forget it"
    return Finding("kueue", Level.WARNING, message, fix)
