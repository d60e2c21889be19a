"""How fast a list and a watch become records: ``uv run python -m tests.bench.bench_reflector [objects]``.

The objects are as a live API server sends them: with managed fields, a status, and the gates, labels and annotations of admission and of the
controllers. Each names itself in an argument and in the environment of its containers, and half of the jobs have started. Their
requests repeat: they have one of :data:`SHAPES` sizes. In rows with the mark ``distinct``, no two jobs have the same request.

- A first list and then changes of pods, from bytes to the mirror;
- the whole reflector, a WatchList over plain HTTP on loopback from a process that does nothing else;
- decoding alone, from the bytes of a watch to records, alongside the client library's own typed models on the same bytes.

CPU is that of this process. Memory is the growth of its resident set while it holds every record, as the mirror does. ``read again`` is
the share of the jobs whose request was not read, because an equal one was.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from multiprocessing.connection import Connection as Pipe
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
from aiohttp import web
from kubernetes_asyncio.client import ApiClient, Configuration
from rich.console import Console
from rich.table import Table

from queuectl.cluster.client import Api
from queuectl.cluster.connection import Connection
from queuectl.cluster.reflector import NoHooks, Pace, Reflector
from queuectl.cluster.resources import Resource, watched
from queuectl.cluster.stream import INITIAL_EVENTS_END, ResourceFeed
from queuectl.domain.containment import Containment
from queuectl.domain.records import Delta, Record, Upserted
from queuectl.objects.kinds import KINDS, leaderworkerset
from queuectl.objects.kubernetes.cached import CachedReader
from queuectl.objects.kubernetes.node_affinity import pinned, write_required
from queuectl.state.mirror import Mirror
from tests.cluster.test_client import kubeconfig
from tests.support.contained import no_unit_is_set_aside
from tests.support.jobs import batch_job, job_of, template

RESOURCES = {resource.name: resource for resource in watched()}
KIND_NAMES = {name: kind.plural for name, kind in KINDS.items()}
CHUNK = 500  # lines per piece, about what a read brings
SAMPLE = 300  # objects for the typed models, which are slow
PODS = 20_000
JOBS = 5_000  # of each kind
SHAPES = 200  # requests that differ


@dataclass(frozen=True)
class Figure:
    what: str
    objects: int
    megabytes: float
    cpu: float
    wall: float | None = None
    memory: float | None = None  # MiB
    again: float | None = None  # share of the objects

    @property
    def rate(self) -> float:
        return self.objects / self.cpu


def managed(document: dict[str, Any]) -> dict[str, Any]:
    """With the bookkeeping that makes up half of what a server sends."""

    def fields(value: Any) -> Any:
        if isinstance(value, dict):
            return {f"f:{key}": fields(inner) for key, inner in value.items()}
        return {}

    entry = {
        "manager": "kube-controller-manager",
        "operation": "Update",
        "time": "2026-11-20T05:00:00Z",
        "fieldsType": "FieldsV1",
        "fieldsV1": fields({k: v for k, v in document.items() if k in ("metadata", "spec")}),
    }
    document["metadata"]["managedFields"] = [entry]
    return document


def meta(n: int, name: str) -> dict[str, Any]:
    return {
        "name": name,
        "namespace": f"team-{n % 20}",
        "uid": f"{n:08x}-0000-4000-8000-000000000000",
        "resourceVersion": str(1000 + n),
        "creationTimestamp": f"2026-11-20T05:{n // 60 % 60:02}:{n % 60:02}Z",
    }


def pod(n: int, version: int = 0) -> dict[str, Any]:
    job = n // 8
    spec = template(gpus=1 + job % 8)["spec"] | {
        "nodeName": f"node-{n % 5000}",
        "affinity": write_required(pinned(None, f"node-{n % 5000}")),
        "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}],
        "serviceAccountName": "default",
        "schedulerName": "default-scheduler",
    }
    [container] = spec["containers"]
    container["resources"]["requests"]["cpu"] = str(1 + job % SHAPES)
    named(spec, f"job-{job}")
    conditions = [
        {"type": kind, "status": "True", "lastTransitionTime": "2026-11-20T05:00:01Z"}
        for kind in ("PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady")
    ]
    labels = {
        "batch.kubernetes.io/job-name": f"job-{job}",
        "batch.kubernetes.io/controller-uid": f"{job:08x}",
        "batch.kubernetes.io/job-completion-index": str(n % 8),
        "queuectl.dev/attempt": "1",
        "queuectl.dev/podset": "main",
        "queuectl.dev/workload": f"{job:08x}",
    }
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": f"job-{job}", "uid": f"{job:08x}"}
    running = {"startedAt": "2026-11-20T05:00:01Z"}
    status = {
        "name": "main",
        "image": "none",
        "imageID": "none",
        "ready": True,
        "restartCount": 0,
        "state": {"running": running},
        "resources": container["resources"],
        "allocatedResources": container["resources"]["requests"],
    }
    identity = meta(n, f"job-{job}-{n % 8}-x")
    identity["resourceVersion"] = str(1000 + n + version)
    document = {
        "metadata": identity
        | {"labels": labels, "ownerReferences": [owner | {"controller": True}]},
        "spec": spec,
        "status": {
            "phase": "Running",
            "conditions": conditions,
            "podIP": "10.0.0.1",
            "startTime": f"2026-11-20T05:{job % 60:02}:00Z",
            "containerStatuses": [status],
        },
    }
    return managed(document)


def named(spec: dict[str, Any], name: str) -> None:
    """Add fields that differ in the pods of each job and that are not read."""
    for container in spec["containers"]:
        container["args"] = ["--run", name]
        container["env"] = [{"name": f"VARIABLE_{n}", "value": f"{name}-{n}"} for n in range(8)]


def templates(value: Any) -> Iterator[dict[str, Any]]:
    """The pod templates in an object."""
    if isinstance(value, dict):
        if "containers" in (value.get("spec") or {}):
            yield value
        for inner in value.values():
            yield from templates(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from templates(inner)


def job(kind: str, n: int, *, distinct: bool = False) -> dict[str, Any]:
    """A job of any kind, after its admission; every second one has started."""
    shape, name = n % SHAPES, f"job-{n}"
    levels = {"queuectl.dev/podset-preferred-topology": "example.com/rack"} if shape % 2 else {}
    options: dict[str, Any] = {"gpus": 1 + shape % 8, "annotations": levels}
    if kind == leaderworkerset.KIND:
        groups = {"size": 8, "workerTemplate": template(**options)}
        document: dict[str, Any] = {"spec": {"replicas": 1, "leaderWorkerTemplate": groups}}
    elif kind == "Job":
        document = batch_job(name, pods=8, **options)
    else:
        document = job_of(kind, name, pods=8, **options)
    own = meta(n, name)
    own["labels"] = {"queuectl.dev/queue-name": "main", "team": f"team-{n % 20}"}
    own["annotations"] = {
        "queuectl.dev/submitted-by": f"user-{n % 100}",
        "queuectl.dev/status": "Running" if n % 2 else f"Pending: {n % 1000} ahead",
    }
    document["metadata"] = own
    for each in templates(document):
        container, *_ = each["spec"]["containers"]
        container.setdefault("resources", {}).setdefault("requests", {})["cpu"] = (
            f"{n + 1}m" if distinct else str(1 + shape)
        )
        each["spec"]["schedulingGates"] = [{"name": "queuectl.dev/placement"}]
        each["spec"]["priorityClassName"] = "queuectl-managed"
        labels = {"queuectl.dev/attempt": "1", "queuectl.dev/workload": own["uid"]} if n % 2 else {}
        if kind == "Job":
            labels |= {"batch.kubernetes.io/job-name": name, "controller-uid": own["uid"]}
        each.setdefault("metadata", {})["labels"] = labels
        named(each["spec"], name)
    times = {"status": "True", "lastTransitionTime": own["creationTimestamp"]}
    conditions = [{"type": "Suspended", "reason": "JobSuspended", **times}]
    document["status"] = {"conditions": conditions, "startTime": own["creationTimestamp"]}
    if kind == "Job":
        document["spec"]["suspend"] = n % 2 == 0
        document["status"] |= {"active": n % 2 * 8, "ready": n % 2 * 8}
    return managed(document)


def lines(make: Callable[[int], dict[str, Any]], count: int, first: int = 0) -> list[bytes]:
    encode = msgspec.json.encode
    return [encode({"type": "ADDED", "object": make(n)}) for n in range(first, first + count)]


def caches() -> list[CachedReader[Any, Any]]:
    return [one for one in gc.get_objects() if isinstance(one, CachedReader)]


def decoded(resource: Resource, events: Sequence[bytes], mark: str = "") -> Figure:
    feed = ResourceFeed(resource, Containment(time.time))
    for cache in caches():
        cache.clear()
        cache.hits = 0
    began = time.process_time()
    for start in range(0, len(events), CHUNK):
        batch = feed.events(events[start : start + CHUNK])
        assert batch.error is None
    cpu = time.process_time() - began
    assert len(feed.keys) == len(events)
    again = max((one.hits for one in caches()), default=0) / len(events)
    what = f"{resource.name}: to records{mark}"
    return Figure(what, len(events), size(events), cpu, again=again)


def mirrored(pods: int, jobs: int) -> Iterator[Figure]:
    """A first list, and then a change of each fourth pod, from their bytes to the mirror."""
    mirror = Mirror.of(KINDS)
    changed = pods // 4
    parts: tuple[tuple[str, str, Callable[[int], dict[str, Any]], int, int], ...] = (
        ("first list", "jobs", lambda n: job("Job", n), jobs, CHUNK),
        ("first list", "pods", pod, pods, CHUNK),
        ("changes, one in each batch", "pods", lambda n: pod(n, 10**6), changed, 1),
    )
    feeds = {name: ResourceFeed(RESOURCES[name], Containment(time.time)) for _, name, *_ in parts}
    gc.collect()
    for what, name, make, count, chunk in parts:
        before, cpu, most = resident(), [0.0, 0.0], 0.0
        megabytes = 0.0
        for start in range(0, count, CHUNK):
            events = lines(make, min(CHUNK, count - start), start)
            megabytes += size(events)
            for first in range(0, len(events), chunk):
                began = time.process_time()
                batch = feeds[name].events(events[first : first + chunk])
                read = time.process_time()
                mirror.apply(batch.deltas)
                cpu[0] += read - began
                cpu[1] += time.process_time() - read
        del events
        gc.collect()
        most = resident() - before
        yield Figure(f"{what}, {name}: to records", count, megabytes, cpu[0])
        yield Figure(f"{what}, {name}: to the mirror", count, megabytes, cpu[1], memory=most)
    assert (len(mirror.pods), len(mirror.jobs)) == (pods, jobs)


async def typed(name: str, model: str, documents: Sequence[dict[str, Any]]) -> Figure:
    """The client library's models, from text to objects, as its own list call does it."""
    answer: Any = SimpleNamespace(data=json.dumps({"items": documents}))
    async with ApiClient(Configuration()) as client:
        began = time.process_time()
        found = client.deserialize(answer, model)
        cpu = time.process_time() - began
    assert len(found.items) == len(documents)
    return Figure(f"{name}: client library's models", len(documents), len(answer.data) / 2**20, cpu)


def size(events: Sequence[bytes]) -> float:
    return sum(map(len, events)) / 2**20


def resident() -> float:
    """MiB."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def serve(count: int, pipe: Pipe) -> None:
    """A server that sends all pods and then only listens. It prints its port when it is ready."""
    body = b"\n".join(lines(pod, count)) + b"\n"
    end = {"resourceVersion": str(10**6), "annotations": {INITIAL_EVENTS_END: "true"}}
    body += msgspec.json.encode({"type": "BOOKMARK", "object": {"metadata": end}}) + b"\n"

    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        for start in range(0, len(body), 1 << 16):
            await response.write(body[start : start + (1 << 16)])
        await asyncio.Event().wait()
        return response

    async def main() -> None:
        app = web.Application()
        app.router.add_get("/{path:.*}", answer)
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        pipe.send((runner.addresses[0][1], len(body) / 2**20))
        await asyncio.Event().wait()

    asyncio.run(main())


@contextlib.contextmanager
def serving(count: int) -> Iterator[tuple[int, float]]:
    here, there = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=serve, args=(count, there))
    process.start()
    try:
        yield here.recv()
    finally:
        process.kill()
        process.join()


async def reflected(count: int) -> Figure:
    """The whole way, until the list is complete."""
    records: dict[str, Record] = {}

    def sink(deltas: Sequence[Delta]) -> None:
        for delta in deltas:
            if isinstance(delta, Upserted):
                records[delta.record.uid] = delta.record  # type: ignore[union-attr]  # pods only

    with serving(count) as (port, megabytes), tempfile.TemporaryDirectory() as folder:
        api = await Api.connect(Connection(kubeconfig=kubeconfig(Path(folder), port)))
        complete = asyncio.Event()
        gc.collect()
        before, wall, cpu = resident(), time.perf_counter(), time.process_time()
        reflector = Reflector(
            api, RESOURCES["pods"], sink, lambda _: complete.set(), NoHooks(), Pace()
        )
        task = asyncio.create_task(reflector.run())
        await complete.wait()
        cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
        gc.collect()
        memory = resident() - before
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        await api.close()
    assert len(records) == count
    return Figure("pods: whole reflector, WatchList", count, megabytes, cpu, wall, memory)


def shown(figures: Sequence[Figure]) -> Table:
    table = Table(title="reflector: objects per second of one core")
    for column in (
        "what",
        "objects",
        "MB",
        "CPU s",
        "objects / CPU s",
        "wall s",
        "MiB kept",
        "read again",
    ):
        table.add_column(column, justify="left" if column == "what" else "right")
    for one in figures:
        table.add_row(
            one.what,
            f"{one.objects:,}",
            f"{one.megabytes:.0f}",
            f"{one.cpu:.2f}",
            f"{one.rate:,.0f}",
            "" if one.wall is None else f"{one.wall:.2f}",
            "" if one.memory is None else f"{one.memory:.0f}",
            "" if one.again is None else f"{one.again:.1%}",
        )
    return table


def circumstances() -> str:
    commit = subprocess.run(
        ("git", "rev-parse", "--short", "HEAD"), capture_output=True, text=True, check=True
    ).stdout.strip()
    load = " ".join(f"{average:.1f}" for average in os.getloadavg())
    return f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC, {commit}, load {load}: {' '.join(sys.argv)}"


async def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else PODS
    sample = min(count, JOBS)
    figures = [*mirrored(3 * count, count), await reflected(count)]
    figures.append(decoded(RESOURCES["pods"], lines(pod, sample)))
    for kind, name in (*KIND_NAMES.items(), (leaderworkerset.KIND, leaderworkerset.PLURAL)):
        for distinct in (False, True) if kind in ("Job", "PyTorchJob") else (False,):
            events = lines(partial(job, kind, distinct=distinct), sample)
            figures.append(decoded(RESOURCES[name], events, ", distinct" if distinct else ""))
    for name, model, make in (
        ("pods", "V1PodList", pod),
        ("jobs", "V1JobList", partial(job, "Job")),
    ):
        figures.append(await typed(name, model, [make(n) for n in range(SAMPLE)]))
    print(circumstances())
    Console(width=132).print(shown(figures))


if __name__ == "__main__":
    with no_unit_is_set_aside():
        asyncio.run(main())
