"""How fast a list and a watch become records: ``uv run python -m tests.bench.bench_reflector [pods]``.

Two measures, on pods and jobs as a live API server sends them (managed fields, status and all):

- decoding alone, from the bytes of a watch to records, alongside the client library's own typed models on the same bytes;
- the whole reflector, a WatchList over plain HTTP on loopback from a process that does nothing else.

CPU is that of this process. Memory is the growth of its resident set while it holds every record, as the mirror does.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import multiprocessing
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
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
from queuectl.objects.kubernetes.node_affinity import pinned, write_required
from tests.cluster.test_client import kubeconfig
from tests.support.contained import no_unit_is_set_aside
from tests.support.jobs import batch_job, pytorch_job, template

RESOURCES = {resource.name: resource for resource in watched()}
CHUNK = 500  # lines per piece, about what a read brings
SAMPLE = 300  # objects for the typed models, which are slow
PODS = 50_000


@dataclass(frozen=True)
class Figure:
    what: str
    objects: int
    megabytes: float
    cpu: float
    wall: float | None = None
    memory: float | None = None  # MiB

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
        "creationTimestamp": "2026-11-20T05:00:00Z",
    }


def pod(n: int) -> dict[str, Any]:
    job = n // 8
    spec = template(gpus=1)["spec"] | {
        "nodeName": f"node-{n % 5000}",
        "affinity": write_required(pinned(None, f"node-{n % 5000}")),
        "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}],
        "serviceAccountName": "default",
        "schedulerName": "default-scheduler",
    }
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
    document = {
        "metadata": meta(n, f"job-{job}-{n % 8}-x")
        | {"labels": labels, "ownerReferences": [owner | {"controller": True}]},
        "spec": spec,
        "status": {"phase": "Running", "conditions": conditions, "podIP": "10.0.0.1"},
    }
    return managed(document)


def job(n: int) -> dict[str, Any]:
    document = batch_job(f"job-{n}", pods=8, gpus=1)
    document["metadata"] |= meta(n, f"job-{n}")
    document["status"] = {"active": 8, "ready": 8, "startTime": "2026-11-20T05:00:00Z"}
    return managed(document)


def pytorchjob(n: int) -> dict[str, Any]:
    document = pytorch_job(f"train-{n}", workers=7, gpus=8)
    document["metadata"] |= meta(n, f"train-{n}")
    return managed(document)


def lines(make: Callable[[int], dict[str, Any]], count: int) -> list[bytes]:
    encode = msgspec.json.encode
    return [encode({"type": "ADDED", "object": make(n)}) for n in range(count)]


def decoded(resource: Resource, events: Sequence[bytes]) -> Figure:
    feed = ResourceFeed(resource, Containment(time.time))
    began = time.process_time()
    for start in range(0, len(events), CHUNK):
        batch = feed.events(events[start : start + CHUNK])
        assert batch.error is None
    cpu = time.process_time() - began
    assert len(feed.keys) == len(events)
    return Figure(f"{resource.name}: to records", len(events), size(events), cpu)


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
    for column in ("what", "objects", "MB", "CPU s", "objects / CPU s", "wall s", "MiB kept"):
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
        )
    return table


async def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else PODS
    figures = [await reflected(count)]
    for name, make in (("pods", pod), ("jobs", job), ("pytorchjobs", pytorchjob)):
        figures.append(decoded(RESOURCES[name], lines(make, min(count, 20_000))))
    for name, model, make in (("pods", "V1PodList", pod), ("jobs", "V1JobList", job)):
        figures.append(await typed(name, model, [make(n) for n in range(SAMPLE)]))
    Console(width=120).print(shown(figures))


if __name__ == "__main__":
    with no_unit_is_set_aside():
        asyncio.run(main())
