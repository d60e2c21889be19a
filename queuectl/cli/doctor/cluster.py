"""The state of the cluster, which the doctor reads with the credentials of the user's kubeconfig, or of its pod."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

import msgspec

from queuectl.cli.doctor import judge, kueue, own_kinds, shadow, technologies, visibility
from queuectl.cli.doctor.findings import Finding, Level
from queuectl.cli.reads import Document, cluster_connection, list_items
from queuectl.cluster.apply import manifests, older_manifests, optional
from queuectl.cluster.client import Api
from queuectl.cluster.connection import Connection
from queuectl.cluster.lease import Lease
from queuectl.cluster.read_only import unreadable
from queuectl.cluster.review import (
    Mutators,
    installed_mutators,
    kueue_keys_act,
    kueue_runs,
    probe_policies,
)
from queuectl.cluster.server import MINIMUM, Server, confirm_absent, discover
from queuectl.domain.errors import BadInput, ClusterError, ClusterUnavailable, ObjectGone
from queuectl.domain.gpus import BY_NAME, summed
from queuectl.domain.quantity import parse_quantity
from queuectl.objects.kinds import JobKinds
from queuectl.objects.kubernetes.nodes import API_VERSION

_NAME: Final = "queuectl"  # of the ServiceAccount and of the Lease
_MIG: Final = "mig-reconfiguration"  # an opt-in of deploy/optional
_NUMA_NODES: Final = f"/apis/{API_VERSION}/noderesourcetopologies"
_REVIEWS: Final = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
_OWN_REVIEWS: Final = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
_PLURALS: Final = {
    "MutatingAdmissionPolicy": "mutatingadmissionpolicies",
    "MutatingAdmissionPolicyBinding": "mutatingadmissionpolicybindings",
    "MutatingWebhookConfiguration": "mutatingwebhookconfigurations",
    "ValidatingAdmissionPolicy": "validatingadmissionpolicies",
    "ValidatingAdmissionPolicyBinding": "validatingadmissionpolicybindings",
    "PriorityClass": "priorityclasses",
}


_NamedCheck = tuple[str, Callable[[], Awaitable[list[Finding]]]]


@dataclass(frozen=True, slots=True)
class ServerObjects:
    """Answers of the server.

    Attributes:
        flavors, topologies: all of them; None = not known.
        not_aligned: the gangs for which no node can give each pod one NUMA node.
        shadow: it runs in shadow mode, so it needs no policies and no rights to write.
    """

    flavors: Sequence[Document] | None = None
    topologies: Sequence[Document] | None = None
    not_aligned: Sequence[str] = ()
    shadow: bool = False


@dataclass(frozen=True, slots=True)
class OwnReplica:
    """The replica in whose pod the doctor runs. Its account has the rights of queuectl alone.

    Attributes:
        holder: its name in the Lease.
        kubeconfig: its access to the API server; None = the account of the pod.
        kinds: of jobs, with those that the chart declares.
        shadow: it runs in shadow mode.
    """

    holder: str
    kubeconfig: Path | None
    kinds: JobKinds
    shadow: bool = False


async def examine(
    namespace: str, objects: ServerObjects, replica: OwnReplica | None = None
) -> list[Finding]:
    """All findings about the cluster, in a pod those for which the rights of queuectl are enough."""
    connection = cluster_connection() if replica is None else Connection(replica.kubeconfig)
    try:
        api = await Api.connect(connection)
    except BadInput as error:
        return [_unreachable(error)]
    try:
        try:
            server = await discover(api)
        except ClusterError as error:
            return [_unreachable(error)]
        oldest, old = str(Server(MINIMUM)), not server.supported
        findings = judge.server_version(str(server), oldest, server.needs, old=old)
        if replica is not None:
            return findings + await _examined_inside(api, server, namespace, replica)
        return findings + await _examined(api, server, namespace, objects)
    finally:
        await api.close()


async def _examined(
    api: Api, server: Server, namespace: str, objects: ServerObjects
) -> list[Finding]:
    async def rights() -> list[Finding]:
        return judge.rights(await refused(api, await _installation(api, server), namespace))

    async def installed() -> list[Finding]:
        return judge.objects(await missing(api, await _installation(api, server)))

    kinds = await own_kinds.declared_kinds(api, namespace)

    async def declared() -> list[Finding]:
        return await own_kinds.examine(api, namespace)

    async def acting() -> list[Finding]:
        return await _acting(api, namespace, kinds, controller=False)

    async def leader() -> list[Finding]:
        return judge.leader(await Lease(api, namespace, _NAME).read(), time.time())

    async def nodes() -> list[Finding]:
        listed = await _nodes(api)
        found = judge.nodes(listed)
        if objects.flavors is not None and objects.topologies is not None:
            found += judge.labels(listed, objects.flavors, objects.topologies)
        return found

    async def others() -> list[Finding]:
        return judge.foreign(await list_items(api, "/apis/apps/v1/deployments"))

    async def mig() -> list[Finding]:
        flavors = technologies.reconfigured(objects.flavors)
        return await _mig(api, namespace, flavors) if flavors else []

    async def numa() -> list[Finding]:
        return await _numa(api, objects.not_aligned) if objects.not_aligned else []

    checks: tuple[_NamedCheck, ...] = (
        *(("rights", rights), ("policies", installed), ("policies", acting)),
        *(("policies", partial(_mutation, api, server)), ("kinds", declared), ("leader", leader)),
        *(
            ("nodes", nodes),
            ("others", others),
            ("kueue", partial(kueue.examine, api)),
            ("visibility", partial(visibility.examine, api)),
            ("mig", mig),
            ("numa", numa),
        ),
    )
    if objects.shadow:
        checks = (("leader", leader), ("nodes", nodes))
    return [finding for name, work in checks for finding in await _check(name, work)]


async def _installation(api: Api, server: Server) -> list[Document]:
    """The manifests of deploy/, with the mutation of this cluster."""
    mutators = await installed_mutators(api)
    by_webhook = mutators == Mutators(policies=False, webhook=True)
    documents = older_manifests if by_webhook or not server.has_mutating_policies else manifests
    return documents(controller=False)


async def _examined_inside(
    api: Api, server: Server, namespace: str, replica: OwnReplica
) -> list[Finding]:
    documents = manifests if server.has_mutating_policies else older_manifests

    async def rights() -> list[Finding]:
        return judge.rights(await refused(api, documents(), namespace, own=True))

    async def reading() -> list[Finding]:
        return shadow.reading(await unreadable(api, replica.kinds))

    async def acting() -> list[Finding]:
        return await _acting(api, namespace, replica.kinds, controller=True)

    async def declared() -> list[Finding]:
        return await own_kinds.compared(api, replica.kinds)

    async def leader() -> list[Finding]:
        lease = await Lease(api, namespace, _NAME).read()
        return judge.leader(lease, time.time(), replica.holder)

    async def nodes() -> list[Finding]:
        return judge.nodes(await _nodes(api))

    checks: tuple[_NamedCheck, ...] = (
        *(("rights", rights), ("policies", acting), ("policies", partial(_mutation, api, server))),
        *(("kinds", declared), ("leader", leader), ("nodes", nodes)),
    )
    if replica.shadow:
        checks = (("rights", reading), ("leader", leader), ("nodes", nodes))
    return [finding for name, work in checks for finding in await _check(name, work)]


async def _acting(api: Api, namespace: str, kinds: JobKinds, *, controller: bool) -> list[Finding]:
    acts = await kueue_keys_act(api, namespace)
    keys_count = bool(acts) and not await kueue_runs(api)
    try:
        return judge.acting(
            await probe_policies(
                api, namespace, controller=controller, kueue=keys_count, kinds=kinds
            )
        )
    except ClusterUnavailable as error:  # a failing policy answers 5xx
        return judge.acting([str(error)])


async def _mutation(api: Api, server: Server) -> list[Finding]:
    mutators = await installed_mutators(api)
    return judge.mutation(
        policies=mutators.policies,
        webhook=mutators.webhook,
        has_policies=server.has_mutating_policies,
    )


async def _nodes(api: Api) -> list[judge.CheckedNode]:
    return [checked_node(each) for each in await list_items(api, "/api/v1/nodes")]


async def _check(name: str, work: Callable[[], Awaitable[list[Finding]]]) -> list[Finding]:
    """The findings of one check. A check that cannot read something is reported, and the others continue."""
    fix = "run it as a user with the right, for example cluster-admin"
    try:
        return await work()
    except ClusterUnavailable as error:
        fix = "check the API server, then run queuectl doctor again"
        return [Finding(name, Level.UNKNOWN, str(error), fix)]
    except ClusterError as error:
        return [Finding(name, Level.UNKNOWN, str(error), fix)]


async def _mig(api: Api, namespace: str, flavors: Sequence[str]) -> list[Finding]:
    documents = optional(_MIG)
    lacking = await refused(api, documents, namespace, role=f"{_NAME}-{_MIG}")
    return technologies.mig(flavors, lacking, await missing(api, documents))


async def _numa(api: Api, gangs: Sequence[str]) -> list[Finding]:
    try:
        await api.request("GET", _NUMA_NODES, query=[("limit", "1")])
    except ObjectGone:
        await confirm_absent(api, _NUMA_NODES)
        return technologies.numa(gangs, served=False)
    return technologies.numa(gangs, served=True)


def _unreachable(error: Exception) -> Finding:
    fix = "check `kubectl version`, or give another cluster with --kubeconfig and --context"
    return Finding("cluster", Level.PROBLEM, f"no answer: {error}", fix)


def checked_node(node: Document) -> judge.CheckedNode:
    """A Node, as the findings need it."""
    meta, status = node["metadata"], node.get("status") or {}
    labels = meta.get("labels") or {}
    gpus = summed(
        BY_NAME.of(name, labels) * parse_quantity(name, str(amount), round_up=False)
        for name, amount in (status.get("allocatable") or {}).items()
    )
    ready = any(
        condition["type"] == "Ready" and condition["status"] == "True"
        for condition in status.get("conditions") or ()
    )
    return judge.CheckedNode(meta["name"], labels, gpus, ready)


async def missing(api: Api, deployed: Sequence[Document]) -> list[str]:
    """Policies, bindings and priority classes of deploy/ that the cluster lacks, as ``Kind name``."""
    absent = []
    for document in deployed:
        kind, name = document["kind"], document["metadata"]["name"]
        if kind not in _PLURALS:
            continue
        try:
            await api.request("GET", f"/apis/{document['apiVersion']}/{_PLURALS[kind]}/{name}")
        except ObjectGone:
            absent.append(f"{kind} {name}")
    return absent


async def refused(
    api: Api,
    deployed: Sequence[Document],
    namespace: str,
    role: str = _NAME,
    *,
    own: bool = False,
) -> list[str]:
    """The rights that queuectl's ServiceAccount lacks, of those that roles with this name grant, as ``verb resource``.

    Args:
        api: the API server.
        deployed: the roles among other objects.
        namespace: of the ServiceAccount.
        role: the name of the roles.
        own: the caller is that ServiceAccount, which asks for itself: every account has the right to.
    """
    rights = [
        (attributes, f"{attributes['verb']} {attributes['resource']}")
        for document in deployed
        if document["kind"] in ("ClusterRole", "Role") and document["metadata"]["name"] == role
        for attributes in _attributes(document, namespace)
    ]
    groups = [
        "system:serviceaccounts",
        f"system:serviceaccounts:{namespace}",
        "system:authenticated",
    ]

    async def ask(attributes: dict[str, str]) -> bool:
        spec: dict[str, object] = {"resourceAttributes": attributes}
        if not own:
            user = f"system:serviceaccount:{namespace}:{_NAME}"
            spec |= {"user": user, "groups": groups}
        target = _OWN_REVIEWS if own else _REVIEWS
        answer = msgspec.json.decode(await api.request("POST", target, body={"spec": spec}))
        return bool(answer["status"]["allowed"])

    allowed = await asyncio.gather(*(ask(attributes) for attributes, _ in rights))
    return list(
        dict.fromkeys(text for (_, text), may in zip(rights, allowed, strict=True) if not may)
    )


def _attributes(role: Document, namespace: str) -> list[dict[str, str]]:
    scope = {"namespace": namespace} if role["kind"] == "Role" else {}
    return [
        {**scope, "group": group, "resource": resource, "verb": verb, **named}
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
        for named in [{"name": name} for name in rule.get("resourceNames") or ()] or [{}]
    ]
