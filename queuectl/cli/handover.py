"""The requests of ``queuectl kueue hand-over`` to the API server, with the credentials of the user's kubeconfig."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import AsyncIterator, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from queuectl.cli.errors import CommandFailed, Exit
from queuectl.cli.reads import Document, list_items
from queuectl.cluster.client import Api, document_in
from queuectl.cluster.review import KUEUE_MANAGER, active_kueue, allowed
from queuectl.domain.errors import ObjectGone, WriteConflict, WriteRefused
from queuectl.domain.jobs import OwnerKey, PriorAdmission, PriorAdmissions
from queuectl.domain.words import counted
from queuectl.handover.gangs import Adopted, Fate, HandoverObjects, Queued, Stopped, fates
from queuectl.handover.scope import KueueScope
from queuectl.handover.trainjobs import TRAINJOB
from queuectl.handover.workloads import API_VERSION, FINALIZER
from queuectl.objects import keys
from queuectl.objects.configuration.config_kinds import KUEUE_VERSIONS
from queuectl.objects.configuration.queue_config import ReadDocument, read, together
from queuectl.objects.documents import read_documents
from queuectl.objects.errors import UNREADABLE, DocumentError
from queuectl.objects.files.workloads import WireLeftWorkload, read_prior_admission
from queuectl.objects.kinds import KINDS, path
from queuectl.objects.kinds.described import MERGE_PATCH
from queuectl.objects.kinds.pods import POD_GROUP
from queuectl.objects.kinds.trainjob import GROUP_VERSION
from queuectl.objects.kinds.trainjob import KINDS as RUNTIMES
from queuectl.objects.kubernetes.nodes import read_node
from queuectl.objects.kubernetes.wire import WireNode

_WORKLOADS: Final = f"/apis/{API_VERSION}/workloads"
_CLASS: Final = f"/apis/scheduling.k8s.io/v1/priorityclasses/{keys.POD_PRIORITY_CLASS}"
_DEPLOYMENTS: Final = "/apis/apps/v1/deployments"
_CONFIG_MAP: Final = ("kueue-system", "kueue-manager-config")
_CONFIG_KEY: Final = "controller_manager_config.yaml"
_CHECK_SECONDS: Final = 1.0
"""Between two checks that no controller has been started."""
_OWN: Final = (("labelSelector", "app.kubernetes.io/name=queuectl"),)
_CONFIGURATION: Final = {
    "Topology": "topologies",
    "ResourceFlavor": "resourceflavors",
    "WorkloadPriorityClass": "workloadpriorityclasses",
    "Cohort": "cohorts",
    "ClusterQueue": "clusterqueues",
    "LocalQueue": "localqueues",
}
_READS: Final = (
    ("", "nodes"),
    ("", "pods"),
    ("", "namespaces"),
    ("apps", "deployments"),
    ("admissionregistration.k8s.io", "validatingadmissionpolicies"),
    ("scheduling.k8s.io", "priorityclasses"),
    ("kueue.x-k8s.io", "workloads"),
    *(("kueue.x-k8s.io", plural) for plural in _CONFIGURATION.values()),
)
_WRITES: Final = (
    ("create", "kueue.x-k8s.io", "workloads", ""),
    ("patch", "kueue.x-k8s.io", "workloads", ""),
    ("delete", "kueue.x-k8s.io", "workloads", ""),
    ("patch", "kueue.x-k8s.io", "workloads", "status"),
    ("patch", "", "pods", ""),
    ("create", "scheduling.k8s.io", "priorityclasses", ""),
    ("delete", "scheduling.k8s.io", "priorityclasses", ""),
)


_ALL: Final = "It is assumed that Kueue manages each namespace and kind of job"


@dataclass(frozen=True, slots=True)
class HandOver:
    """The fate of each job in Kueue.

    Attributes:
        fates: of the jobs.
        earlier: the Workloads that exist, by their owner.
        warnings: sentences about objects of Kueue that were passed over.
    """

    fates: tuple[Fate, ...]
    earlier: Mapping[OwnerKey, tuple[Document, ...]]
    warnings: tuple[str, ...]


async def missing_rights(api: Api) -> list[str]:
    """The rights that the caller lacks whatever runs, as ``kubectl auth can-i`` names them."""
    return await _missing(api, [*(("list", *one, "") for one in _READS), *_WRITES])


async def missing_job_rights(api: Api, planned: Iterable[Fate]) -> list[str]:
    """The same for the writes to the jobs."""
    needed: dict[tuple[str, str, str, str], None] = {}
    for fate in _written(planned):
        if not fate.owner.group:
            continue
        kind = KINDS[fate.owner.kind]
        verb = "update" if isinstance(fate, Queued) else "patch"
        needed[verb, kind.group, kind.plural, ""] = None
        if isinstance(fate, Queued) and fate.clear_start:
            needed["patch", kind.group, kind.plural, "status"] = None
    return await _missing(api, needed)


def _written(planned: Iterable[Fate]) -> Iterator[Adopted | Queued]:
    """The jobs that are written, with the children of those that Kueue queues."""
    for fate in planned:
        if isinstance(fate, Queued):
            yield from fate.children
        if not isinstance(fate, Stopped):
            yield fate


async def _missing(api: Api, needed: Iterable[tuple[str, str, str, str]]) -> list[str]:
    return [
        f"{verb} {resource}{f'.{group}' if group else ''}{f'/{subresource}' if subresource else ''}"
        for verb, group, resource, subresource in needed
        if not await allowed(api, verb, group, resource, subresource)
    ]


async def obstacle(api: Api) -> str | None:
    """Why no Workload can be written now; None if one can be."""
    if sign := await active_kueue(api):
        return (
            f"Kueue runs: {sign}. Delete its webhook configurations, and scale it to 0. "
            "It must start after this command"
        )
    for deployment in await _list(api, _DEPLOYMENTS):
        meta = deployment["metadata"]
        named = (meta.get("labels") or {}).get("app.kubernetes.io/name")
        running = (deployment.get("spec") or {}).get("replicas", 1)
        where = f"{meta['namespace']}/{meta['name']}"
        if running and meta["name"].endswith(KUEUE_MANAGER):
            return f"Kueue runs: scale Deployment {where} to 0"
        if running and named == "queuectl":
            return f"queuectl runs: scale Deployment {where} to 0"
    for pod in await _list(api, "/api/v1/pods", _OWN):
        if pod.get("status", {}).get("phase") in ("Pending", "Running"):
            meta = pod["metadata"]
            return (
                f"pod {meta['namespace']}/{meta['name']} of queuectl runs: wait until it has ended"
            )
    policies = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies"
    if await _list(api, policies, _OWN):
        return "the admission policies of queuectl are installed: delete them first, as docs/how-to/back-to-kueue.md shows"
    try:
        await api.request("GET", _WORKLOADS, query=[("limit", "1")])
    except ObjectGone:
        return (
            f"the cluster has no Workloads of {API_VERSION}: apply the CustomResourceDefinitions "
            "of Kueue 0.15 or newer first"
        )
    return None


async def read_hand_over(api: Api, namespaces: Collection[str] = ()) -> HandOver:
    """The fates of the jobs. ``namespaces``: only of these; empty = of all.

    Raises:
        ClusterError: the API server does not answer a list.
    """
    workloads = await list_items(api, _WORKLOADS)
    config, warnings = await _configuration(api)
    scope, rules, more = await _manager(api)
    namespaces_listed = await list_items(api, "/api/v1/namespaces")
    nodes = [
        read_node(msgspec.convert(item, WireNode, strict=False)).node
        for item in await list_items(api, "/api/v1/nodes")
    ]
    classes = await list_items(api, "/apis/scheduling.k8s.io/v1/priorityclasses")
    jobs = {name: await _list(api, path(kind)) for name, kind in KINDS.items()}
    cluster = HandoverObjects(
        jobs=jobs,
        pods=await list_items(api, "/api/v1/pods"),
        nodes={node.name: node for node in nodes},
        config=together((*config, *rules), 0),
        now=time.time(),
        priority_classes={one["metadata"]["name"]: int(one["value"]) for one in classes},
        prior=PriorAdmissions(_admissions(workloads)),
        runtimes=await _runtimes(api) if jobs[TRAINJOB] else {},
        namespaces={
            one["metadata"]["name"]: one["metadata"].get("labels") or {}
            for one in namespaces_listed
        },
        scope=scope,
    )
    chosen = [one for one in fates(cluster) if not namespaces or one.owner.namespace in namespaces]
    owned = defaultdict[OwnerKey, list[Document]](list)
    for workload in workloads:
        for owner in workload["metadata"].get("ownerReferences") or ():
            if owner.get("controller"):
                key = OwnerKey(str(owner.get("kind")), _key(workload)[0], str(owner.get("uid")))
                owned[key].append(workload)
    names = {_key(one): one for one in workloads}
    found = tuple(_unless_taken(fate, names) for fate in chosen)
    for fate in found:
        if fate.owner.kind == POD_GROUP and isinstance(fate, Adopted):
            earlier = names.get(_key(fate.workload))
            owned[OwnerKey.of(fate.owner)] = [] if earlier is None else [earlier]
    return HandOver(
        found,
        {owner: tuple(own) for owner, own in owned.items()},
        (*warnings, *more),
    )


def _key(document: Document) -> tuple[str, str]:
    return document["metadata"].get("namespace") or "default", document["metadata"]["name"]


def _unless_taken(fate: Fate, workloads: Mapping[tuple[str, str], Document]) -> Fate:
    """The fate, but a gang is stopped if its Workload exists and belongs to another object."""
    existing = workloads.get(_key(fate.workload)) if isinstance(fate, Adopted) else None
    if existing is None or not isinstance(fate, Adopted):
        return fate
    owners = [
        one
        for one in existing["metadata"].get("ownerReferences") or ()
        if one.get("controller") or fate.owner.kind == POD_GROUP
    ]
    own = {fate.owner.uid, *(patch["metadata"]["uid"] for _, _, patch in fate.pods)}
    if owners and {one.get("uid") for one in owners} <= own:
        return fate
    other = f"{owners[0].get('kind')} {owners[0].get('name')}" if owners else "no job"
    text = f"Workload {existing['metadata']['name']} exists and belongs to {other}: delete it"
    return Stopped(fate.owner, text)


def _admissions(workloads: Iterable[Document]) -> Iterator[PriorAdmission]:
    for workload in workloads:
        try:
            wire = msgspec.convert(workload, WireLeftWorkload, strict=False)
            admission = read_prior_admission(wire)
        except UNREADABLE:
            continue
        if admission is not None:
            yield admission


async def _configuration(api: Api) -> tuple[list[ReadDocument], list[str]]:
    """The objects of Kueue, and a sentence for each that cannot be read."""
    objects: list[ReadDocument] = []
    warnings: list[str] = []
    for kind, plural in _CONFIGURATION.items():
        for version in KUEUE_VERSIONS:
            items = await _list(api, f"/apis/{version}/{plural}")
            if items:
                break
        for item in items:
            body = {"apiVersion": version, "kind": kind, **item}
            try:
                objects.append(read(body))
            except DocumentError as error:
                warnings.append(f"passed over: {error}")
    return objects, warnings


async def _manager(api: Api) -> tuple[KueueScope, list[ReadDocument], list[str]]:
    """The jobs that Kueue manages and its rules, by the ConfigMap of its manager. A sentence if it cannot be read."""
    named = [
        (deployment["metadata"]["namespace"], volume["configMap"].get("name") or "")
        for deployment in await _list(api, _DEPLOYMENTS)
        if deployment["metadata"]["name"].endswith(KUEUE_MANAGER)
        for volume in deployment["spec"]["template"]["spec"].get("volumes") or ()
        if volume.get("configMap")
    ]
    for namespace, name in (*named, _CONFIG_MAP):
        where = f"/api/v1/namespaces/{namespace}/configmaps/{name}"
        try:
            content = document_in(where, await api.request("GET", where)).get("data") or {}
            [configuration] = read_documents(content[_CONFIG_KEY], f"ConfigMap {namespace}/{name}")
            return KueueScope.of(configuration, namespace), [read(configuration)], []
        except (KeyError, ObjectGone):
            continue
        except (DocumentError, ValueError, WriteRefused) as error:
            text = f"the Configuration of Kueue cannot be read: {error}. {_ALL}"
            return KueueScope(), [], [text]
    return KueueScope(), [], [f"the Configuration of Kueue does not exist. {_ALL}"]


async def _runtimes(api: Api) -> dict[tuple[str, str, str], Document]:
    """Those of TrainJobs, by kind, namespace and name."""
    return {
        (kind, one["metadata"].get("namespace") or "", one["metadata"]["name"]): one
        for kind in RUNTIMES
        for one in await _list(api, f"/apis/{GROUP_VERSION}/{kind.lower()}s")
    }


async def _list(api: Api, listed: str, query: Iterable[tuple[str, str]] = ()) -> list[Document]:
    """All items; none if the kind is not installed."""
    try:
        return await list_items(api, listed, query)
    except ObjectGone:
        return []


# ---- Writes


async def write_each(
    api: Api, planned: HandOver, continuing: Iterable[Adopted | Queued]
) -> AsyncIterator[tuple[Adopted | Queued, str]]:
    """Write what Kueue needs for each job. It can be repeated after an error.

    Yields:
        Each job, and why its objects are not written; "" = they are. One job does not stop the others.

    Raises:
        CommandFailed: a controller has been started in the meantime.
        ClusterUnavailable: the API server does not answer.
    """
    checked = time.monotonic()
    for number, fate in enumerate(continuing):
        if time.monotonic() >= checked + _CHECK_SECONDS:
            if text := await obstacle(api):
                again = f"{text}. {counted(number, 'job')} handled; then run the command again"
                raise CommandFailed(again, Exit.CONFLICT)
            checked = time.monotonic()
        try:
            await _write(api, fate, planned.earlier.get(OwnerKey.of(fate.owner), ()))
        except ObjectGone:
            yield fate, "it was deleted in the meantime"
        except (WriteConflict, WriteRefused) as error:
            yield fate, str(error)
        else:
            yield fate, ""


async def _write(api: Api, fate: Adopted | Queued, earlier: Iterable[Document]) -> None:
    """Write what Kueue needs for a job. ``earlier``: its Workloads from before, which are replaced."""
    owner = fate.owner
    target = f"/api/v1/namespaces/{owner.namespace}/pods/{owner.name}"
    if owner.group:
        target = path(KINDS[owner.kind], owner.namespace, owner.name)
    if isinstance(fate, Queued):
        for child in fate.children:
            await _write(api, child, ())
        await _write_suspended(api, target, fate, earlier)
        return
    # It also fails if the job has been deleted, or created again with the same name.
    labels = {"labels": dict(fate.labels)} if fate.labels else {}
    if owner.kind != POD_GROUP:
        await _merge(api, target, {"metadata": {"uid": owner.uid, **labels}})
    for workload in earlier:
        await _delete(api, workload)
    collection = f"/apis/{API_VERSION}/namespaces/{owner.namespace}/workloads"
    stateless = {name: part for name, part in fate.workload.items() if name != "status"}
    await api.request("POST", collection, body=stateless)
    created = f"{collection}/{fate.workload['metadata']['name']}"
    await _merge(api, f"{created}/status", {"status": fate.workload["status"]})
    for namespace, name, patch in fate.pods:
        try:
            await _merge(api, f"/api/v1/namespaces/{namespace}/pods/{name}", patch)
        except ObjectGone:
            continue  # its controller replaces it


async def _write_suspended(
    api: Api, target: str, fate: Queued, earlier: Iterable[Document]
) -> None:
    owner = fate.owner
    for workload in earlier:
        await _delete(api, workload)
    head = {"apiVersion": owner.api_version, "kind": owner.kind}
    meta = dict(fate.document["metadata"])
    if fate.clear_start:
        cleared = {"metadata": {"uid": owner.uid}, "status": {"startTime": None}}
        answer = document_in(target, await _merge(api, f"{target}/status", cleared), "metadata")
        meta["resourceVersion"] = answer["metadata"]["resourceVersion"]
    await api.request("PUT", target, body={**fate.document, **head, "metadata": meta})


async def _delete(api: Api, workload: Document) -> None:
    """Delete a Workload of an earlier Kueue, without its finalizer: no controller removes that."""
    namespace, name = _key(workload)
    target = f"/apis/{API_VERSION}/namespaces/{namespace}/workloads/{name}"
    left = [one for one in workload["metadata"].get("finalizers") or () if one != FINALIZER]
    try:
        await _merge(api, target, {"metadata": {"finalizers": left}})
        await api.request("DELETE", target)
    except ObjectGone:
        return


async def _merge(api: Api, target: str, patch: Mapping[str, Any]) -> bytes:
    return await api.request("PATCH", target, body=patch, content_type=MERGE_PATCH)


async def lower_class(api: Api) -> bool:
    """Give the PriorityClass of queuectl the value 0, from which Kueue reads the priority of a job that names no class of Kueue.

    The value of a class cannot change, so it is created again. Pods keep their number. Returns whether it was changed.
    """
    try:
        known = document_in(_CLASS, await api.request("GET", _CLASS), "metadata")
    except ObjectGone:
        # An earlier run was interrupted between its two writes.
        known = {"metadata": {"name": keys.POD_PRIORITY_CLASS}}
    else:
        if not known.get("value"):
            return False
        await api.request("DELETE", _CLASS)
    meta = known["metadata"]
    kept = {k: meta[k] for k in ("name", "labels", "annotations") if meta.get(k)}
    lowered = {**known, "metadata": kept, "value": 0, "preemptionPolicy": "Never"}
    await api.request("POST", _CLASS.rpartition("/")[0], body=lowered)
    return True
