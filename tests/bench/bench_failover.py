"""The phases between the end of the last leader's lease and the first admission of the next leader, and the memory of that process.

    python -m tests.bench.bench_failover [NODES:RUNNING:PENDING]

Two takeovers with the same cluster and the same ledger: by a new process, and by a standby. The supervisor of
``queuectl serve`` runs in this process, with a separate Postgres. The lists of the API server are read from files as the watch sends
them, so no time of an API server or of a network is included. A gang runs, and another one waits, in the cluster double; the documents
and entries of all gangs are copies of theirs.

"CPU" is that of this process, all threads. "longest block" is the longest time for which the event loop does not run another task.
"""

from __future__ import annotations

import asyncio
import gc
import resource
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import msgspec
from rich.console import Console
from rich.table import Table

from queuectl.cluster.resources import watched
from queuectl.cluster.stream import LineSplitter, ResourceFeed
from queuectl.control.progress import SteadyClock
from queuectl.control.settings import Settings
from queuectl.control.supervisor import Supervisor
from queuectl.db.engine import DatabaseSettings
from queuectl.db.ports import Commit
from queuectl.demo import scenario as m
from queuectl.demo.scenario import PodSetManifest
from queuectl.domain.containment import Containment
from queuectl.domain.ledger import Entry, EntryChange, State
from queuectl.domain.records import Delta, LeaderRecord
from queuectl.domain.workload import Placement
from queuectl.objects.kinds import KINDS
from queuectl.telemetry.metrics import MetricsRecorder
from tests.bench.bench_reflector import circumstances, managed, resident
from tests.control.rig import configuration, nodes, rig
from tests.doubles.cluster import FakeCluster
from tests.support.contained import no_unit_is_set_aside
from tests.support.postgres import running_postgres
from tests.support.stores import PostgresStore

PODS: Final = 8
RACK: Final = 16
PIECE: Final = 1 << 16  # bytes that a read of the watch brings
LISTED: Final = b'{"type":"BOOKMARK","object":{"metadata":{"resourceVersion":"9000000","annotations":{"k8s.io/initial-events-end":"true"}}}}\n'
HELD: Final = LeaderRecord("another", 1, 0.0, 3600.0, "1")


# ---- The cluster and the ledger


@dataclass(frozen=True)
class Templates:
    """The documents and entries of a gang that runs and of one that waits, as text with their names."""

    running_job: str
    pods: tuple[str, ...]
    waiting_job: str
    running: Entry
    waiting: Entry


def text_of(document: Mapping[str, Any]) -> str:
    return msgspec.json.encode(managed(dict(document))).decode()


async def templates(url: str) -> Templates:
    shape = PodSetManifest(PODS, gpus=1)
    async with rig(url, 1) as world:
        uids = []
        for name in ("gang-runs", "gang-waits"):
            job = m.job(name, "default", "research", shape, priority_class="low")
            uids.append(world.cluster.submit(job))
            state = State.RUNNING if len(uids) == 1 else State.PENDING
            await world.until_state(uids[-1], state)
        entries = [await world.store.get_workload(uid) for uid in uids]
        documents = {job["metadata"]["uid"]: job for job in world.cluster.server.all("jobs")}
        pods = [pod for pod in world.cluster.server.all("pods") if pod["spec"].get("nodeName")]
        running, waiting = entries
        assert running is not None
        assert waiting is not None
        assert len(pods) == PODS
        return Templates(
            text_of(documents[uids[0]]),
            tuple(map(text_of, pods)),
            text_of(documents[uids[1]]),
            running,
            waiting,
        )


@dataclass(frozen=True)
class Size:
    """``gangs``: that run; ``pending``: that wait."""

    nodes: int
    gangs: int
    pending: int

    @classmethod
    def of(cls, text: str = "10000:7500:500") -> Size:
        return cls(*map(int, text.split(":")))

    def __str__(self) -> str:
        return f"{self.nodes}:{self.gangs}:{self.pending}"

    @property
    def title(self) -> str:
        pods = f"{self.gangs * PODS:,} pods of one GPU in {self.gangs:,} gangs"
        return f"{self.nodes:,} nodes, {pods}, {self.pending:,} pending gangs"


@dataclass(frozen=True)
class Lists:
    """The lists of the API server in files."""

    size: Size
    folder: Path

    def path(self, name: str) -> Path:
        return self.folder / f"{name}.jsonl"


class Generated:
    """Writes the lists and the entries of the ledger."""

    def __init__(self, size: Size, made: Templates, folder: Path) -> None:
        self.size = size
        self._made = made
        self.path = Lists(size, folder).path

    def write(self) -> None:
        for one in watched():
            self.path(one.name).write_bytes(LISTED)
        self._write("nodes", (text_of(self._node(n)) for n in range(self.size.nodes)))
        namespaces = (
            {"metadata": {"name": name, "uid": f"of-{name}", "resourceVersion": "1"}}
            for name in ("default", "kube-system")
        )
        self._write("namespaces", map(text_of, namespaces))
        self._write("jobs", self._jobs())
        self._write("pods", self._pods())

    def _write(self, name: str, documents: Any) -> None:
        with self.path(name).open("w") as file:
            for text in documents:
                file.write(f'{{"type":"ADDED","object":{text}}}\n')
            file.write(LISTED.decode())

    def _node(self, number: int) -> dict[str, Any]:
        document: dict[str, Any] = dict(nodes(1)[0])
        name = f"node-{number}"
        document["metadata"] |= {
            "name": name,
            "uid": f"of-{name}",
            "resourceVersion": "1",
            "labels": {
                "kubernetes.io/hostname": name,
                "topology.queuectl.dev/block": f"b{number // (RACK * 25)}",
                "topology.queuectl.dev/rack": f"r{number // RACK}",
            },
        }
        document["status"]["conditions"] = [{"type": "Ready", "status": "True"}]
        return document

    def _jobs(self) -> Any:
        made = self._made
        for n in range(self.size.gangs):
            yield renamed(made.running_job, made.running, n)
        for n in range(self.size.pending):
            yield renamed(made.waiting_job, made.waiting, n)

    def _pods(self) -> Any:
        made = self._made
        uids = [msgspec.json.decode(pod)["metadata"]["uid"] for pod in made.pods]
        for n in range(self.size.gangs):
            for rank, pod in enumerate(made.pods):
                text = renamed(pod, made.running, n).replace(uids[rank], f"{uids[rank]}-{n}")
                yield text.replace('"n0"', f'"node-{self.node_of(n, rank)}"')

    def node_of(self, gang: int, rank: int) -> int:
        """Two nodes of a rack for each gang."""
        first = gang // 2 * 2
        return first if rank < PODS // 2 else first + 1

    def entries(self) -> list[Entry]:
        return [self._running(n) for n in range(self.size.gangs)] + [
            named(self._made.waiting, n) for n in range(self.size.pending)
        ]

    def _running(self, number: int) -> Entry:
        entry = named(self._made.running, number)
        assert entry.placement is not None
        [podset] = entry.placement.podsets
        hosts = [f"node-{self.node_of(number, rank)}" for rank in (0, PODS - 1)]
        placed = replace(podset, nodes=tuple((host, PODS // 2) for host in hosts))
        return replace(entry, placement=Placement((placed,)))


def named(entry: Entry, number: int) -> Entry:
    return replace(
        entry, uid=f"{entry.uid}-{number}", name=f"{entry.name}-{number}", version=1, intent=None
    )


def renamed(text: str, of: Entry, number: int) -> str:
    return text.replace(of.uid, f"{of.uid}-{number}").replace(of.name, f"{of.name}-{number}")


class ReplayedCluster(FakeCluster):
    """The lists of the files. A patch succeeds and changes nothing."""

    def __init__(self, lists: Lists, marks: Marks) -> None:
        super().__init__()
        self._lists = lists
        self._marks = marks

    async def watch(
        self,
        sink: Callable[[Sequence[Delta]], None],
        synced: Callable[[str], None],
        *,
        kueue: bool = True,
    ) -> None:
        containment = self.containment or Containment(time.time)
        for one in watched(kueue=kueue):
            feed, lines = ResourceFeed(one, containment), LineSplitter()
            with self._lists.path(one.name).open("rb") as file:
                while piece := file.read(PIECE):
                    batch = feed.events(lines.feed(piece))
                    assert batch.error is None, batch.error
                    sink(batch.deltas)
                    await asyncio.sleep(0)
            synced(one.name)
        self._marks.set("objects listed")
        await asyncio.Event().wait()

    async def catch_up(self) -> None:
        self._marks.set("lease and epoch acquired, findings read")

    async def patch_job(
        self, kind: str, namespace: str, name: str, patch: Mapping[str, Any]
    ) -> int:
        self._marks.set("first write to the API server")
        return 9_000_001

    async def create_event(self, *_: Any) -> None:
        """Nothing."""


# ---- The measurement


@dataclass
class Marks:
    """When each phase has ended for the first time: wall and CPU seconds."""

    ends: dict[str, tuple[float, float]] = field(default_factory=dict)
    began: tuple[float, float] = (0.0, 0.0)
    longest_block: float = 0.0

    def begin(self) -> None:
        self.ends.clear()
        self.longest_block = 0.0
        self.began = (time.perf_counter(), time.process_time())

    def set(self, name: str) -> None:
        self.ends.setdefault(name, (time.perf_counter(), time.process_time()))

    async def watch_loop(self) -> None:
        """Note for how long the event loop does not run."""
        while True:
            before = time.perf_counter()
            await asyncio.sleep(0.005)
            self.longest_block = max(self.longest_block, time.perf_counter() - before - 0.005)


class MarkedStore:
    """The real store. Notes the end of the load and the first start."""

    def __init__(self, store: PostgresStore, marks: Marks) -> None:
        self._store = store
        self._marks = marks

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def commits_ended(self, *, epoch: int) -> None:
        await self._store.commits_ended(epoch=epoch)
        self._marks.set("earlier commits ended")

    async def commit(self, commit: Commit, **place: int) -> None:
        await self._store.commit(commit, **place)
        if any(change.after.state is State.STARTING for change in commit.changes):
            self._marks.set("first admission committed")


@asynccontextmanager
async def process(url: str, cluster: ReplayedCluster, marks: Marks) -> AsyncIterator[Supervisor]:
    real = await PostgresStore.connect(DatabaseSettings(url))
    store: Any = MarkedStore(real, marks)
    supervisor = Supervisor(
        store=store,
        cluster=cluster,
        metrics=MetricsRecorder(),
        settings=Settings(lease_duration=300.0),  # no end of it on a busy machine
        clock=SteadyClock(),
        kinds=KINDS,
    )
    cluster.containment = supervisor.containment
    stop = asyncio.Event()
    task = asyncio.create_task(supervisor.run(stop))
    lag = asyncio.create_task(marks.watch_loop())
    try:
        yield supervisor
    finally:
        stop.set()
        await task
        lag.cancel()
        await real.close()


async def until(done: Callable[[], bool | Awaitable[bool]], seconds: float = 280.0) -> None:
    async with asyncio.timeout(seconds):
        while True:
            answer = done()
            if answer if isinstance(answer, bool) else await answer:
                return
            await asyncio.sleep(0.002)


async def taken_over(url: str, lists: Lists, *, warm: bool) -> Table:
    marks = Marks()
    cluster = ReplayedCluster(lists, marks)
    before = resident()
    marks.begin()
    if warm:
        cluster.leader = HELD
    async with process(url, cluster, marks) as supervisor:
        standing = None
        if warm:
            await until(lambda: supervisor.viewer._consulted is not None)
            gc.collect()
            standing = resident()
            cluster.leader = replace(HELD, holder="", version="2")
            marks.begin()
        await until(lambda: supervisor._leading is not None and supervisor._leading.loaded)
        marks.set("ledger loaded")
        await until(lambda: "first write to the API server" in marks.ends)
        total = time.perf_counter() - marks.began[0]
        gc.collect()
        leading = resident()
    title = "by a standby" if warm else "by a new process"
    table = Table(title=f"takeover {title}: {lists.size.title}", title_justify="left")
    for column in ("phase", "wall s", "CPU s"):
        table.add_column(column, justify="left" if column == "phase" else "right")
    last = marks.began
    for name, end in sorted(marks.ends.items(), key=lambda item: item[1]):
        table.add_row(name, f"{end[0] - last[0]:.2f}", f"{end[1] - last[1]:.2f}")
        last = end
    table.add_row("sum", f"{total:.2f}", f"{last[1] - marks.began[1]:.2f}")
    table.add_row("longest block of the event loop", f"{marks.longest_block:.2f}", "")
    if standing is not None:
        table.add_row("resident memory of the standby, MiB", "", f"{standing:.0f}")
    table.add_row("resident memory of the leader, MiB", "", f"{leading:.0f}")
    table.add_row("resident memory before, MiB", "", f"{before:.0f}")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    table.add_row("largest resident memory so far, MiB", "", f"{peak:.0f}")
    return table


async def seeded(url: str, lists: Generated) -> None:
    """Write the configuration and the ledger."""
    store = await PostgresStore.connect(DatabaseSettings(url))
    try:
        gpus = 8 * lists.size.nodes
        amounts: dict[str, int | str] = {
            "nvidia.com/gpu": gpus,
            "cpu": "1M",
            "memory": "1Ei",
            "pods": 10**6,
        }
        pool = m.cluster_queue("pool", "gpu", amounts)
        for document in configuration(gpus):
            await store.put_config(pool if document["kind"] == pool["kind"] else document)
        epoch = await store.take_over("another", 0)
        changes = [EntryChange(None, entry, time.time()) for entry in lists.entries()]
        for start in range(0, len(changes), 1000):
            part = Commit(changes[start : start + 1000])
            await store.commit(part, epoch=epoch, cycle=1)
    finally:
        await store.close()


async def compare(size: Size) -> None:
    """Each takeover in a separate process."""
    with tempfile.TemporaryDirectory() as folder:
        async with running_postgres() as postgres:
            made = await templates(postgres.server.url(await postgres.fresh()))
            lists = Generated(size, made, Path(folder))
            lists.write()
            for how in ("cold", "warm"):
                url = postgres.server.url(await postgres.fresh())
                await seeded(url, lists)
                program = (sys.executable, "-m", "tests.bench.bench_failover", str(size), folder)
                child = await asyncio.create_subprocess_exec(*program, how, url)
                if await child.wait():
                    raise SystemExit(1)


def main() -> None:
    match sys.argv[1:]:
        case [size, folder, how, url]:
            gc.freeze()
            gc.set_threshold(10_000, 5, 100)  # as `queuectl serve` has it
            lists = Lists(Size.of(size), Path(folder))
            table = asyncio.run(taken_over(url, lists, warm=how == "warm"))
            Console(width=100).print(table)
        case [] | [_] as sizes:
            print(circumstances(), flush=True)
            asyncio.run(compare(Size.of(*sizes)))


if __name__ == "__main__":
    with no_unit_is_set_aside():
        main()
