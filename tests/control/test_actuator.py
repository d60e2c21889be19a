"""The actuator's memory of writes that were answered, the order of its writes, and answers that are not from an API server."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from queuectl.cluster.adapter import KubernetesCluster
from queuectl.cluster.connection import Connection
from queuectl.control.leader.actuator import Actuator
from queuectl.control.leader.schedule import TURN_WRITES
from queuectl.domain.jobs import JobRecord, PodRecord
from queuectl.domain.ledger import Purpose
from queuectl.domain.quantity import NOTHING
from queuectl.lifecycle.outstanding_writes import POD, Write
from queuectl.lifecycle.refusals import Refusals
from queuectl.state.usage import SentPins
from queuectl.telemetry.metrics import MetricsRecorder
from tests.cluster.test_client import kubeconfig
from tests.doubles.cluster import FakeCluster

GANGS = [f"gang-{number}" for number in range(50)]
IN_FLIGHT = 4


class Pods(FakeCluster):
    """Accepts every pin and returns version 5 of the pod."""

    async def patch_pod(self, namespace: str, name: str, patch: object) -> int:
        await asyncio.sleep(0)
        return 5


class Ledger:
    """Each gang has one pin to write until the watch shows it."""

    def __init__(self) -> None:
        self.owing = set(GANGS)
        self.asked = asyncio.Event()

    def due(self, uid: str) -> list[Write]:
        self.asked.set()
        if uid not in self.owing:
            return []
        return [Write(POD, "n", uid, f"pod-of-{uid}", 1, {"metadata": {}}, Purpose.PIN, 1)]


@asynccontextmanager
async def acting(ledger: Ledger) -> AsyncIterator[Actuator]:
    actuator = Actuator(Pods(), ledger.due, MetricsRecorder(), 4)
    task = asyncio.create_task(actuator.run())
    yield actuator
    task.cancel()
    await asyncio.wait({task})


async def poked(actuator: Actuator) -> None:
    actuator.poke(GANGS)
    await actuator.settled()


@pytest.mark.parametrize("ends", ["the watch shows the pins", "the jobs are deleted"])
async def test_a_write_that_is_no_longer_due_is_forgotten(ends: str) -> None:
    ledger = Ledger()
    async with acting(ledger) as actuator:
        await poked(actuator)
        assert len(actuator._assumed) == len(GANGS), "a write is not sent twice before its echo"
        if ends == "the watch shows the pins":
            ledger.owing.clear()
            await poked(actuator)
        else:
            for uid in GANGS:
                actuator.forget(uid)
        assert actuator._assumed == {}


async def test_a_job_that_is_deleted_during_a_write_leaves_no_memory() -> None:
    ledger = Ledger()
    async with acting(ledger) as actuator:
        actuator.poke(GANGS)
        await ledger.asked.wait()
        ledger.owing.clear()
        for uid in GANGS:
            actuator.forget(uid)
        await actuator.settled()
        assert actuator._assumed == {}


class Stopping(FakeCluster):
    """Deletes and evicts pods that its watch still shows."""

    def __init__(self) -> None:
        super().__init__()
        self.stopped: list[str] = []

    async def stop_pod(self, namespace: str, name: str, uid: str) -> None:
        self.stopped.append(name)

    async def evict_pod(self, namespace: str, name: str, uid: str, version: int) -> None:
        self.stopped.append(name)


@pytest.mark.parametrize("how", ["deletes", "evicts"])
async def test_a_pod_is_stopped_once_before_the_watch_shows_it(how: str) -> None:
    cluster, stop = Stopping(), Write(POD, "n", "pod", "pod-uid", 1, {}, Purpose.STOP, 1)
    owed = replace(stop, deletes=how == "deletes", evicts=how == "evicts")
    actuator = Actuator(cluster, lambda _: [owed], MetricsRecorder(), 4)
    task = asyncio.create_task(actuator.run())
    for _ in range(2):
        actuator.poke(["gang"])
        await actuator.settled()
    task.cancel()
    await asyncio.wait({task})
    assert cluster.stopped == ["pod"]


async def test_a_write_is_sent_at_its_time_without_an_event() -> None:
    cluster, at = Purposes(), time.time() + 0.3
    pin = Write(POD, "n", "pod", "pod-uid", 1, {"metadata": {}}, Purpose.PIN, 1, send_at=at)
    owed = [pin]
    actuator = Actuator(cluster, lambda _: owed, MetricsRecorder(), 4)
    task = asyncio.create_task(actuator.run())
    actuator.poke(["gang"])
    await actuator.settled()
    assert not cluster.sent
    await cluster.first.wait()
    assert time.time() >= at
    task.cancel()
    await asyncio.wait({task})


# ---- the order of writes


class Purposes(FakeCluster):
    """Accepts all writes, and records their purposes in order. ``first``: there is one; ``many``: there are a hundred."""

    def __init__(self) -> None:
        super().__init__()
        self.sent: list[Purpose] = []
        self.first = asyncio.Event()
        self.many = asyncio.Event()

    async def patch_pod(self, namespace: str, name: str, patch: object) -> int:
        await asyncio.sleep(0)
        self.sent.append(Purpose.PIN)
        self.first.set()
        if len(self.sent) == 100:
            self.many.set()
        return 5

    async def patch_job(self, kind: str, namespace: str, name: str, patch: object) -> int:
        await asyncio.sleep(0)
        self.sent.append(Purpose.STOP)
        return 5


async def test_a_gang_that_is_stopped_gets_no_more_pins() -> None:
    cluster, pins = Purposes(), SentPins()
    release = Write(POD, "n", "p", "u", 1, {"metadata": {}}, Purpose.PIN, 1, "n1")
    owed = [replace(release, name=f"p{n}", uid=f"u{n}") for n in range(1000)]
    dropped: list[str] = []
    actuator = Actuator(
        cluster,
        lambda _: owed,
        MetricsRecorder(),
        IN_FLIGHT,
        pins=pins,
        unpinned=dropped.append,
    )
    task = asyncio.create_task(actuator.run())
    actuator.poke(["gang"])
    await cluster.many.wait()
    owed[:] = [Write("Job", "n", "job", "u", 1, {"metadata": {}}, Purpose.STOP, 1)]
    actuator.poke(["gang"], changed=True)
    await actuator.settled()
    task.cancel()
    await asyncio.wait({task})
    assert cluster.sent.count(Purpose.STOP) == 1
    assert len(cluster.sent) <= 100 + 1 + 2 * IN_FLIGHT
    last = PodRecord("n", "p999", "u999", 1, NOTHING, "gang", gated=True)
    assert pins.of(last) is None, "its pin was not sent"
    assert "u999" in dropped, "others can have its room"


class Stepped(FakeCluster):
    """Answers all writes in flight together, on demand."""

    def __init__(self) -> None:
        super().__init__()
        self.sent: list[str] = []  # gangs, in the order of their writes
        self.in_flight: list[asyncio.Future[int]] = []

    async def patch_pod(self, namespace: str, name: str, patch: object) -> int:
        self.sent.append(namespace)
        answer: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self.in_flight.append(answer)
        return await answer

    async def answer(self) -> int:
        """Answer, and return the number of answered writes."""
        for _ in range(5):
            await asyncio.sleep(0)
        answered, self.in_flight = self.in_flight, []
        for answer in answered:
            answer.set_result(5)
        return len(answered)

    async def answer_all(self, actuator: Actuator) -> list[int]:
        """Answer until no write is owed. Returns the number of writes of each step."""
        steps: list[int] = []
        while not actuator._settled.is_set():
            assert len(steps) < 1000, "a write is never sent"
            steps.append(await self.answer())
        return [count for count in steps if count]


@dataclass(frozen=True)
class Tenant:
    """Gangs of the same number of pods in one ClusterQueue."""

    gangs: int
    pods: int

    def uids(self, queue: str) -> list[str]:
        return [f"{queue}/{number}" for number in range(self.gangs)]


async def order_of_writes(first: Tenant, then: Tenant, then_in: str) -> tuple[list[str], list[int]]:
    """The gangs in the order of their writes, and the number of writes in flight at each step.

    The second tenant's gangs come after the first answers for the first one's.
    """
    sizes = dict.fromkeys(first.uids("first"), first.pods)
    later = {uid.replace(then_in, "then"): then.pods for uid in then.uids(then_in)}
    cluster, sizes = Stepped(), {**sizes, **later}
    queues = {uid: then_in if uid in later else "first" for uid in sizes}

    def owed(uid: str) -> list[Write]:
        pods = [f"{uid}-{number}" for number in range(sizes[uid])]
        return [Write(POD, uid, pod, pod, 1, {"metadata": {}}, Purpose.PIN, 1) for pod in pods]

    actuator = Actuator(
        cluster, owed, MetricsRecorder(), IN_FLIGHT, cluster_queue=queues.__getitem__
    )
    task = asyncio.create_task(actuator.run())
    actuator.poke(first.uids("first"))
    steps = [await cluster.answer()]
    actuator.poke(later)
    steps += await cluster.answer_all(actuator)
    task.cancel()
    await asyncio.wait({task})
    assert len(cluster.sent) == sum(sizes.values()), "each write is sent once"
    return cluster.sent, steps


def waited(sent: list[str]) -> int:
    """The number of writes of the first tenant between the arrival of the second one and its last write."""
    last = max(place for place, uid in enumerate(sent) if uid.startswith("then"))
    return sum(uid.startswith("first") for uid in sent[IN_FLIGHT:last])


@pytest.mark.parametrize(
    ("first", "queue", "most"),
    [
        pytest.param(Tenant(1, 400), "other", 2 * 8, id="a large gang"),
        pytest.param(Tenant(50, 8), "other", 2 * 8, id="many gangs at once"),
        pytest.param(Tenant(200, 1), "other", 2 * 8, id="the starts of many gangs"),
        pytest.param(Tenant(1, 400), "first", TURN_WRITES, id="a large gang of its own queue"),
    ],
)
async def test_a_small_gang_does_not_wait_for_all_writes_of_others(
    first: Tenant, queue: str, most: int
) -> None:
    sent, in_flight = await order_of_writes(first, Tenant(1, 8), queue)
    assert waited(sent) <= most
    assert in_flight[:-1] == [IN_FLIGHT] * (len(in_flight) - 1), "the limit is used and kept"
    assert 0 < in_flight[-1] <= IN_FLIGHT


async def test_a_batch_is_completed_after_its_workers_were_stopped() -> None:
    cluster = Stepped()
    pods = [Write(POD, "g", f"p{n}", f"p{n}", 1, {}, Purpose.PIN, 1) for n in range(10)]
    actuator = Actuator(cluster, lambda _: pods, MetricsRecorder(), IN_FLIGHT)
    actuator.poke(["gang"])
    for _ in range(2):
        task = asyncio.create_task(actuator.run())
        await cluster.answer()
        task.cancel()
        await asyncio.wait({task})
        cluster.in_flight.clear()
    task = asyncio.create_task(actuator.run())
    await cluster.answer_all(actuator)
    task.cancel()
    await asyncio.wait({task})
    assert len(cluster.sent) == len(pods)


async def test_small_gangs_of_one_queue_are_completed_one_after_the_other() -> None:
    sent, _ = await order_of_writes(Tenant(20, 8), Tenant(1, 1), "other")
    gangs = [uid for uid in sent if uid.startswith("first")]
    assert gangs == sorted(gangs, key=gangs.index)


class OneHangs(Stepped):
    """The writes of one namespace are answered only on demand, all others at once."""

    async def patch_pod(self, namespace: str, name: str, patch: object) -> int:
        if namespace == "hangs":
            return await super().patch_pod(namespace, name, patch)
        self.sent.append(namespace)
        return 5


async def until(done: Callable[[], bool]) -> None:
    async with asyncio.timeout(30.0):
        while not done():  # noqa: ASYNC110 - of the workers
            await asyncio.sleep(0.001)


async def test_slow_writes_of_one_namespace_leave_workers_for_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("queuectl.control.leader.schedule.SLOW_SECONDS", 0.01)
    cluster, ended = OneHangs(), set[str]()

    def owed(uid: str) -> list[Write]:
        namespace = uid.partition("/")[0]
        pods = [f"{uid}-{number}" for number in range(20 if namespace == "hangs" else 1)]
        return [Write(POD, namespace, pod, pod, 1, {}, Purpose.PIN, 1) for pod in pods]

    actuator = Actuator(cluster, owed, MetricsRecorder(), IN_FLIGHT, placed=ended.add)
    task = asyncio.create_task(actuator.run())
    actuator.poke([f"hangs/{number}" for number in range(4)])
    await until(lambda: len(cluster.in_flight) == IN_FLIGHT)
    await asyncio.sleep(0.02)
    await cluster.answer()
    await until(lambda: len(cluster.in_flight) == IN_FLIGHT // 2)
    actuator.poke([f"other/{number}" for number in range(10)])
    await until(lambda: sum(uid.startswith("other") for uid in ended) == 10)
    assert actuator.quiet
    assert len(cluster.in_flight) == IN_FLIGHT // 2
    await cluster.answer_all(actuator)
    assert cluster.sent.count("hangs") == 4 * 20, "each of them is sent once"
    task.cancel()
    await asyncio.wait({task})


async def test_what_is_known_of_sent_writes_stays_while_a_change_of_the_workload_is_committed() -> (
    None
):
    """One of its pods changes in the meantime."""
    ledger, cluster, pins = Ledger(), Stepped(), SentPins()
    answers: list[list[Write] | None] = [ledger.due("gang-0"), None, ledger.due("gang-0")]
    actuator = Actuator(cluster, lambda _: answers.pop(0), MetricsRecorder(), IN_FLIGHT, pins=pins)
    task = asyncio.create_task(actuator.run())
    while answers:
        actuator.poke(["gang-0"])
        await cluster.answer_all(actuator)
    task.cancel()
    await asyncio.wait({task})
    assert cluster.sent == ["n"]


async def test_a_retry_that_is_due_waits_until_a_change_of_the_workload_is_committed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The database is away."""
    monkeypatch.setattr("queuectl.control.leader.schedule.FIRST_RETRY", 0.001)
    asked = 0

    def owed(uid: str) -> list[Write] | None:
        nonlocal asked
        asked += 1
        return Ledger().due(uid) if asked == 1 or asked > 100 else None

    cluster = FakeCluster()
    cluster.down = True
    actuator = Actuator(cluster, owed, MetricsRecorder(), IN_FLIGHT)
    task = asyncio.create_task(actuator.run())
    actuator.poke(["gang-0"])
    await asyncio.sleep(0.1)
    assert asked == 2
    task.cancel()
    await asyncio.wait({task})


async def test_a_start_in_two_writes_can_take_effect_on_the_version_of_the_first_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that keeps templates immutable answers the first write, and not the second one."""
    monkeypatch.setattr("queuectl.control.leader.schedule.FIRST_RETRY", 10.0)
    hangs = asyncio.Event()

    async def answer(request: web.Request) -> web.Response:
        if request.path == "/version":
            return web.json_response({"major": "1", "minor": "33"})
        if not request.path.endswith("/status"):
            hangs.set()
            return web.Response(status=504)
        return web.json_response(
            {"metadata": {"name": "job", "uid": "job-uid", "resourceVersion": "2"}}
        )

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    async with TestServer(app) as server:
        given = Connection(kubeconfig=kubeconfig(tmp_path, server.port or 0))
        cluster = await KubernetesCluster.connect(given)
        refusals = Refusals()
        actuator = Actuator(cluster, lambda _: [START], MetricsRecorder(), 2, refusals=refusals)
        running = asyncio.create_task(actuator.run())
        try:
            actuator.poke(["job-uid"])
            await until(hangs.is_set)
            await actuator.settled()
            seen = JobRecord("Job", "n", "job", "job-uid", 2, 0.0, "research", ())
            assert refusals.may_start(seen, ())
            assert not refusals.may_start(replace(seen, version=3), ())
        finally:
            running.cancel()
            await asyncio.wait({running})
            await cluster.close()


# ---- a proxy between queuectl and the API server


DEEP = "[" * 100_000 + "]" * 100_000
PAGES: dict[str, tuple[int, str]] = {
    "a page": (200, "<html>sign in</html>"),
    "nothing": (200, ""),
    "a JSON list": (200, "[1, 2]"),
    "an object without metadata": (200, '{"error": "sign in"}'),
    "a resourceVersion of another type": (200, '{"metadata": {"resourceVersion": 5}}'),
    "deep JSON": (200, DEEP),
    "a bad gateway": (502, "<html>bad gateway</html>"),
    "a bad gateway with deep JSON": (502, '{"details": ' + DEEP + "}"),
    "a page that is not found": (404, "<html>no such host</html>"),
    "no version": (200, '{"major": "v1", "minor": {}}'),
}


class Proxy:
    """Answers each request with its own page while ``page`` is set, and then as an API server of version 1.33."""

    def __init__(self, page: tuple[int, str]) -> None:
        self.page: tuple[int, str] | None = page
        self.asked: list[str] = []

    async def answer(self, request: web.Request) -> web.Response:
        self.asked.append(f"{request.method} {request.path}")
        if self.page is not None:
            status, text = self.page
            return web.Response(status=status, text=text, content_type="text/html")
        if request.path == "/version":
            return web.json_response({"major": "1", "minor": "33"})
        found = {"name": "pod", "uid": request.match_info["path"], "resourceVersion": "7"}
        return web.json_response({"metadata": found})


PIN = Write(POD, "n", "pod", "pod-uid", 1, {"metadata": {}}, Purpose.PIN, 1)
TEMPLATE = {
    "metadata": {"uid": "job-uid", "resourceVersion": "1"},
    "spec": {"suspend": False, "template": {}},
}
START = Write("Job", "n", "job", "job-uid", 1, TEMPLATE, Purpose.START, 1)


@pytest.mark.parametrize("write", [PIN, START], ids=["a pin", "a start"])
@pytest.mark.parametrize("page", PAGES)
async def test_a_write_is_sent_again_after_an_answer_that_is_not_from_an_api_server(
    page: str, write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A start asks for the version of the server first."""
    monkeypatch.setattr("queuectl.control.leader.schedule.FIRST_RETRY", 0.01)
    proxy = Proxy(PAGES[page])
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", proxy.answer)
    async with TestServer(app) as server:
        given = Connection(kubeconfig=kubeconfig(tmp_path, server.port or 0))
        cluster = await KubernetesCluster.connect(given)
        actuator = Actuator(cluster, lambda _: [write], MetricsRecorder(), 2)
        running = asyncio.create_task(actuator.run())
        try:
            async with asyncio.timeout(30):
                actuator.poke(["gang"])
                while len(proxy.asked) < 3:  # noqa: ASYNC110 - of the server
                    await asyncio.sleep(0.001)
                proxy.page = None
                while not actuator._assumed:  # noqa: ASYNC110 - of a worker
                    await asyncio.sleep(0.001)
            assert actuator._assumed == {"gang": {write.uid: 7}}
            assert not running.done()
        finally:
            running.cancel()
            await asyncio.wait({running})
            await cluster.close()
