"""The writes to the cluster: patches of jobs, pods, nodes and namespaces, and Events on jobs.

Custom resources do not support strategic merge patches. The body of a patch contains uid and resourceVersion, which makes it a
compare-and-swap: a repeated patch is a conflict, never a second effect. The names of the MutatingAdmissionPolicies for new jobs, and of
the webhook with their effect, stand here as well.
"""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from queuectl.cluster.client import METADATA_ONLY, Api, Expired
from queuectl.cluster.server import Discovered
from queuectl.cluster.stream import LEVELS, decoded
from queuectl.domain.arrays import object_of
from queuectl.domain.bounded import RecentlyUsed
from queuectl.domain.errors import (
    ClusterError,
    ClusterUnavailable,
    ObjectGone,
    WriteConflict,
    WriteRefused,
)
from queuectl.domain.jobs import JobRecord
from queuectl.domain.words import printable
from queuectl.objects.kinds import KINDS, JobKinds, path
from queuectl.objects.kinds.described import encoded
from queuectl.objects.kubernetes.nodes import version_of
from queuectl.objects.kubernetes.provisioning import API_VERSION as AUTOSCALING
from queuectl.objects.kubernetes.provisioning import REQUESTS, WORKLOAD

# ---- Writes

MANAGER: Final = "queuectl"
REPORTER: Final = "queuectl.dev/controller"
# Strict: a field that is unknown to the server is a defect of queuectl, not a warning.
_WRITE: Final = (("fieldManager", MANAGER), ("fieldValidation", "Strict"))


class _Meta(msgspec.Struct, rename="camel"):
    name: str = ""
    uid: str = ""
    resource_version: str = ""
    annotations: dict[str, str] | None = None


class _Object(msgspec.Struct):
    metadata: _Meta


_object = msgspec.json.Decoder(_Object).decode


async def merge_patch(
    api: Api, target: str, patch: Mapping[str, Any], subresource: str = ""
) -> str:
    """Patch one object, or a subresource; returns the new resourceVersion. ``target`` is the API path of the object.

    Raises:
        ObjectGone: it is deleted, or the object with this name has another uid than the patch.
        WriteRefused: the server refuses it, or answers 404 or 409 although the object exists as the patch expects it.
        ClusterUnavailable: it does not answer, or the response is not from an API server.
    """
    content, content_type = encoded(patch)
    async with _meaning(api, target, patch.get("metadata", {})):
        body = await api.request(
            "PATCH",
            target + subresource,
            query=_WRITE,
            body=content,
            content_type=content_type,
            accept=METADATA_ONLY,
        )
    return _metadata(target, body).resource_version


@asynccontextmanager
async def _meaning(api: Api, target: str, expected: Mapping[str, Any]) -> AsyncIterator[None]:
    """Raise what the response to a write means for the object at ``target``, which is expected as stated."""
    try:
        yield
    except (WriteConflict, ObjectGone) as error:
        if expected.keys().isdisjoint(("uid", "resourceVersion")):
            raise  # queuectl may not get the kinds whose objects it patches without a condition
        found = _metadata(target, await api.request("GET", target, accept=METADATA_ONLY))
        raise meant(error, target, expected, found.uid, found.resource_version) from None
    except Expired as error:  # no valid answer to a write: it is from a webhook
        raise WriteRefused(str(error)) from None


def meant(
    error: WriteConflict | ObjectGone,
    target: str,
    expected: Mapping[str, Any],
    uid: str,
    version: str,
) -> ClusterError:
    """The meaning of a 404 or 409 to a write, from the current object.

    The server compares versions before uids, so a new object of the same name is a conflict. If the object is as the write expects
    it, another component denied the write (a webhook can answer with any code), and will deny it again.

    Args:
        error: the response.
        target: API path of the object.
        expected: uid and resourceVersion on which the write is conditioned; without a version, any version is expected.
        uid: of the object now.
        version: of the object now.
    """
    if expected.get("uid", uid) != uid:
        return ObjectGone(f"{target}: uid is {uid} now, not {expected['uid']}")
    if "uid" in expected and expected.get("resourceVersion", version) == version:
        return WriteRefused(str(error))
    return error if isinstance(error, WriteConflict) else WriteConflict(str(error))


def _metadata(target: str, body: bytes) -> _Meta:
    try:
        return decoded(_object, body, LEVELS).metadata
    except ValueError:
        text = body[:100].decode(errors="replace")
        raise ClusterUnavailable(f"{target}: the answer is not an object: {text}") from None


class Writer:
    """Patches of jobs, pods, nodes and namespaces."""

    def __init__(self, api: Api, kinds: JobKinds = KINDS) -> None:
        self._api = api
        self._kinds = kinds
        self._server = Discovered(api)

    async def patch_job(
        self, kind: str, namespace: str, name: str, patch: Mapping[str, Any]
    ) -> int:
        """See ``Cluster.patch_job``."""
        target = path(self._kinds[kind], namespace, name)
        if kind != "Job" or "template" not in patch.get("spec", {}):
            return version_of(await merge_patch(self._api, target, patch))
        patch = await self._with_mutable_template(target, patch)
        try:
            return version_of(await merge_patch(self._api, target, patch))
        except ClusterUnavailable as error:
            error.version = version_of(patch["metadata"]["resourceVersion"])
            raise

    async def _with_mutable_template(
        self, target: str, patch: Mapping[str, Any]
    ) -> Mapping[str, Any]:
        """The patch, after the API server accepts it for a Job that has been started before.

        Both writes are conditional: the second one on the version that the first one made.
        """
        if (await self._server.get()).keeps_templates_mutable:
            return patch
        expected = {key: patch["metadata"][key] for key in ("uid", "resourceVersion")}
        body = {"metadata": expected, "status": {"startTime": None}}
        version = await merge_patch(self._api, target, body, "/status")
        return {**patch, "metadata": {**patch["metadata"], "resourceVersion": version}}

    async def patch_pod(self, namespace: str, name: str, patch: Mapping[str, Any]) -> int:
        """See ``Cluster.patch_pod``."""
        target = f"/api/v1/namespaces/{namespace}/pods/{name}"
        return version_of(await merge_patch(self._api, target, patch))

    async def delete_pod(self, namespace: str, name: str, uid: str, version: int) -> None:
        """See ``Cluster.delete_pod``."""
        options = {
            "gracePeriodSeconds": 0,
            "preconditions": {"uid": uid, "resourceVersion": str(version)},
        }
        target = f"/api/v1/namespaces/{namespace}/pods/{name}"
        await self._api.request("DELETE", target, body=options, accept=METADATA_ONLY)

    async def stop_pod(self, namespace: str, name: str, uid: str) -> None:
        """See ``Cluster.stop_pod``."""
        target = f"/api/v1/namespaces/{namespace}/pods/{name}"
        options = {"preconditions": {"uid": uid}}
        async with _meaning(self._api, target, {"uid": uid}):
            await self._api.request("DELETE", target, body=options, accept=METADATA_ONLY)

    async def evict_pod(self, namespace: str, name: str, uid: str, version: int) -> None:
        """See ``Cluster.evict_pod``."""
        target = f"/api/v1/namespaces/{namespace}/pods/{name}"
        expected = {"uid": uid, "resourceVersion": str(version)}
        body = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": name, "namespace": namespace},
            "deleteOptions": {"preconditions": expected},
        }
        async with _meaning(self._api, target, expected):
            await self._api.request("POST", f"{target}/eviction", body=body)

    async def patch_node(self, name: str, patch: Mapping[str, Any]) -> int:
        """See ``Cluster.patch_node``."""
        return version_of(await merge_patch(self._api, f"/api/v1/nodes/{name}", patch))

    async def create_object(self, resource: str, document: Mapping[str, Any]) -> None:
        """See ``Cluster.create_object``."""
        meta = document["metadata"]
        target = _collection(resource, meta["namespace"])
        try:
            await self._api.request(
                "POST", target, query=_WRITE, body=document, accept=METADATA_ONLY
            )
        except WriteConflict as error:
            await self._same_gang(f"{target}/{meta['name']}", meta["annotations"][WORKLOAD], error)

    async def _same_gang(self, target: str, gang: str, error: WriteConflict) -> None:
        """Return if the object exists and queuectl made it for this gang. Raises WriteRefused otherwise."""
        try:
            found = _metadata(target, await self._api.request("GET", target, accept=METADATA_ONLY))
        except ObjectGone:  # the conflict is the answer of a webhook, or the object is deleted now
            raise WriteRefused(str(error)) from None
        if (found.annotations or {}).get(WORKLOAD) != gang:
            raise WriteRefused(of_another(target))

    async def delete_object(self, resource: str, namespace: str, name: str) -> None:
        """See ``Cluster.delete_object``."""
        with contextlib.suppress(ObjectGone):
            await self._api.request(
                "DELETE", f"{_collection(resource, namespace)}/{name}", accept=METADATA_ONLY
            )

    async def patch_namespace(self, name: str, patch: Mapping[str, Any]) -> None:
        """See ``Cluster.patch_namespace``."""
        await merge_patch(self._api, f"/api/v1/namespaces/{name}", patch)


def of_another(target: str) -> str:
    """The message for an object that has the name of one of queuectl."""
    return f"{target} exists, and queuectl did not make it for this gang: delete it"


def _collection(resource: str, namespace: str) -> str:
    base = f"/apis/{AUTOSCALING}" if resource == REQUESTS else "/api/v1"
    return f"{base}/namespaces/{namespace}/{resource}"


@dataclass(slots=True)
class _SentEvent:
    name: str
    count: int
    written: float


class Events:
    """Events on jobs, in ``events.k8s.io/v1``. A repeated Event increments a series, which is written at most once a minute."""

    INTERVAL: Final = 60.0
    KEEP: Final = 4096

    def __init__(
        self, api: Api, clock: Callable[[], float] = time.time, kinds: JobKinds = KINDS
    ) -> None:
        self._api = api
        self._kinds = kinds
        self._clock = clock
        self._sent = RecentlyUsed[tuple[str, str, str, str], _SentEvent](self.KEEP)
        self._instance = socket.gethostname()[:128] or MANAGER

    async def create(self, job: JobRecord, kind: str, reason: str, message: str) -> None:
        """See ``Cluster.create_event``."""
        if job.index is not None:
            message = f"index {job.index.number}: {message}"
            job = object_of(job)
        now = self._clock()
        key = (job.uid, kind, reason, message)
        sent = self._sent.get(key)
        if sent is not None:
            sent.count += 1
            if now - sent.written < self.INTERVAL:
                return
            sent.written = now
            if await self._count_up(job, sent, now):
                return
        name = await self._create(job, kind, reason, message, now)
        self._sent.put(key, _SentEvent(name, 1, now))

    async def _count_up(self, job: JobRecord, sent: _SentEvent, now: float) -> bool:
        series = {"count": sent.count, "lastObservedTime": micro_time(now)}
        try:
            await merge_patch(self._api, f"{_events(job)}/{sent.name}", {"series": series})
        except ObjectGone:  # the server deletes Events after an hour
            return False
        return True

    async def _create(
        self, job: JobRecord, kind: str, reason: str, message: str, now: float
    ) -> str:
        event = {
            "metadata": {"generateName": f"{job.name[:200]}-", "namespace": job.namespace},
            "eventTime": micro_time(now),
            "reportingController": REPORTER,
            "reportingInstance": self._instance,
            "action": reason,
            "reason": reason,
            "type": kind,
            "note": _shorten(printable(message), 1024),  # kubectl prints it as it is
            "regarding": self._regarding(job),
        }
        try:
            body = await self._api.request(
                "POST", _events(job), query=_WRITE, body=event, accept=METADATA_ONLY
            )
        except (WriteConflict, ObjectGone) as error:
            raise WriteRefused(str(error)) from None  # of a webhook: a new Event is behind nothing
        return _metadata(_events(job), body).name

    def _regarding(self, job: JobRecord) -> dict[str, str]:
        """The object with its Events. A group of pods has them on its first pod."""
        if job.face is not None:
            face = {"name": job.face.name, "uid": job.face.uid}
            return {"apiVersion": "v1", "kind": "Pod", "namespace": job.namespace, **face}
        api = self._kinds[job.kind]
        return {
            "apiVersion": f"{api.group}/{api.version}",
            "kind": job.kind,
            "namespace": job.namespace,
            "name": job.name,
            "uid": job.uid,
        }


def _events(job: JobRecord) -> str:
    return f"/apis/events.k8s.io/v1/namespaces/{job.namespace}/events"


def micro_time(seconds: float) -> str:
    """Unix seconds as Kubernetes' MicroTime."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _shorten(text: str, size: int) -> str:
    """The text cut to at most ``size`` bytes, the limit of the server."""
    encoded = text.encode()
    if len(encoded) <= size:
        return text
    return encoded[: size - 3].decode(errors="ignore") + "…"


# ---- Names of the mutation of new jobs

POLICY: Final = "MutatingAdmissionPolicy"
BINDING: Final = "MutatingAdmissionPolicyBinding"
CONFIGURATION: Final = "queuectl"
"""The MutatingWebhookConfiguration."""
NAME: Final = "queuectl-webhook"
"""Of the Secret, the ServiceAccount and the StatefulSet of the webhook."""
PATH: Final = "/mutate/"
"""The path of a policy is this and its name."""
