"""Set-up by server-side apply, as ``kubectl apply -k deploy/base``, for the demo, tests and commands.

It needs an identity that can write admission policies and RBAC. The identity of the controller cannot.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

import yaml

import queuectl
from queuectl.cluster.adapter import SYSTEM_NAMESPACE
from queuectl.cluster.client import APPLY_PATCH, METADATA_ONLY, Api, document_in
from queuectl.cluster.review import probe_policies
from queuectl.cluster.server import Server, discover
from queuectl.cluster.writes import BINDING, MANAGER, POLICY
from queuectl.domain.errors import BadInput, ClusterUnavailable, ObjectGone, WriteRefused

Document = Mapping[str, Any]

OF_PODS: Final = frozenset(
    {"Deployment", "NetworkPolicy", "PodDisruptionBudget", "Service", "StatefulSet"}
)
"""Kinds that are for the pods of queuectl only."""
IN_FORCE_SECONDS: Final = 30.0
"""The time in which new admission policies act."""


def deploy_folder() -> Path:
    """The folder of the manifests: in the wheel, or next to the package in a checkout."""
    package = Path(queuectl.__file__).parent
    shipped = package / "_deploy"
    return shipped if shipped.is_dir() else package.parent / "deploy"


def manifests(*, controller: bool = True) -> list[Document]:
    """The documents of ``deploy/base``, in the order of its kustomization.

    Args:
        controller: with the objects of the controller's pods; False where queuectl runs outside the cluster.
    """
    return [one for one in _kustomized("base") if controller or one["kind"] not in OF_PODS]


def older_manifests(*, controller: bool = True) -> list[Document]:
    """The documents for a server without MutatingAdmissionPolicy v1: with the webhook instead of these policies.

    ``controller``: as in :func:`manifests`.
    """
    kept = [one for one in manifests() if one["kind"] not in (POLICY, BINDING)]
    found = [*kept, *older_servers()]
    return [one for one in found if controller or one["kind"] not in OF_PODS]


def older_servers() -> list[Document]:
    """The documents of ``deploy/older-servers`` that are not in ``deploy/base``."""
    return _kustomized("older-servers")


def _kustomized(folder: str) -> list[Document]:
    """The documents of the files that the kustomization of a folder names."""
    home = deploy_folder() / folder
    [kustomization] = _documents(home / "kustomization.yaml")
    files = (home / name for name in kustomization["resources"] if name.endswith(".yaml"))
    return [one for file in files for one in _documents(file)]


def opt_ins() -> list[str]:
    """The names of the opt-ins, which are files of ``deploy/optional``."""
    return sorted(file.stem for file in (deploy_folder() / "optional").glob("*.yaml"))


def optional(name: str) -> list[Document]:
    """The documents of one opt-in."""
    return _documents(deploy_folder() / "optional" / f"{name}.yaml")


def _documents(file: Path) -> list[Document]:
    return [one for one in yaml.load_all(file.read_text(), yaml.CSafeLoader) if one]


async def apply(api: Api, documents: Iterable[Document]) -> None:
    """Create or update each object, in order. It overwrites fields of other field managers.

    Raises:
        BadInput: the server does not know a kind.
        ClusterError: a request failed.
    """
    async for document, target in _targets(api, documents):
        query = (("fieldManager", f"{MANAGER}-setup"), ("force", "true"))
        await api.request(
            "PATCH",
            target,
            query=query,
            body=dict(document),
            content_type=APPLY_PATCH,
            accept=METADATA_ONLY,
        )


async def _delete(api: Api, documents: Iterable[Document]) -> None:
    async for _, target in _targets(api, documents):
        with suppress(ObjectGone):
            await api.request("DELETE", target)


async def _targets(api: Api, documents: Iterable[Document]) -> AsyncIterator[tuple[Document, str]]:
    collections: dict[tuple[str, str], tuple[str, str, bool]] = {}
    for document in documents:
        version, kind = document["apiVersion"], document["kind"]
        if (version, kind) not in collections:
            collections.update(await _discover(api, version))
        if (version, kind) not in collections:
            raise BadInput(f"the API server does not know kind {kind} of {version}")
        yield document, _target(document, *collections[version, kind])


async def wait_until_in_force(api: Api, *, kueue: bool = False) -> None:
    """Wait until the admission policies act; ``kueue``: also on jobs with Kueue's label.

    A server needs a few seconds to load the schema of a new kind before it can mutate it. Until then it answers 503. It loads changes of
    policies in their order, so two more policies show when all earlier ones are in force. They are deleted at the end.

    Raises:
        ClusterUnavailable: they do not act after :data:`IN_FORCE_SECONDS`; the message names the missing parts.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + IN_FORCE_SECONDS
    name = f"{MANAGER}-set-up-{uuid4().hex[:8]}"
    try:
        while missing := await _missing(api, SYSTEM_NAMESPACE, kueue, name):
            if loop.time() > deadline:
                raise ClusterUnavailable(
                    f"after {IN_FORCE_SECONDS:.0f} s still not in force: {'; '.join(missing)}"
                )
            await asyncio.sleep(0.1)
    finally:
        await _delete(api, _last_policies(name, await discover(api)))


async def _missing(api: Api, namespace: str, kueue: bool, last: str) -> list[str]:
    try:
        missing = await probe_policies(api, namespace, controller=False, kueue=kueue)
        if missing:
            return missing
        await apply(api, _last_policies(last, await discover(api)))
        return await _probe_last(api, namespace, last)
    except ClusterUnavailable as error:
        return [str(error)]


def _last_policies(name: str, server: Server) -> list[Document]:
    """Policies that deny the dry run of one ConfigMap. Where the server has policies that mutate, one of these mutates it before."""
    rule = {"apiGroups": [""], "apiVersions": ["v1"], "resources": ["configmaps"]}
    spec = {
        "failurePolicy": "Fail",
        "matchConstraints": {"resourceRules": [{**rule, "operations": ["CREATE"]}]},
        "matchConditions": [{"name": "probe", "expression": f"object.metadata.name == '{name}'"}],
    }
    head = {"apiVersion": "admissionregistration.k8s.io/v1", "metadata": {"name": name}}
    bound = {**head, "spec": {"policyName": name}}
    mutated, policies = "true", []
    if server.has_mutating_policies:
        mutated = f"object.metadata.?labels[?'{name}'].hasValue()"
        changed = f"Object{{metadata: Object.metadata{{labels: {{'{name}': 'x'}}}}}}"
        mutation = {
            "patchType": "ApplyConfiguration",
            "applyConfiguration": {"expression": changed},
        }
        mutating = {**spec, "mutations": [mutation], "reinvocationPolicy": "Never"}
        policies = [{**head, "kind": POLICY, "spec": mutating}, {**bound, "kind": BINDING}]
    validating = {**spec, "validations": [{"expression": f"!({mutated})"}]}
    denies = {"policyName": name, "validationActions": ["Deny"]}
    return [
        *policies,
        {**head, "kind": "ValidatingAdmissionPolicy", "spec": validating},
        {**head, "kind": "ValidatingAdmissionPolicyBinding", "spec": denies},
    ]


async def _probe_last(api: Api, namespace: str, name: str) -> list[str]:
    target, body = f"/api/v1/namespaces/{namespace}/configmaps", {"metadata": {"name": name}}
    try:
        await api.request("POST", target, query=(("dryRun", "All"),), body=body)
    except WriteRefused as error:
        return [] if f"'{name}'" in str(error) else [str(error)]
    return ["the API server has not loaded all policies"]


async def _discover(api: Api, version: str) -> dict[tuple[str, str], tuple[str, str, bool]]:
    """The kinds of one API version: its path, plural name, and whether it is namespaced."""
    base = f"/apis/{version}" if "/" in version else f"/api/{version}"
    try:
        found = document_in(base, await api.request("GET", base))
    except ObjectGone:
        return {}
    return {
        (version, one["kind"]): (base, one["name"], one["namespaced"])
        for one in found.get("resources", ())
        if "/" not in one["name"]
    }


def _target(document: Document, base: str, plural: str, namespaced: bool) -> str:
    metadata = document["metadata"]
    scope = f"/namespaces/{metadata.get('namespace', 'default')}" if namespaced else ""
    return f"{base}{scope}/{plural}/{metadata['name']}"
