"""A controller on a real Postgres and the conformance-tested cluster double, in one process.

The controllers of the double act one deterministic pass at a time. After each pass the cluster is checked against the
invariants. A test can kill the controller before or after any commit or write. The rig then starts it again.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, fields, replace
from typing import Any
from uuid import uuid4

from queuectl.cluster.resources import watched
from queuectl.control.contained_plan import planned_around
from queuectl.control.leader.leader_state import LeaderState
from queuectl.control.leader.loop import Loop
from queuectl.control.questions.standby import Standby
from queuectl.control.questions.throttle import PlannerThrottle
from queuectl.control.settings import Settings
from queuectl.db.engine import DatabaseSettings
from queuectl.db.ports import Commit
from queuectl.db.usage import UsageLedger
from queuectl.demo import scenario as m
from queuectl.demo.scenario import PodSetManifest
from queuectl.domain.arrays import gang_uid
from queuectl.domain.commands import Action, Command
from queuectl.domain.errors import Fenced
from queuectl.domain.folding import Fold
from queuectl.domain.jobs import PodRecord
from queuectl.domain.ledger import Document, Entry, Loaded, State, violations
from queuectl.domain.quantity import NOTHING, Resources
from queuectl.domain.records import Delta
from queuectl.domain.snapshot import SolverLimits
from queuectl.objects import keys
from queuectl.objects.kinds import KINDS, JobKinds
from queuectl.planner.cache import PlannerCache
from queuectl.state.mirror import Mirror
from queuectl.telemetry.metrics import MetricsRecorder
from tests.control.kills import ACCOUNT, WRITES, Killed, KillPoint, commit_names, write_name
from tests.doubles.admission import replicas
from tests.doubles.cluster import FakeCluster
from tests.support.jobs import LEADERS, job_of
from tests.support.postgres import patiently
from tests.support.stores import PostgresStore

PATIENCE = 10_000
"""Passes to wait for one condition, of 2 ms and more. A hang fails the test; a busy machine only makes passes longer."""
READ_AGAIN = 0.5  # seconds; a killed controller leaves commits whose end it did not read
PATIENT = 120.0  # seconds for the database, which is slow on a busy machine
QUICK = Settings(
    debounce_seconds=0.0,
    planning_share=1.0,
    reason_delay_seconds=0.0,
    events_per_second=1000.0,
    in_flight=4,
    defragment_seconds=0.0,
)


@dataclass
class KillingUsage:
    """The real usage ledger. The controller can be killed before or after it writes an entry."""

    real: UsageLedger
    accounts: KillPoint

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name)

    async def keep(self, fold: Fold, **place: Any) -> None:
        number = self.accounts.before(ACCOUNT)
        await self.real.keep(fold, **place)
        self.accounts.after(number, ACCOUNT)


@dataclass
class KillingStore:
    """The real store. The controller can be killed before or after a commit."""

    store: PostgresStore
    commits: KillPoint
    accounts: KillPoint

    @property
    def usage(self) -> KillingUsage:
        return KillingUsage(self.store.usage, self.accounts)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.store, name)

    async def commit(self, commit: Commit, **place: int) -> None:
        names = commit_names(commit.changes, commit.answers)
        number = self.commits.before(*names)
        await self.store.commit(commit, **place)
        self.commits.after(number, *names)


@dataclass
class KillingCluster:
    """The cluster double. The controller can be killed before or after a write."""

    cluster: FakeCluster
    patches: KillPoint

    def __getattr__(self, name: str) -> Any:
        action = getattr(self.cluster, name)
        if name not in WRITES:
            return action

        async def write(*arguments: Any) -> Any:
            step = write_name(name, arguments)
            number = self.patches.before(step)
            answer = await action(*arguments)
            self.patches.after(number, step)
            return answer

        return write


@dataclass
class Rig:
    """The cluster double, the store and a controller. ``kills`` counts how often the controller was killed and started again.

    Tests use ``store``. The controller uses ``leader_store``.
    """

    cluster: FakeCluster
    store: PostgresStore
    leader_store: PostgresStore
    settings: Settings = field(default_factory=lambda: QUICK)
    commits: KillPoint = field(default_factory=KillPoint)
    patches: KillPoint = field(default_factory=KillPoint)
    accounts: KillPoint = field(default_factory=KillPoint)
    kills: int = 0
    # Between passes while nothing happens: some deadlines end by time alone.
    look_seconds: float = 0.03
    metrics: MetricsRecorder = field(default_factory=MetricsRecorder)
    running: bool = True
    clock: Callable[[], float] = time.time
    each_turn: Callable[[], None] = lambda: None  # runs with each pass of the controllers
    loop: Loop | None = None  # of the current controller
    warm: bool = False  # each controller but the first was a standby before
    warm_starts: int = 0  # of leaders that continued from the state of a standby
    _standby: Replica | None = None
    _task: asyncio.Task[None] | None = None

    async def until(self, done: Callable[[], bool | Any], what: str) -> None:
        """Run passes until ``done()``, restart the controller after each kill, and check the invariants.

        A pass of the controllers that follows no change would change nothing, unless a test has released them or time has passed.
        """
        seen, look_again = -1, 0.0
        for _ in range(PATIENCE):
            await self._keep_running()
            happened = self.commits.done + self.cluster.server.version
            if happened != seen or time.monotonic() > look_again:
                seen, look_again = happened, time.monotonic() + self.look_seconds
                self.cluster.step()
                self.each_turn()
                self.check()
                result = done()
                if await result if asyncio.iscoroutine(result) else result:
                    return
            await asyncio.sleep(0.002)
        raise AssertionError(f"never: {what}; {await self.describe()}")

    async def until_found(
        self, read: Callable[[], Awaitable[Entry | None]], holds: Callable[[Entry], bool], what: str
    ) -> Entry:
        """Run until the condition holds for the entry that ``read`` gives, and return the entry. It is read after commits only."""
        found: list[Entry] = []
        done, read_again = (-1, -1), 0.0

        async def reached() -> bool:
            nonlocal done, read_again
            now, committed = time.monotonic(), (self.kills, self.commits.done)
            if committed == done and now < read_again:
                return False
            done, read_again = committed, now + READ_AGAIN
            entry = await read()
            if entry is not None and holds(entry):
                found.append(entry)
            return bool(found)

        await self.until(reached, what)
        return found[0]

    async def until_entry(self, uid: str, holds: Callable[[Entry], bool], what: str) -> Entry:
        return await self.until_found(lambda: self.store.get_workload(uid), holds, f"{uid}: {what}")

    async def entry(self, uid: str) -> Entry:
        """A workload of the store."""
        entry = await self.store.get_workload(uid)
        assert entry is not None
        return entry

    async def until_state(self, uid: str, state: State) -> Entry:
        return await self.until_entry(uid, lambda entry: entry.state is state, state)

    async def describe(self) -> str:
        """The content of the ledger, for the message of a failure."""
        lines = []
        for entry in (await self.store.load()).entries:
            pods = Counter(
                f"{p.phase}{'/gated' if p.gated else ''}{'/leaving' if p.terminating else ''}@{p.attempt}"
                for p in self.cluster.pods_of(entry.uid)
            )
            lines.append(
                f"{entry.ref} {entry.state}@{entry.attempt} {entry.reason.code} {entry.intent} {dict(pods)}"
            )
        return "; ".join(lines)

    def check(self) -> None:
        """Check on the current cluster that no attempt or rank runs twice, and that no node is over its capacity."""
        use: dict[str, Resources] = {}
        for uid in self.cluster.uids():
            pods = self.cluster.pods_of(uid)
            self._check_gang(uid, pods)
        for pod in self.cluster.all_pods():
            node = pod.node or (pod.pin or pod.host if not pod.gated else None)
            if node is not None and not pod.terminal:
                use[node] = use.get(node, NOTHING) + pod.requests
        for machine in self.cluster.server.all("nodes"):
            name = machine["metadata"]["name"]
            has = int(machine["status"]["allocatable"]["nvidia.com/gpu"])
            assert use.get(name, NOTHING)["nvidia.com/gpu"] <= has, f"{name} is over"

    def _check_gang(self, uid: str, pods: Sequence[PodRecord]) -> None:
        free = [p for p in pods if not p.gated and not p.terminal]
        attempts = {p.attempt for p in free}
        if len(attempts) > 1:  # the indexes of an array are separate gangs
            job = self.cluster.job(uid)
            attempts = {p.attempt for p in free if gang_uid(job, p) == uid}
        assert len(attempts) <= 1, f"two attempts of {uid} run at once: {attempts}"
        held = Counter((p.podset, p.rank) for p in free if p.rank is not None and not p.terminating)
        assert not held or max(held.values()) == 1, f"a rank of {uid} runs twice"

    async def _keep_running(self) -> None:
        if self._task is not None and self._task.done():
            task, self._task = self._task, None
            try:
                task.result()
            except BaseExceptionGroup as group:
                unexpected = group.split(Killed)[1]
                if unexpected is not None:
                    raise unexpected from None
            self.kills += 1
        if self._task is None and self.running:
            self._task = asyncio.create_task(self._controller())

    async def _controller(self) -> None:
        replica = self._standby or Replica(self)
        self._standby = Replica(self) if self.warm else None
        try:
            with contextlib.suppress(Fenced):
                await self._led(replica)
        finally:
            await replica.end()

    async def _led(self, replica: Replica) -> None:
        await replica.complete.wait()
        mirror = replica.mirror
        mirror.take_over(await self.cluster.read_admissions())
        epoch = await patiently(lambda: self.leader_store.take_over("rig", 0))
        loop = Loop(
            store=KillingStore(self.leader_store, self.commits, self.accounts),
            cluster=KillingCluster(self.cluster, self.patches),
            mirror=mirror,
            metrics=self.metrics,
            settings=self.settings,
            clock=self.clock,
            cache=replica.cache,
            throttle=PlannerThrottle(self.settings.planning_share),
            leader_state=replica.hand_over() or self.new_state(mirror),
        )
        self.loop = replica.loop = loop
        async with asyncio.TaskGroup() as group:
            group.create_task(loop.run(epoch))
            group.create_task(self._follow(loop))
            group.create_task(self._obey(loop))

    def new_state(self, mirror: Mirror) -> LeaderState:
        """The empty state of another process."""
        return ComparedState(self, mirror)

    async def _follow(self, loop: Loop) -> None:
        while True:
            await patiently(
                lambda: self.leader_store.config_changed(loop.leader_state.config.revision)
            )
            await patiently(loop.configuration_changed)

    async def _obey(self, loop: Loop) -> None:
        while True:
            await patiently(self.leader_store.commands_waiting)
            await loop.commands_added()

    async def ask(
        self, uid: str, action: Action, priority: int | None = None, **more: Any
    ) -> Command:
        """Enqueue a command, as the API does."""
        return await self.store.add_command(
            Command(0, uid, action, "alice", uuid4().hex, time.time(), priority, **more)
        )

    async def stop(self) -> None:
        self.running = False
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})
            self._task = None
        if self._standby is not None:
            standby, self._standby = self._standby, None
            await standby.end()

    async def restart(self) -> None:
        """Stop the controller. The next pass starts another one."""
        await self.stop()
        self.running = True

    async def at_rest(self) -> None:
        """Check that no write is due, no lease is active, every entry is consistent, and every start is in the history once."""
        loaded = await self.store.load()
        for entry in loaded.entries:
            assert violations(entry) == []
            assert entry.intent is None, f"{entry.ref} still has the intent {entry.intent}"
            assert entry.lease is None
        starts: Counter[tuple[str, int]] = Counter()
        after = 0
        while lines := await self.store.history(None, after, 500):
            after = lines[-1].id
            for line in lines:
                if line.to_state is State.STARTING and line.from_state is not State.STARTING:
                    starts[line.uid, line.attempt] += 1
        assert not starts or max(starts.values()) == 1, f"started twice: {starts}"


class ComparedState(LeaderState):
    """A leader that continues from the state of a standby plans on the same snapshot as one that computes everything."""

    def __init__(self, world: Rig, mirror: Mirror) -> None:
        super().__init__(mirror, *parameters(world))
        self._world = world
        self._of = mirror

    def load(self, loaded: Loaded) -> None:
        warm = self.followed
        super().load(loaded)
        if warm:
            self._world.warm_starts += 1
            now = self._world.clock()
            mine = planned_on(self, self._world, now)
            fresh = LeaderState(self._of, *parameters(self._world))
            fresh.load(loaded)
            theirs = planned_on(fresh, self._world, now)
            differences = [
                (key, mine[key], part) for key, part in theirs.items() if mine[key] != part
            ]
            assert not differences, differences


def parameters(world: Rig) -> tuple[SolverLimits, float, Callable[[], float], float]:
    """Of the state of a leader."""
    settings = world.settings
    fresh = settings.utilization.fresh_seconds
    return settings.solver.limits, settings.unschedulable_seconds, world.clock, fresh


def planned_on(state: LeaderState, world: Rig, now: float) -> dict[str, object]:
    """The inputs of the decisions of a leader, at one time: a time that has passed stays passed."""
    snapshot = state.planning.snapshot(now, world.settings.solver.limits)
    sums = state.holdings
    return parts_of(snapshot) | {
        "past_use": None,  # of the time of its computation
        "config": parts_of(snapshot.config),  # two equal ones are not the same to the planner
        "ledger": list(state.ledger),
        "holdings": (sums.held, sums.kept, sums.pending),
        "names": dict(state.names),
        "unmanaged": state.planning.unmanaged(),
    }


def parts_of(record: Any) -> dict[str, object]:
    return {part.name: getattr(record, part.name) for part in fields(record)}


class Replica:
    """The watch of a process. With ``Rig.warm``, it also follows the ledger and plans until it leads, as a standby does."""

    def __init__(self, world: Rig) -> None:
        self._world = world
        self.mirror = Mirror.of(world.cluster.kinds)
        self.cache = PlannerCache()
        self.complete = asyncio.Event()
        self.loop: Loop | None = None
        self._listed: set[str] = set()
        self._standby: Standby | None = None
        self._tasks = [asyncio.create_task(world.cluster.watch(self._sink, self._synced))]
        if world.warm:
            self._tasks.append(asyncio.create_task(self._stand_by()))

    def _sink(self, deltas: Sequence[Delta]) -> None:
        touched = self.mirror.apply(deltas)
        if self.loop is not None:
            self.loop.react(touched)

    def _synced(self, resource: str) -> None:
        self._listed.add(resource)
        if len(self._listed) == len(watched(kinds=self._world.cluster.kinds)):
            self.complete.set()

    async def _stand_by(self) -> None:
        world = self._world
        await self.complete.wait()
        state = world.new_state(self.mirror)
        self._standby = Standby(world.leader_store, state, world.clock)
        pauses = itertools.cycle((0.0, 0.01, 0.05))  # seconds
        while True:
            snapshot = await patiently(self._standby.snapshot)
            if snapshot is None:
                return
            planned_around(snapshot, cache=self.cache)
            await asyncio.sleep(next(pauses))

    def hand_over(self) -> LeaderState | None:
        """The state of the standby; None without one."""
        return self._standby.hand_over() if self._standby is not None else None

    async def end(self) -> None:
        for task in self._tasks:
            task.cancel()
        for task in self._tasks:
            with contextlib.suppress(asyncio.CancelledError):
                await task


@asynccontextmanager
async def _connected(settings: DatabaseSettings) -> AsyncIterator[PostgresStore]:
    store = await PostgresStore.connect(settings)
    try:
        yield store
    finally:
        await store.close()


def live(pods: list[PodRecord]) -> list[PodRecord]:
    """Pods that run on a node."""
    return [p for p in pods if p.node and p.alive]


def nodes(count: int, gpus: int = 8) -> list[Document]:
    """Nodes in racks of four."""
    return [
        {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {
                "name": f"n{i}",
                "labels": {
                    "kubernetes.io/hostname": f"n{i}",
                    "topology.queuectl.dev/block": "b0",
                    "topology.queuectl.dev/rack": f"r{i // 4}",
                },
            },
            "spec": {},
            "status": {
                "allocatable": {"cpu": "64", "memory": "512Gi", "pods": "110", "nvidia.com/gpu": str(gpus)}
            },
        }
        for i in range(count)
    ]  # fmt: skip


def configuration(gpus: int, *, strategy: str = "BestEffortFIFO") -> list[Document]:
    """A ClusterQueue with this many GPUs, LocalQueue ``research`` in namespace ``default``, and classes low and high."""
    levels = ("topology.queuectl.dev/block", "topology.queuectl.dev/rack")
    return [
        m.topology("gpus", *levels),
        m.flavor("gpu", topology="gpus"),
        m.cluster_queue(
            "pool",
            "gpu",
            {"nvidia.com/gpu": gpus, "cpu": "1k", "pods": 1000, "memory": "1Pi"},
            strategy=strategy,
        ),
        m.local_queue("default", "research", "pool"),
        m.priority_class("low", 10),
        m.priority_class("high", 100),
    ]


def gang(kind: str, name: str, pods: int, priority: str = "low", **options: Any) -> Document:
    """A gang of 8-GPU pods of any kind."""
    shape = PodSetManifest(count=pods, gpus=8)
    if kind == "Job":
        return m.job(
            name, "default", "research", shape, priority_class=priority, retries=6, **options
        )
    document = job_of(kind, name, pods=pods, queue="research", gpus=8)
    document["metadata"]["labels"][keys.PREFIX + keys.PRIORITY_CLASS] = priority
    document["metadata"]["annotations"] = dict(options.pop("annotations", None) or {})
    assert not options
    if kind in LEADERS:
        for replica in replicas(document).values():
            replica["restartPolicy"] = "OnFailure"
    return document


@asynccontextmanager
async def rig(
    url: str,
    machines: int,
    *,
    cluster: FakeCluster | None = None,
    clock: Callable[[], float] = time.time,
    answer_timeout: float = PATIENT,
    leader_url: str = "",
    kinds: JobKinds = KINDS,
) -> AsyncIterator[Rig]:
    """A rig with this many 8-GPU nodes, or with ``cluster`` as it is, and a queue for all of them.

    ``answer_timeout``: seconds after which the controller abandons a database operation. ``leader_url``: its connection to
    the database, if that differs from the test's. ``kinds``: the kinds that the controller manages.
    """
    patient = DatabaseSettings(
        url,
        connect_timeout=PATIENT,
        statement_timeout=PATIENT,
        lock_timeout=PATIENT,
        answer_timeout=answer_timeout,
    )
    async with AsyncExitStack() as stores:
        store = leader_store = await stores.enter_async_context(_connected(patient))
        if leader_url:
            led = replace(patient, url=leader_url)
            leader_store = await stores.enter_async_context(_connected(led))
        cluster = cluster or FakeCluster(nodes(machines), clock=clock, kinds=kinds)
        world = Rig(cluster, store, leader_store, clock=clock)
        try:
            for document in configuration(machines * 8):
                await store.put_config(document)
            yield world
        finally:
            await world.stop()
