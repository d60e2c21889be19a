"""Objects, versions and watches in memory: the part of an API server that the protocol uses.

Documents are real, and the readers of ``queuectl.objects`` decode them. A patch with a misspelled field fails here as it
fails there.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec

from queuectl.cluster.resources import watched
from queuectl.cluster.stream import ResourceFeed
from queuectl.domain.containment import Containment
from queuectl.domain.errors import ObjectGone, WriteConflict, WriteRefused
from queuectl.domain.records import Delta
from queuectl.domain.words import format_time
from queuectl.objects.kinds import KINDS, JobKinds
from queuectl.objects.kinds.described import encoded
from tests.doubles.known import KNOWN

Document = dict[str, Any]
Key = tuple[str, str]  # namespace ("" for none) and name

CLUSTER_WIDE = (
    *("nodes", "namespaces", "priorityclasses", "runtimeclasses"),
    *("resourceslices", "deviceclasses", "devicetaintrules"),
    "noderesourcetopologies",
)


def copied(document: Document) -> Document:
    """A deep copy of JSON. ``copy.deepcopy`` would take a sixth of the time of a crash scenario."""
    copy: Document = msgspec.json.decode(msgspec.json.encode(document))
    return copy


def merge(document: Any, patch: Any) -> Any:
    """RFC 7386."""
    if not isinstance(patch, dict):
        return copied(patch)
    merged = dict(document) if isinstance(document, dict) else {}
    for key, value in patch.items():
        if value is None:
            merged.pop(key, None)
        else:
            merged[key] = merge(merged.get(key), value)
    return merged


def operated(document: Document, operations: list[Document]) -> Document:
    """RFC 6902, as far as queuectl uses it. Raises WriteRefused."""
    changed = copied(document)
    for one in operations:
        *parents, last = [
            part.replace("~1", "/").replace("~0", "~") for part in one["path"].split("/")[1:]
        ]
        target: Any = changed
        try:
            for name in parents:
                target = target[int(name)] if isinstance(target, list) else target[name]
            if one["op"] == "remove":
                del target[last]
            else:
                assert one["op"] == "add"
                value = copied(one["value"])
                if isinstance(target, list):
                    assert last == "-"
                    target.append(value)
                else:
                    target[last] = value
        except (KeyError, IndexError):
            raise WriteRefused(f"{one}: no such path") from None
    return changed


class Server:
    """The store: create, patch with preconditions, edit (by a controller), delete gracefully, remove."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.clock = clock
        self.objects: dict[str, dict[Key, Document]] = {
            name: {} for name in (*(r.name for r in watched(kinds=KNOWN)), "podtemplates")
        }
        self.version = 100
        self.webhooks: list[Callable[[Document], None]] = []  # they change new pods
        self.watchers: list[Watcher] = []
        self._uids = itertools.count(1)
        self._pods: dict[str, dict[Key, None]] = {}  # of each owner, in order of creation

    def create(self, resource: str, document: Document) -> Document:
        """Store a new object; returns it as stored."""
        created = copied(document)
        meta = created["metadata"]
        if resource not in CLUSTER_WIDE:
            meta.setdefault("namespace", "default")
        key = (meta.get("namespace", ""), meta["name"])
        if key in self.objects[resource]:
            raise WriteConflict(f"{resource} {key} already exists")
        meta["uid"] = f"{resource}-{next(self._uids):05d}"
        meta["creationTimestamp"] = format_time(self.clock())
        self._store(resource, key, created, "ADDED")
        return created

    def get(self, resource: str, namespace: str, name: str) -> Document:
        try:
            return self.objects[resource][namespace, name]
        except KeyError:
            raise ObjectGone(f"{resource} {namespace}/{name} not found") from None

    def patch(
        self,
        resource: str,
        namespace: str,
        name: str,
        patch: Document,
        check: Callable[[Document, Document], None],
    ) -> Document:
        """Patch under the uid and resourceVersion in the body; ``check(old, new)`` may refuse."""
        old = self.get(resource, namespace, name)
        meta = patch.get("metadata", {})
        if meta.get("uid", old["metadata"]["uid"]) != old["metadata"]["uid"]:
            raise ObjectGone(f"{resource} {namespace}/{name}: another uid")
        version = old["metadata"]["resourceVersion"]
        if meta.get("resourceVersion", version) != version:
            raise WriteConflict(f"{resource} {namespace}/{name}: the object has been modified")
        body, _ = encoded(patch)
        new = operated(old, body) if isinstance(body, list) else merge(old, body)
        if new["metadata"].get("managedFields") == [{}]:
            del new["metadata"]["managedFields"]
        check(old, new)
        return self._replace(resource, (namespace, name), old, new)

    def edit(self, resource: str, document: Document, change: Callable[[Document], None]) -> bool:
        """Change an object as a controller. Returns whether it changed."""
        meta = document["metadata"]
        key = (meta.get("namespace", ""), meta["name"])
        old = self.objects[resource].get(key)
        if old is None or old["metadata"]["uid"] != meta["uid"]:
            return False
        new = copied(old)
        change(new)
        return self._replace(resource, key, old, new) is not old

    def delete(self, resource: str, document: Document) -> None:
        """Delete an object: pods end gracefully, all others are removed at once."""
        if resource == "pods":
            stamp = format_time(self.clock())
            self.edit(
                resource, document, lambda d: d["metadata"].setdefault("deletionTimestamp", stamp)
            )
        else:
            self.remove(resource, document)

    def remove(self, resource: str, document: Document) -> None:
        meta = document["metadata"]
        key = (meta.get("namespace", ""), meta["name"])
        gone = self.objects[resource].pop(key, None)
        if gone is not None:
            if resource == "pods":
                del self._pods[owner_of(gone)][key]
            self._stamp(gone)
            self._notify(resource, "DELETED", gone)

    def all(self, resource: str) -> list[Document]:
        """In order of creation."""
        return list(self.objects[resource].values())

    def owned(self, uid: str) -> list[Document]:
        """Pods whose controller has this uid."""
        return [self.objects["pods"][key] for key in self._pods.get(uid, ())]

    def _replace(self, resource: str, key: Key, old: Document, new: Document) -> Document:
        if new == old:  # as in the real server: no change, no new version
            return old
        self._store(resource, key, new, "MODIFIED")
        return new

    def _store(self, resource: str, key: Key, document: Document, event: str) -> None:
        self._stamp(document)
        self.objects[resource][key] = document
        if resource == "pods":
            self._pods.setdefault(owner_of(document), {})[key] = None
        self._notify(resource, event, document)

    def _stamp(self, document: Document) -> None:
        self.version += 1
        document["metadata"]["resourceVersion"] = str(self.version)

    def _notify(self, resource: str, event: str, document: Document) -> None:
        line = msgspec.json.encode({"type": event, "object": document})
        for watcher in self.watchers:
            watcher.notify(resource, line)


class Watcher:
    """One ``Cluster.watch``, with the events that it has not delivered."""

    def __init__(
        self,
        server: Server,
        *,
        kueue: bool = True,
        kinds: JobKinds = KINDS,
        containment: Containment | None = None,
    ) -> None:
        self._server = server
        containment = containment or Containment(time.time)
        self._feeds = {
            resource.name: ResourceFeed(resource, containment)
            for resource in watched(kueue=kueue, kinds=kinds)
        }
        self._pending: list[tuple[str, bytes]] = []
        self._relist = True
        self.shown = 0  # the version of the server at the last delivery
        self.held = False
        self.wake = asyncio.Event()
        self.wake.set()

    def notify(self, resource: str, line: bytes) -> None:
        if resource not in self._feeds:
            return  # queuectl does not watch it
        self._pending.append((resource, line))
        if not self.held:
            self.wake.set()

    def cut(self) -> None:
        """Drop the events that were not delivered, and deliver a complete list next."""
        self._pending.clear()
        self._relist = True
        if not self.held:
            self.wake.set()

    def list_if_older(self, version: int) -> None:
        """List again on a new connection, unless it has delivered or can deliver this version."""
        if self.shown < version and self.held:
            self.hold(False)
            self.cut()
        self.wake.set()

    def hold(self, held: bool) -> None:
        """Deliver nothing until it is released."""
        self.held = held
        if not held:
            self.wake.set()

    def take(self) -> Iterator[tuple[str, Sequence[Delta], bool]]:
        """(resource, batch, that was a complete list) of all that is pending."""
        self.wake.clear()
        shown = self._server.version
        if self._relist:
            self._relist = False
            self._pending.clear()
            for name, feed in self._feeds.items():
                yield name, self._list(feed), True
        pending, self._pending = self._pending, []
        for name, group in itertools.groupby(pending, key=lambda one: one[0]):
            batch = self._feeds[name].events([line for _, line in group])
            assert batch.error is None
            if batch.deltas:
                yield name, batch.deltas, False
        self.shown = shown

    def _list(self, feed: ResourceFeed) -> list[Delta]:
        feed.keys.clear()
        lines = [
            msgspec.json.encode({"type": "ADDED", "object": document})
            for document in self._server.all(feed.resource.name)
        ]
        batch = feed.events(lines)
        feed.version = str(self._server.version)
        feed.complete(batch)
        return batch.deltas


def owner_of(document: Document) -> str:
    """uid of the controller, "" for none."""
    owners = document["metadata"].get("ownerReferences", ())
    return next((owner["uid"] for owner in owners if owner.get("controller")), "")


def refuse(condition: bool, message: str) -> None:
    """Raise the refusal of the server if the condition holds."""
    if condition:
        raise WriteRefused(message)
