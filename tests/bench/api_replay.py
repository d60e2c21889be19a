"""An API server of a large cluster in a separate process: ``python -m tests.bench.api_replay NODES PENDING SHAPES``.

It makes a deterministic cluster, serves its objects as lists and watches over plain HTTP on loopback, and answers the writes of a controller.
The consequences of a write come as events of the watch: a resumed Job has gated pods, a released pod is bound to its node and then runs, and a
finished Job is deleted with its pods. Nothing else runs in the process, so the times of the controller include no other component.

Commands are lines of JSON on standard input, with an answer on standard output for each. The first line of the output is the port.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import random
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any, Final

import msgspec
from aiohttp import web

from queuectl.cli.program import tune_interpreter
from queuectl.cluster.resources import watched
from queuectl.cluster.stream import INITIAL_EVENTS_END
from queuectl.demo import scenario as m
from queuectl.demo.scenario import PodSetManifest
from queuectl.domain.errors import ObjectGone, WriteConflict
from queuectl.domain.quantity import CPU, GPU
from queuectl.localcluster.nodes import BLOCK, RACK, NodeSpec
from queuectl.objects.kinds import KINDS
from queuectl.objects.kubernetes.node_affinity import REQUIRED
from tests.bench.bench_reflector import managed
from tests.doubles.admission import born, suspended
from tests.doubles.apiserver import Document, Server
from tests.doubles.controllers import Controllers
from tests.doubles.writing import condition

FLAVORS: Final = ("a100", "h100", "h200", "b200")
GENERATION: Final = "example.com/generation"
DEPARTMENTS, QUEUES = 4, 40
RACK_HOSTS, BLOCK_RACKS = 16, 25
FILLED: Final = 12
"""Nodes of each rack that gangs hold: 75%."""
SMALL: Final = (2, 1, 1, 1)
"""Nodes of a rack whose pods have one GPU each, next to the nodes with pods of 8 GPUs; by the number of the rack."""
SIZES: Final = (1, 1, 1, 1, 2, 2, 4, 4, 8, 12)
"""Pods of a gang that runs, each a whole node of one rack."""
ARRIVING: Final = (1, 1, 2, 4)
BIND_SECONDS, RUN_SECONDS = 0.02, 0.1
CHUNK: Final = 100
"""Objects of one write of a list."""
LAST_SECONDS: Final = 60.0
"""A gang that is not released until then counts with this time."""


def queue_name(number: int) -> str:
    return f"team-{number:02}"


def configuration(nodes: int) -> Iterator[Document]:
    """A tree of cohorts with four departments, each with ten ClusterQueues of four flavors."""
    yield m.topology("fabric", BLOCK, RACK)
    for name in FLAVORS:
        yield m.flavor(name, topology="fabric", **{GENERATION: name})
    version = m.topology("any")["apiVersion"]
    for number in range(DEPARTMENTS):
        meta = {"name": f"department-{number}"}
        yield {
            "apiVersion": version,
            "kind": "Cohort",
            "metadata": meta,
            "spec": {"parentName": "all"},
        }
    yield {"apiVersion": version, "kind": "Cohort", "metadata": {"name": "all"}, "spec": {}}
    gpus = 12 * nodes // (QUEUES * len(FLAVORS))  # so that no queue borrows
    for number in range(QUEUES):
        quota: dict[str, int | str] = {GPU: gpus, CPU: "1M"}
        queue = m.cluster_queue(queue_name(number), FLAVORS[0], quota)
        spec = queue["spec"]
        [group] = spec["resourceGroups"]
        [first] = group["flavors"]
        group["flavors"] = [{**first, "name": name} for name in FLAVORS]
        spec["cohortName"] = f"department-{number % DEPARTMENTS}"
        spec["preemption"]["reclaimWithinCohort"] = "Any"
        yield queue
        yield m.local_queue(queue_name(number), "main", queue_name(number))


@dataclass
class Arrival:
    """A gang that is followed until its pods are released. Times are on the monotonic clock."""

    created: float
    left: int
    run_seconds: float
    released: asyncio.Event = field(default_factory=asyncio.Event)
    waited: float = LAST_SECONDS


class Replay:
    """The cluster, and its connections."""

    def __init__(self, nodes: int, pending: int, shapes: int) -> None:
        self.server = Server(time.time)
        self._controllers = Controllers(self.server)
        self._streams: dict[str, list[asyncio.Queue[bytes]]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._arrivals: dict[str, Arrival] = {}
        self._numbers = 0
        self._rng = random.Random(48)
        self.events = 0
        self.writes = 0
        for name in ("default", "queuectl-system", *map(queue_name, range(QUEUES))):
            self.server.create("namespaces", {"metadata": {"name": name}})
        self._fill(self._add_nodes(nodes))
        self._add_pending(pending, shapes)
        self.server.watchers.append(self)  # type: ignore[arg-type]  # it takes the events of each resource

    # ---- The cluster

    def _add_nodes(self, count: int) -> list[list[str]]:
        """The names of nodes by rack."""
        blocks = max(1, count // (RACK_HOSTS * BLOCK_RACKS))
        racks: dict[str, list[str]] = {}
        spec = NodeSpec(blocks=blocks, racks_per_block=BLOCK_RACKS, hosts_per_rack=RACK_HOSTS)
        for document in spec.documents():
            labels = document["metadata"]["labels"]
            block = int(labels[BLOCK].removeprefix("b"))
            labels[GENERATION] = FLAVORS[block * len(FLAVORS) // blocks]
            condition(document, "Ready", "True", time.time())
            node = self.server.create("nodes", managed(document))
            racks.setdefault(labels[RACK], []).append(node["metadata"]["name"])
        return list(racks.values())

    def _fill(self, racks: list[list[str]]) -> None:
        number = 0
        for place, rack in enumerate(racks):
            free = rack[:FILLED]
            for _ in range(SMALL[place % len(SMALL)]):
                host = free.pop()
                self._start(number, [host] * 8, 1)
                number += 1
            while free:
                pods = min(len(free), self._rng.choice(SIZES))
                self._start(number, [free.pop() for _ in range(pods)], 8)
                number += 1

    def _start(self, number: int, hosts: list[str], gpus: int) -> None:
        """A gang that runs on these nodes."""
        name, namespace = f"runs-{number:05}", queue_name(number % QUEUES)
        self._submit(name, number % QUEUES, len(hosts), gpus, f"{gpus * 8}")
        kind = KINDS["Job"]
        record = kind.read(msgspec.convert(self.server.get("jobs", namespace, name), kind.wire))
        patch = kind.start_patch(record, 1, "", {})
        job = self.server.patch("jobs", namespace, name, patch, lambda *_: None)
        meta, template = job["metadata"], job["spec"]["template"]
        owner = {"kind": "Job", "name": name, "uid": meta["uid"], "controller": True}
        for index, host in enumerate(hosts):
            labels = {
                **template["metadata"].get("labels", {}),
                "batch.kubernetes.io/job-name": name,
                "batch.kubernetes.io/job-completion-index": str(index),
            }
            pod: Document = {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {
                    "name": f"{name}-{index}",
                    "namespace": namespace,
                    "labels": labels,
                    "annotations": template["metadata"].get("annotations", {}),
                    "ownerReferences": [owner],
                },
                "spec": {
                    **template["spec"],
                    "schedulingGates": [],
                    "nodeSelector": {"kubernetes.io/hostname": host},
                    "nodeName": host,
                },
                "status": {"phase": "Running"},
            }
            for condition_type in ("PodScheduled", "Ready"):
                condition(pod, condition_type, "True", time.time())
            self.server.create("pods", managed(pod))

    def _add_pending(self, count: int, shapes: int) -> None:
        """Gangs of the first queue. Each requests a whole rack, and no rack is free."""
        for number in range(count):
            shape = number % shapes
            cpu = f"{32_000 + shape}m"
            self._submit(f"waits-{number:05}", 0, 14 + shape % 3, 8, cpu)

    def _submit(self, name: str, queue: int, pods: int, gpus: int, cpu: str) -> str:
        where = queue_name(queue)
        document = _job(where, pods, gpus, cpu)
        document = {**document, "metadata": {**document["metadata"], "name": name}}
        return str(self.server.create("jobs", document)["metadata"]["uid"])

    # ---- Consequences

    async def load(
        self,
        *,
        bursts: int,
        gangs: int,
        every: float,
        run_seconds: float = 5.0,
        heartbeats: float = 0.0,
        readiness: float = 0.0,
        queues: int = QUEUES,
    ) -> dict[str, Any]:
        """Gangs that arrive in queues other than the first one, all of a burst at once, and statuses of nodes.

        Args:
            bursts: number of them.
            gangs: in each.
            every: seconds from one burst to the next.
            run_seconds: for which each gang runs.
            heartbeats: statuses of nodes in a second.
            readiness: nodes in a second that are not ready, or ready again.
            queues: number of ClusterQueues in use.
        """
        began, events, writes = time.monotonic(), self.events, self.writes
        statuses = (self._heartbeats(heartbeats), self._readiness(readiness))
        background = [asyncio.create_task(each) for each in statuses]
        arrived: list[Arrival] = []
        for burst in range(bursts):
            await asyncio.sleep(max(0.0, began + burst * every - time.monotonic()))
            arrived += [self._arrive(run_seconds, queues) for _ in range(gangs)]
        await asyncio.sleep(max(0.0, began + bursts * every - time.monotonic()))
        waiting = [asyncio.create_task(one.released.wait()) for one in arrived]
        if waiting:
            await asyncio.wait(waiting, timeout=LAST_SECONDS)
        seconds = time.monotonic() - began
        for task in (*background, *waiting):
            task.cancel()
        return {
            "waits": [one.waited for one in arrived],
            "seconds": seconds,
            "events": self.events - events,
            "writes": self.writes - writes,
        }

    def _arrive(self, run_seconds: float, queues: int) -> Arrival:
        self._numbers += 1
        pods = ARRIVING[self._numbers % len(ARRIVING)]
        queue = 1 + self._numbers % (queues - 1)
        found = Arrival(time.monotonic(), pods, run_seconds)
        uid = self._submit(f"new-{self._numbers:06}", queue, pods, 8, "64")
        self._arrivals[uid] = found
        return found

    async def _heartbeats(self, rate: float) -> None:
        names = list(self.server.objects["nodes"].values())
        while rate:
            for number in self._rng.sample(range(len(names)), max(1, int(rate / 10))):
                self.server.edit("nodes", names[number], self._beat)
            await asyncio.sleep(0.1)

    async def _readiness(self, rate: float) -> None:
        """One node after the other, which is ready again next."""
        for node in itertools.cycle(self.server.all("nodes")) if rate else ():
            for status in ("False", "True"):
                change = partial(condition, kind="Ready", status=status, at=time.time())
                self.server.edit("nodes", node, change)
                await asyncio.sleep(1.0 / rate)

    def _beat(self, node: Document) -> None:
        for one in node["status"]["conditions"]:
            one["lastHeartbeatTime"] = f"2026-11-20T05:00:00.{self.events % 1_000_000:06}Z"

    def _patched(self, resource: str, document: Document) -> None:
        """The effects of a write of the controller."""
        if resource == "jobs" and not suspended(document):
            self._controllers._sync_job(document)
        elif resource == "pods" and not document["spec"].get("schedulingGates"):
            owner = document["metadata"]["ownerReferences"][0]["uid"]
            arrival = self._arrivals.get(owner)
            if arrival is not None:
                arrival.left -= 1
                if not arrival.left:
                    arrival.waited = time.monotonic() - arrival.created
                    arrival.released.set()
                    self._background(self._live(owner, arrival.run_seconds))
            self._background(self._bind(document, _node_of(document)))

    def _background(self, work: Any) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _bind(self, pod: Document, host: str) -> None:
        await asyncio.sleep(BIND_SECONDS)
        self._controllers._bind(pod, host)
        await asyncio.sleep(RUN_SECONDS)
        self._controllers.set_phase(pod, "Running")

    async def _live(self, uid: str, seconds: float) -> None:
        """The rest of the life of a gang."""
        await asyncio.sleep(seconds)
        del self._arrivals[uid]
        owned = self.server.owned(uid)
        job = self.server.get(
            "jobs",
            owned[0]["metadata"]["namespace"],
            owned[0]["metadata"]["ownerReferences"][0]["name"],
        )
        for pod in owned:
            self._controllers.set_phase(pod, "Succeeded")
        self._controllers._sync_job(job)
        await asyncio.sleep(1.0)
        for pod in self.server.owned(uid):
            self.server.remove("pods", pod)
        self.server.remove("jobs", job)

    # ---- HTTP

    def notify(self, resource: str, line: bytes) -> None:
        """An event for each watch of the resource."""
        self.events += 1
        for stream in self._streams.get(resource, ()):
            stream.put_nowait(line)

    async def answer(self, request: web.Request) -> web.StreamResponse:
        parts = request.path.strip("/").split("/")
        if request.path == "/version":
            return web.json_response({"major": "1", "minor": "36", "gitVersion": "v1.36.3"})
        place = parts[2:] if parts[0] == "api" else parts[3:]
        if place and place[0] == "namespaces" and len(place) > 2:
            namespace, resource, *rest = place[1:]
            return await self._object(request, resource, namespace, rest)
        if place and place[0] in self.server.objects:
            if len(place) > 1:
                return await self._object(request, place[0], "", place[1:])
            return await self._collection(request, place[0])
        return web.json_response({"reason": "NotFound", "code": 404}, status=404)

    async def _object(
        self, request: web.Request, resource: str, namespace: str, rest: list[str]
    ) -> web.StreamResponse:
        if request.method == "POST":
            return web.json_response({"metadata": {"name": "any"}}, status=201)
        try:
            if request.method == "PATCH":
                self.writes += 1
                body = msgspec.json.decode(await request.read())
                document = self.server.patch(resource, namespace, rest[0], body, lambda *_: None)
                self._patched(resource, document)
            else:
                document = self.server.get(resource, namespace, rest[0])
        except WriteConflict as error:
            return _refusal(409, "Conflict", error)
        except ObjectGone as error:
            return _refusal(404, "NotFound", error)
        return web.json_response({"metadata": document["metadata"]})

    async def _collection(self, request: web.Request, resource: str) -> web.StreamResponse:
        metadata = {"resourceVersion": str(self.server.version)}
        if "watch" not in request.query:
            return web.json_response({"metadata": metadata, "items": []})
        stream: asyncio.Queue[bytes] = asyncio.Queue()
        self._streams.setdefault(resource, []).append(stream)
        documents = self.server.all(resource) if "sendInitialEvents" in request.query else []
        marked = {**metadata, "annotations": {INITIAL_EVENTS_END: "true"}}
        response = web.StreamResponse()
        encode = msgspec.json.encode
        try:
            await response.prepare(request)
            # Other requests are answered in between: tens of thousands of objects take seconds.
            for start in range(0, len(documents), CHUNK):
                chunk = documents[start : start + CHUNK]
                lines = [encode({"type": "ADDED", "object": document}) for document in chunk]
                await response.write(b"\n".join(lines) + b"\n")
                await asyncio.sleep(0)
            await response.write(
                encode({"type": "BOOKMARK", "object": {"metadata": marked}}) + b"\n"
            )
            while True:
                batch = [await self._next(stream)]
                while not stream.empty():
                    batch.append(stream.get_nowait())
                await response.write(b"\n".join(batch) + b"\n")
        except ConnectionError:
            return response
        finally:
            self._streams[resource].remove(stream)

    async def _next(self, stream: asyncio.Queue[bytes]) -> bytes:
        """The next event, or a bookmark with the current version."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(1.0):
                return await stream.get()
        metadata = {"resourceVersion": str(self.server.version)}
        return msgspec.json.encode({"type": "BOOKMARK", "object": {"metadata": metadata}})


@cache
def _job(namespace: str, pods: int, gpus: int, cpu: str) -> Document:
    """A Job as admission stores it, without its name."""
    manifest = PodSetManifest(pods, gpus=gpus, cpu=cpu, required=RACK)
    return managed(born(m.job("", namespace, "main", manifest)))


def _node_of(pod: Document) -> str:
    """The node to which the controller pins it. The template has no affinity, so the pin is the only term."""
    [term] = pod["spec"]["affinity"]["nodeAffinity"][REQUIRED]["nodeSelectorTerms"]
    [requirement] = term["matchFields"]
    return str(requirement["values"][0])


def _refusal(code: int, reason: str, error: Exception) -> web.Response:
    return web.json_response({"reason": reason, "message": str(error), "code": code}, status=code)


async def main(nodes: int, pending: int, shapes: int) -> None:
    """Serve until standard input ends."""
    assert all(resource.path for resource in watched())
    replay = Replay(nodes, pending, shapes)
    app = web.Application(client_max_size=1 << 24)
    app.router.add_route("*", "/{path:.*}", replay.answer)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    tune_interpreter()  # after the objects are made: otherwise each full collection reads all of them
    pods = len(replay.server.objects["pods"])
    print(json.dumps({"port": runner.addresses[0][1], "pods": pods}), flush=True)
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), sys.stdin
    )
    while line := await reader.readline():
        print(json.dumps(await replay.load(**json.loads(line))), flush=True)


if __name__ == "__main__":
    asyncio.run(main(*map(int, sys.argv[1:])))
