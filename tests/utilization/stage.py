"""A small simulated GPU cluster that every source reads at once: exporters of a dozen nodes and two Prometheus servers.

Time runs sixty times as fast as in production: a scrape every half second, and windows of seconds.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from queuectl.domain.queues import IdleReclaim
from queuectl.domain.utilization import GangUse, SourceFault, UseState, UtilizationSample
from queuectl.localcluster.exporter import Dialect, Exporters
from queuectl.localcluster.gpus import GpuPod, parse_profile
from queuectl.localcluster.progress import LineProgress
from queuectl.localcluster.prometheus import Prometheus, exporters_job
from queuectl.state.gpu_holders import HeldGang, HeldPod
from queuectl.state.utilization import UseTracker, source_faults
from queuectl.telemetry.signal.exporters import ExporterSource
from queuectl.telemetry.signal.names import AMD, INTEL, NVIDIA, ExporterNames
from queuectl.telemetry.signal.prometheus import PrometheusSource
from queuectl.telemetry.signal.queries import Recorded
from queuectl.telemetry.signal.several import SeveralVendors
from queuectl.telemetry.signal.trust import Trust

SCRAPE = 0.5
RECENT = 3.0
RULE = IdleReclaim(window=8.0, warmup=0.0, memory_window=60.0)
DIES, REVIVES, RESTARTS, ENDS = 4.25, 8.0, 7.0, 12.0
RULES = Path(__file__).parents[2] / "deploy" / "chart" / "rules" / "rules.yaml"
RULES_OVER = 2.0
TEAM = "team"
DYING = ("n-gap", "n-exporter-dies")
SCRAPED = f'up{{instance!~"{"|".join(DYING)}"}}'
RECORDED = "queuectl:gpus"

Source = PrometheusSource | ExporterSource | SeveralVendors


@dataclass(frozen=True)
class Scenario:
    """A gang of the world: the load of its pods, and the states that are correct for it.

    Attributes:
        profiles: the load of each pod.
        node: of all pods.
        may_be: states that are correct at the end.
        gpus: of each pod.
        dialect: of the node's exporter.
    """

    name: str
    profiles: tuple[str, ...]
    may_be: frozenset[UseState]
    gpus: int = 2
    dialect: Dialect | None = None
    mig: str = ""
    shared: bool = False
    node: str = ""
    namespace: str = TEAM

    @property
    def place(self) -> str:
        return self.node or f"n-{self.name}"


def states(*names: UseState) -> frozenset[UseState]:
    return frozenset(names)


U = UseState
BUSY = states(U.ACTIVE)
USED = states(U.ACTIVE, U.LOW)
IDLE = states(U.IDLE)
BLIND = states(U.UNKNOWN)

SCENARIOS = (
    Scenario("busy", ("busy", "busy"), BUSY),
    Scenario("idle", ("idle", "idle"), IDLE),
    Scenario("one-rank-works", ("idle", "busy=0.9"), USED),
    Scenario("one-gpu-works", ("idle | busy",), USED),
    Scenario("stuck", ("stuck", "stuck"), states(U.STUCK)),
    Scenario("loaded", ("held",), states(U.LOW)),
    Scenario("idle-lately", ("busy for 7; idle",), states(U.LOW)),
    Scenario("gpu-lost", ("idle | unseen",), BLIND),
    Scenario("works-again", ("idle for 7; busy",), BUSY),
    Scenario("rank-lost", ("idle", "unseen"), BLIND),
    Scenario("exporter-dies", ("idle",), BLIND),
    Scenario("gap", ("idle",), BLIND),
    Scenario("again", ("idle",), states(U.ACTIVE, U.UNKNOWN)),
    Scenario("again-by-uid", ("idle",), BUSY, dialect=Dialect(pod_uid=True)),
    Scenario("mig-idle", ("idle",), IDLE, mig="1g.10gb", node="n-mig"),
    Scenario("mig-busy", ("busy",), BUSY, mig="1g.10gb", node="n-mig"),
    Scenario("shared-idle", ("idle",), BLIND, gpus=1, shared=True, node="n-shared"),
    Scenario("shared-busy", ("busy",), BLIND, gpus=1, shared=True, node="n-shared"),
    Scenario("coarse-idle", ("idle",), IDLE, dialect=Dialect(dcp=False)),
    Scenario("coarse-busy", ("busy",), BUSY, dialect=Dialect(dcp=False)),
    Scenario("coarse-stuck", ("stuck",), BUSY, dialect=Dialect(dcp=False)),
    Scenario("twin", ("busy",), BUSY),
    Scenario("twin", ("idle",), IDLE, namespace="other", node="n-twin-other"),
    Scenario("scraped-twice", ("idle",), IDLE),
    Scenario("scraped-twice-busy", ("busy",), BUSY, node="n-scraped-twice"),
    Scenario("unknown-utilization", (), BLIND),
    Scenario("forged-alone", ("unseen", "unseen"), BLIND),
    Scenario("forged-beside", ("busy", "busy"), BUSY),
    Scenario("forged-busy", ("idle", "idle"), IDLE),
    Scenario("forged-sharing", ("idle",), IDLE),
)  # fmt: skip
TRUST = Trust(("dcgm-exporter", "again", "amd"))
FORGED = {
    "forged-alone": ("idle", "idle"),
    "forged-beside": ("idle", "idle"),
    "forged-busy": ("busy", "busy"),
}
"""Pods that a tenant's exporter also names, with the GPUs that they hold and the load that it claims."""
AMD_SCENARIOS = (
    Scenario("amd-busy", ("busy",), BUSY, dialect=Dialect(vendor="amd")),
    Scenario("amd-idle", ("idle",), IDLE, dialect=Dialect(vendor="amd")),
    Scenario("amd-half", ("idle | busy",), USED, dialect=Dialect(vendor="amd")),
    Scenario("intel-busy", ("busy",), BUSY, dialect=Dialect(vendor="intel")),
    Scenario("intel-idle", ("idle",), IDLE, dialect=Dialect(vendor="intel")),
)
SHARED = Dialect(virtual_gpus=True)


@dataclass
class World:
    """The exporters, and the gangs in the controller's view."""

    exporters: Exporters
    began: float
    gangs: dict[str, HeldGang] = field(default_factory=dict)
    loads: dict[str, list[GpuPod]] = field(default_factory=dict)
    scenarios: dict[str, Scenario] = field(default_factory=dict)
    dead: list[tuple[str, float, float]] = field(default_factory=list)
    """Nodes whose exporter failed, and the start and end of the failure."""
    before: dict[str, tuple[GpuPod, float]] = field(default_factory=dict)
    """The earlier run of a gang that restarted, and its end."""

    def enter(self, scenario: Scenario) -> None:
        uid = f"{scenario.namespace}/{scenario.name}"
        self.scenarios[uid] = scenario
        pods = []
        for number, profile in enumerate(scenario.profiles):
            load = GpuPod(
                scenario.namespace, f"{scenario.name}-{number}", f"{uid}-{number}", scenario.place, scenario.gpus,
                parse_profile(profile), self.began, mig=scenario.mig, shared=scenario.shared,
            )  # fmt: skip
            self.exporters.put(load)
            self.loads.setdefault(uid, []).append(load)
            pods.append(held(load))
        if not pods:
            pods = [
                HeldPod(scenario.namespace, f"{scenario.name}-0", uid, scenario.gpus, self.began)
            ]
        self.gangs[uid] = HeldGang(uid, 1, "queue", RULE, self.began, tuple(pods))

    def restart(self, name: str, profile: str) -> None:
        """Delete its pod and create it again with the same name: a new attempt on another node."""
        uid = f"{TEAM}/{name}"
        old = self.loads[uid][0]
        self.exporters.take(old.uid)
        now = time.time()
        load = replace(
            old,
            uid=f"{old.uid}-later",
            node=later(old.node),
            since=now,
            profile=parse_profile(profile),
        )
        self.before[uid] = (old, now)
        self.loads[uid] = [load]
        self.exporters.put(load)
        self.gangs[uid] = replace(self.gangs[uid], attempt=2, ready_at=now, pods=(held(load),))

    def fail(self, node: str) -> None:
        """The exporter of a node fails every scrape from now on."""
        self.exporters.kill(node)
        self.dead.append((node, time.time(), float("inf")))

    def repair(self, node: str) -> None:
        now = time.time()
        self.exporters.revive(node)
        self.dead = [
            (one, since, min(until, now) if one == node else until)  # an earlier failure is over
            for one, since, until in self.dead
        ]

    def idle_by_right(self, uid: str, at: float, smear: float = 0.0) -> bool:
        """Whether idle is correct at a time: its GPUs were idle for the window, and samples show it.

        ``smear``: seconds before an evaluation from which a recording rule reads samples. It does not see shorter gaps.
        """
        scenario = self.scenarios[uid]
        if scenario.may_be <= BLIND and scenario.name not in ("gap", "exporter-dies"):
            return False
        steps = [at - RULE.window + step * 0.02 for step in range(round(RULE.window / 0.02))]
        # Values that a quantile ignores, and the times of samples.
        slack = 0.1 * RULE.window + 2 * SCRAPE
        busy = sum(self._busy(uid, moment) for moment in steps) * 0.02
        dark = sum(self._dark(scenario.place, moment) for moment in steps) * 0.02
        return busy <= slack and dark <= 0.2 * RULE.window + 2 * SCRAPE + smear

    def _busy(self, uid: str, at: float) -> bool:
        old, until = self.before.get(uid, (None, 0.0))
        loads = [old] if old is not None and at < until else self.loads[uid]
        return any(
            load.work(number, at).engine > RULE.idle_below
            for load in loads
            for number in range(load.gpus)
        )

    def _dark(self, node: str, at: float) -> bool:
        return any(one == node and since <= at < until for one, since, until in self.dead)


def later(node: str) -> str:
    """The node of the next attempt, for a gang of this node."""
    return f"{node}-later"


def add_nodes(exporters: Exporters, scenarios: Sequence[Scenario]) -> list[str]:
    """Add nodes for these gangs and for their next attempts."""
    nodes: dict[str, Dialect | None] = {}
    for scenario in scenarios:
        dialect = SHARED if scenario.shared else scenario.dialect
        nodes[scenario.place] = dialect
        if scenario.name.startswith("again"):
            nodes[later(scenario.place)] = dialect
    for node, dialect in nodes.items():
        exporters.add_node(node, gpus=4, dialect=dialect)
    return list(nodes)


def held(load: GpuPod) -> HeldPod:
    return HeldPod(load.namespace, load.pod, load.uid, load.gpus, load.since)


@dataclass
class Watcher:
    """A source with its own tracker, and all its results."""

    name: str
    source: Source
    tracker: UseTracker = field(default_factory=lambda: UseTracker(SCRAPE))
    results: list[tuple[float, dict[str, GangUse]]] = field(default_factory=list)
    wrong: Mapping[SourceFault, int] = field(default_factory=dict)
    recent: UtilizationSample | None = None

    async def sample(self, gangs: list[HeldGang], at: float | None = None) -> dict[str, GangUse]:
        """Sample at a time; None = now."""
        at = time.time() if at is None else at
        known = {pod.key for gang in gangs for pod in gang.pods}
        recent = await self.source.sample(RECENT, at, known)
        windows = self.tracker.windows(gangs, recent)
        longer = {window: await self.source.sample(window, at, known) for window in windows}
        uses = self.tracker.judge(gangs, recent, longer)
        self.results.append((at, uses))
        self.wrong = source_faults(gangs, recent, SCRAPE)
        self.recent = recent
        return uses


def prometheus(url: str, names: ExporterNames = NVIDIA, *, rules: bool = False) -> PrometheusSource:
    recorded = Recorded(SCRAPE, every=SCRAPE, over=RULES_OVER, trust=TRUST)
    return PrometheusSource(
        url, names=names, trust=TRUST, scrape_seconds=SCRAPE, rules=rules, recorded=recorded
    )


def quick_rules(folder: Path) -> Path:
    """The shipped recording rules, with the intervals of this stage."""
    text = RULES.read_text()
    quick = text.replace("interval: 30s", f"interval: {round(SCRAPE * 1000)}ms")
    path = folder / "rules.yaml"
    quick = quick.replace("offset 10s", f"offset {round(SCRAPE * 1000)}ms")
    path.write_text(quick.replace("[2m]", f"[{round(RULES_OVER * 1000)}ms]"))
    return path


@dataclass
class Stage:
    """The state after the simulation."""

    world: World
    amd: World
    watchers: dict[str, Watcher]
    servers: dict[str, Prometheus]
    late: float
    """Maximum delay of any event, in seconds. On a stalled machine the simulation differs."""

    @property
    def on_time(self) -> bool:
        """Whether every event was on time, every scrape was made, and every rule was evaluated."""
        span = f"[{ENDS:.0f}s] @ {self.world.began + ENDS:.3f}"
        counts = [
            float(one["value"][1])
            for server in self.servers.values()
            for samples in (f"sum_over_time({SCRAPED}{span})", f"count_over_time({RECORDED}{span})")
            for one in server.query(samples)
        ]
        return min(counts) >= ENDS / SCRAPE - 2 and self.late <= SCRAPE


@contextmanager
def first_in_turn() -> Iterator[None]:
    """Raise the priority of the process if it has the permission: a late simulation is repeated."""
    nice = os.getpriority(os.PRIO_PROCESS, 0)
    with suppress(PermissionError):
        os.setpriority(os.PRIO_PROCESS, 0, nice - 10)
    try:
        yield
    finally:
        os.setpriority(os.PRIO_PROCESS, 0, nice)


@asynccontextmanager
async def simulated(folder: Path) -> AsyncIterator[Stage]:
    """Run the simulation, sample throughout, and leave the servers running for further queries."""
    # First: threads and programs, including the exporters, inherit the priority.
    with first_in_turn(), Exporters() as exporters, Exporters() as radeons, Exporters() as forger:
        forged = add_nodes(
            forger, [scenario for scenario in SCENARIOS if scenario.name.startswith("forged")]
        )
        nodes, cards = add_nodes(exporters, SCENARIOS), add_nodes(radeons, AMD_SCENARIOS)
        jobs = {
            honor: [
                exporters_job(exporters.targets_url, honor_labels=honor),
                exporters_job(radeons.targets_url, honor_labels=honor) | {"job_name": "amd"},
                twice(exporters, honor=honor),
                tenants_job(forger, forged, named=not honor),
            ]
            for honor in (True, False)
        }
        rules = [quick_rules(folder)]
        with (
            Prometheus.start(
                jobs[True], scrape_seconds=SCRAPE, rules=rules, progress=LineProgress()
            ) as honored,
            Prometheus.start(jobs[False], scrape_seconds=SCRAPE, rules=rules) as renamed,
        ):
            sources: dict[str, Source] = {
                "honored": prometheus(honored.url),
                "renamed": prometheus(renamed.url),
                "recorded": prometheus(honored.url, rules=True),
                "recorded, renamed": prometheus(renamed.url, rules=True),
                "exporters": ExporterSource(
                    list(map(exporters.url, nodes)), scrape_seconds=SCRAPE, retention_seconds=120.0
                ),
                "amd": SeveralVendors([prometheus(honored.url, names) for names in (AMD, INTEL)]),
                "amd exporters": ExporterSource(
                    list(map(radeons.url, cards)),
                    names=(AMD, INTEL),
                    scrape_seconds=SCRAPE,
                    retention_seconds=120.0,
                ),
            }
            watchers = {name: Watcher(name, source) for name, source in sources.items()}
            try:
                for server in (honored, renamed):
                    await until(
                        partial(all_there, server, len(nodes) + len(cards) + len(forged) + 1)
                    )
                now = time.time()
                world, amd = World(exporters, now), World(radeons, now)
                for scenario in SCENARIOS:
                    world.enter(scenario)
                for scenario in AMD_SCENARIOS:
                    amd.enter(scenario)
                forge(forger, world)
                late = await simulate(world, amd, watchers)
                servers = {"honored": honored, "renamed": renamed}
                yield Stage(world, amd, watchers, servers, late)
            finally:
                for source in sources.values():
                    await source.close()


def all_there(server: Prometheus, targets: int) -> bool:
    """Whether it scrapes all targets and records: it knows its targets a few seconds after it first answers."""
    return len(server.query("up == 1")) == targets and bool(server.query(RECORDED))


async def until(holds: Callable[[], bool]) -> None:
    for _ in range(600):
        if holds():
            return
        await asyncio.sleep(0.05)
    raise AssertionError("timeout")


def twice(exporters: Exporters, *, honor: bool) -> dict[str, object]:
    """A second scrape of one exporter, as from a second scrape configuration."""
    return {
        "job_name": "again",
        "honor_labels": honor,
        "metrics_path": "/metrics/n-scraped-twice",
        "static_configs": [
            {
                "targets": [exporters.address],
                "labels": {"pod": "other-exporter", "namespace": "monitoring", "instance": "again"},
            }
        ],
    }


def tenants_job(forger: Exporters, nodes: Sequence[str], *, named: bool) -> dict[str, object]:
    """The scrape of all pods with an annotation, including a tenant's pod.

    ``named``: targets have labels that name their pods, so labels of the series are renamed; otherwise the tenant sets them.
    """
    whose = {"pod": "metrics-0", "namespace": "tenant"} if named else {}
    return {
        "job_name": "kubernetes-pods",
        "static_configs": [
            {
                "targets": [forger.address],
                "labels": {"__metrics_path__": f"/metrics/{node}", "instance": f"forged-{node}"} | whose,
            }
            for node in nodes
        ],
    }  # fmt: skip


def forge(forger: Exporters, world: World) -> None:
    """Export series of other tenants' pods as a tenant, for exactly the GPUs that those hold."""
    for name, profiles in FORGED.items():
        for load, profile in zip(world.loads[f"{TEAM}/{name}"], profiles, strict=True):
            forger.put(replace(load, profile=parse_profile(profile)))
    (victim,) = world.loads[f"{TEAM}/forged-sharing"]
    forger.put(replace(victim, namespace="tenant", pod="mine", uid="mine"))


async def simulate(world: World, amd: World, watchers: Mapping[str, Watcher]) -> float:
    """Sample until the end, while exporters fail and gangs restart. Returns the maximum delay in seconds."""
    actions: list[tuple[float, Callable[[], None]]] = [
        (DIES, partial(world.fail, DYING[0])),
        (RESTARTS, partial(world.restart, "again", "busy")),
        (RESTARTS, partial(world.restart, "again-by-uid", "busy")),
        (REVIVES, partial(world.repair, DYING[0])),
        (ENDS - 3.0, partial(world.fail, DYING[1])),
    ]
    async with asyncio.TaskGroup() as group:
        acting = group.create_task(asyncio.to_thread(act, world.began, actions))
        looking = [group.create_task(watch(each, world, amd)) for each in watchers.values()]
    return max(acting.result(), *(task.result() for task in looking))


def act(began: float, actions: Sequence[tuple[float, Callable[[], None]]]) -> float:
    """Run each act at its time, in a separate thread. Returns the maximum delay in seconds."""
    late = 0.0
    for at, action in actions:
        time.sleep(max(0.0, began + at - time.time()))
        late = max(late, time.time() - began - at)
        action()
    return late


async def watch(watcher: Watcher, world: World, amd: World) -> float:
    """Sample repeatedly. Returns the maximum delay of a sample in seconds, for sources to which it matters.

    A query to Prometheus names the planned time, so that its result does not depend on the load of the machine. The
    samples of an exporter are taken at the time of the request.
    """
    scrapes = isinstance(watcher.source, ExporterSource)
    every, late = SCRAPE if scrapes else 4 * SCRAPE, 0.0
    for step in range(round(ENDS / every) + 1):
        planned = world.began + step * every
        await asyncio.sleep(max(0.0, planned - time.time()))
        late = max(late, time.time() - planned) if scrapes else 0.0
        await watcher.sample(gangs_for(watcher, world, amd), None if scrapes else planned)
    return late


def gangs_for(watcher: Watcher, world: World, amd: World) -> list[HeldGang]:
    return list((amd if watcher.name.startswith("amd") else world).gangs.values())
