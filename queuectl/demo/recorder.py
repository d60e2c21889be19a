"""Records every revision of nodes, jobs and pods, as a user with the right to read them, and replays the cluster at each of them.

    with Recorder(cluster.kubeconfig) as recorder:
        ...
        recorder.settle()
    findings = audit.checks(recorder.recording())

Revisions come from etcd, which order the changes of all resources, so a replay has the exact order of the cluster.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Final, Self

import msgspec

from queuectl.demo.watch import KubeconfigServer, ListEnd, WatchedObject
from queuectl.domain.fleet import Node
from queuectl.domain.jobs import JobRecord, OwnerKey, PodRecord
from queuectl.domain.quantity import NOTHING, Resources
from queuectl.domain.records import NodeRecord
from queuectl.localcluster.client import START_SECONDS
from queuectl.objects.errors import RequestError
from queuectl.objects.kinds import KINDS, JobKinds, index_labels, leaderworkerset, path
from queuectl.objects.kinds.parents import Parents
from queuectl.objects.kinds.pods import pod_reader
from queuectl.objects.kubernetes.nodes import read_node
from queuectl.objects.kubernetes.wire import WireNode

# ---- Recording

_POLL_SECONDS: Final = 0.1
Fact = NodeRecord | JobRecord | PodRecord
PODS: Final = "/api/v1/pods"


@dataclass(frozen=True, slots=True)
class ObjectRevision:
    """One revision of one object.

    Attributes:
        version: revision of etcd; the order of all events.
        at: Unix seconds of arrival.
        key: uid of the object.
        fact: the object from now on; the last state of a deleted object.
        gone: the object was deleted.
    """

    version: int
    at: float
    key: str
    fact: Fact
    gone: bool = False


@dataclass(frozen=True, slots=True)
class Recording:
    """Events. ``gaps``: the number of expired watches, after each of which revisions can be missing."""

    events: tuple[ObjectRevision, ...]
    gaps: int = 0


class Recorder:
    """Records in a thread, from its start until it is closed.

    Args:
        kubeconfig: kubeconfig of a user with the right to list and watch nodes, pods, LeaderWorkerSets and jobs of ``kinds``.
        kinds: kinds of jobs to record.
    """

    def __init__(self, kubeconfig: Path, kinds: JobKinds = KINDS) -> None:
        self._server = KubeconfigServer(kubeconfig)
        self._paths: dict[str, Callable[[msgspec.Raw], Fact | None]] = {
            "/api/v1/nodes": _reader(WireNode, read_node),
            leaderworkerset.PATH: _job_reader(leaderworkerset.WireSet, leaderworkerset.read_set),
            PODS: pod_reader(index_labels(kinds), kinds),
        }
        self._paths |= {path(kind): _job_reader(kind.wire, kind.read) for kind in kinds.values()}
        self._lock = threading.Lock()
        self._events: list[ObjectRevision] = []
        self._known: dict[str, dict[str, Fact]] = {one: {} for one in self._paths}
        self._versions: dict[str, dict[str, int]] = {one: {} for one in self._paths}
        self._gaps = 0
        self._listed: set[str] = set()
        self._loop = asyncio.new_event_loop()
        self._following: asyncio.Task[None]  # of the thread
        self._thread = threading.Thread(target=self._run, name="recorder", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        try:
            self._wait(lambda: len(self._listed) == len(self._paths), "the first lists")
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop recording. The recording stays readable. Without effect if it is stopped."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._cancel)
            self._thread.join()

    def recording(self) -> Recording:
        """The events so far, in the order of the cluster."""
        with self._lock:
            return Recording(tuple(sorted(self._events, key=lambda e: e.version)), self._gaps)

    def now(self) -> tuple[dict[str, Node], list[PodRecord]]:
        """The current nodes by name, and the current pods."""
        with self._lock:
            facts = [fact for known in self._known.values() for fact in known.values()]
        nodes = {fact.node.name: fact.node for fact in facts if isinstance(fact, NodeRecord)}
        return nodes, [fact for fact in facts if isinstance(fact, PodRecord)]

    def jobs(self) -> list[JobRecord]:
        """The current jobs."""
        with self._lock:
            facts = [fact for known in self._known.values() for fact in known.values()]
        return [fact for fact in facts if isinstance(fact, JobRecord)]

    def settle(self, *only: str, seconds: float = START_SECONDS) -> None:
        """Wait until the recording has all objects of a new list; ``only``: paths of collections, none = all.

        Raises:
            TimeoutError: it does not after ``seconds``.
        """
        for collection in only or self._paths:
            future = asyncio.run_coroutine_threadsafe(self._server.list(collection), self._loop)
            fresh = future.result(seconds)
            self._wait(partial(self._covers, collection, fresh), collection, seconds)

    def _covers(self, collection: str, fresh: ListEnd) -> bool:
        with self._lock:
            seen = self._versions[collection]
            gone = self._known[collection].keys() - fresh.versions.keys()
            return all(seen.get(uid, 0) >= at for uid, at in fresh.versions.items()) and not any(
                seen[uid] <= fresh.version for uid in gone
            )

    def _wait(self, ended: Callable[[], bool], what: str, seconds: float = START_SECONDS) -> None:
        deadline = time.monotonic() + seconds
        while not ended():
            if time.monotonic() > deadline or not self._thread.is_alive():
                raise TimeoutError(f"the recorder has no answer in time: {what}")
            time.sleep(_POLL_SECONDS)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._following = self._loop.create_task(self._follow_all())
        try:
            with suppress(asyncio.CancelledError):
                self._loop.run_until_complete(self._following)
        finally:
            self._loop.run_until_complete(self._end())
            self._loop.close()

    def _cancel(self) -> None:
        """Cancel the outermost task. It cancels the tasks inside and waits for them, so that no connection stays open."""
        self._following.cancel()

    async def _end(self) -> None:
        """End what is left: the list of a :meth:`settle` that timed out."""
        left = asyncio.all_tasks() - {asyncio.current_task()}
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)
        await self._loop.shutdown_asyncgens()
        await asyncio.sleep(0)  # a closed transport closes its socket in the next turn of the loop

    async def _follow_all(self) -> None:
        try:
            async with asyncio.TaskGroup() as group:
                for collection in self._paths:
                    group.create_task(self._follow(collection))
        finally:
            await self._server.close()

    async def _follow(self, collection: str) -> None:
        async for seen in self._server.follow(collection):
            with self._lock:
                if isinstance(seen, ListEnd):
                    self._relist(collection, seen)
                else:
                    self._take(collection, seen)

    def _take(self, collection: str, watched: WatchedObject) -> None:
        versions = self._known[collection]
        before = versions.get(watched.uid)
        self._versions[collection][watched.uid] = watched.version
        if watched.gone:
            if before is not None:
                self._drop(collection, watched.uid, watched.version)
            return
        try:
            fact = self._paths[collection](watched.raw)
        except (msgspec.MsgspecError, RequestError):  # the object keeps its last readable form
            return
        if fact is None or (before is not None and _same(before, fact)):
            return
        versions[watched.uid] = fact
        self._events.append(ObjectRevision(watched.version, time.time(), watched.uid, fact))

    def _relist(self, collection: str, relisted: ListEnd) -> None:
        for uid in self._known[collection].keys() - relisted.versions.keys():
            self._drop(collection, uid, relisted.version)
        self._gaps += not relisted.first
        self._listed.add(collection)

    def _drop(self, collection: str, uid: str, version: int) -> None:
        fact = self._known[collection].pop(uid)
        self._events.append(ObjectRevision(version, time.time(), uid, fact, gone=True))


def _same(before: Fact, after: Fact) -> bool:
    """Whether only the resourceVersion differs. The member of a pod has it too, so each revision of such a pod is an event."""
    return replace(after, version=before.version) == before


def _reader(wire: Any, read: Callable[[Any], Fact]) -> Callable[[msgspec.Raw], Fact | None]:
    decode = msgspec.json.Decoder(wire).decode
    return lambda raw: read(decode(raw))


def _job_reader(
    wire: Any, read: Callable[[Any], JobRecord]
) -> Callable[[msgspec.Raw], Fact | None]:
    decode = msgspec.json.Decoder(wire).decode

    def read_queued(raw: msgspec.Raw) -> JobRecord | None:
        record = read(decode(raw))
        return record if record.queue is not None else None

    return read_queued


# ---- Replay


def place_of(pod: PodRecord) -> str | None:
    """The node on which a pod occupies capacity; before it is bound, the node, or its hostname, to which an ungated pod is pinned."""
    return None if pod.terminal or pod.gated else pod.node or pod.pin or pod.host


def podset_of(job: JobRecord, pod: PodRecord) -> str:
    """PodSet of a managed pod. A pod without the label belongs to the only PodSet."""
    return pod.podset or (job.podsets[0].name if len(job.podsets) == 1 else "")


@dataclass(slots=True)
class ObservedState:
    """All objects at one revision.

    Attributes:
        hosts: hostname label to node.
        capacity: the most that each node has offered. Devices are missing for some time after a restart of a node, and gangs
            keep their slots there.
    """

    nodes: dict[str, Node] = field(default_factory=dict)
    capacity: dict[str, Resources] = field(default_factory=dict)
    hosts: dict[str, str] = field(default_factory=dict)
    jobs: dict[str, JobRecord] = field(default_factory=dict)
    pods: dict[str, PodRecord] = field(default_factory=dict)
    of_job: dict[str, dict[str, PodRecord]] = field(default_factory=dict)
    use: dict[str, Resources] = field(default_factory=dict)

    def node_of(self, pod: PodRecord) -> str | None:
        """The node on which a pod occupies capacity."""
        place = place_of(pod)
        if place is None or pod.node or place in self.nodes:
            return place
        return self.hosts.get(place, place)


@dataclass(frozen=True, slots=True)
class PodRevision:
    """One pod before and after a revision; None = it does not exist."""

    version: int
    at: float
    before: PodRecord | None
    after: PodRecord | None


@dataclass(slots=True)
class Replay:
    """Applies a recording's events in order."""

    recording: Recording
    observed: ObservedState = field(default_factory=ObservedState)
    _parents: Parents = field(default_factory=Parents)

    def steps(self) -> Iterator[PodRevision]:
        """Each change of a pod; ``observed`` is the state after it."""
        for event in self.recording.events:
            match event.fact:
                case NodeRecord() as fact:
                    self._node(fact.node, gone=event.gone)
                case JobRecord() as job:
                    self._job(event.key, job, gone=event.gone)
                case PodRecord() as pod:
                    yield self._pod(event, pod)

    def _node(self, node: Node, *, gone: bool) -> None:
        if gone:
            self.observed.nodes.pop(node.name, None)
            self.observed.capacity.pop(node.name, None)
        else:
            self.observed.nodes[node.name] = node
            known = self.observed.capacity.get(node.name, NOTHING)
            largest = {
                name: max(known[name], node.allocatable[name])
                for name in {*known, *node.allocatable}
            }
            self.observed.capacity[node.name] = Resources(largest)
            self.observed.hosts[node.hostname] = node.name

    def _job(self, uid: str, job: JobRecord, *, gone: bool) -> None:
        changed: JobRecord | None
        if gone:
            self.observed.jobs.pop(uid, None)
            changed = self._parents.remove_child(uid)
            self._parents.drop(uid)
        elif job.parent and job.queue is None:
            changed = self._parents.put_child(job)
        else:
            changed = self._parents.put(job)
        if changed is not None:
            self.observed.jobs[changed.uid] = changed

    def _pod(self, event: ObjectRevision, pod: PodRecord) -> PodRevision:
        observed = self.observed
        job = observed.jobs.get(pod.owner)
        if job is not None and pod.owned_by != OwnerKey.of(job):
            pod = replace(pod, owner="")  # its claim to the job is wrong
        before = observed.pods.get(event.key)
        after = None if event.gone else pod
        siblings = observed.of_job.setdefault(pod.owner, {})
        if after is None:
            observed.pods.pop(event.key, None)
            siblings.pop(event.key, None)
        else:
            observed.pods[event.key] = siblings[event.key] = after
        for one, sign in ((before, -1), (after, 1)):
            node = observed.node_of(one) if one is not None else None
            if one is not None and node is not None:
                observed.use[node] = observed.use.get(node, NOTHING) + one.requests * sign
        return PodRevision(event.version, event.at, before, after)
