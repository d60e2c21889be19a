"""Kueue's own performance workloads on queuectl: real kube-apiserver and etcd, nothing else; every workload a batch/v1 Job.

    python -m tests.bench.bench_kueue [baseline] [tas] [large-scale] [--part 0.1]

The cohorts, queues, quotas, arrivals, priorities, run times and topology are those of Kueue's test; the runner creates the
Jobs, ends each through its status when its run time is over, and confirms suspensions after evictions. Kueue's figures
beside ours: Kueue HEAD of 2026-08, client QPS 300/500, alone on such a machine; they are not re-run here. 2 cores, etcd
without fsync, API server in-flight 2000/1000.
"""

from __future__ import annotations

import argparse
import math
import os
import statistics
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from queuectl.demo.controller import Controller, install
from queuectl.demo.rest import Rest
from queuectl.localcluster import ClusterSpec, LocalCluster
from tests.bench.bench_system import print_table
from tests.bench.kueue.mix import Mix, read
from tests.bench.kueue.runner import Life, Runner
from tests.bench.stage import cost_of, cpu_of, writes_of

CLASSES: Final = ("large", "medium", "small")
SECONDS: Final = 900.0


@dataclass(frozen=True, slots=True)
class Peer:
    """Kueue's figures: seconds, percent of nominal quota, mean seconds to admission by class, CPU seconds, MB."""

    wall: float
    usage: float
    waits: tuple[float, float, float]
    cpu: float
    memory: float


KUEUE: Final[Mapping[str, Peer]] = {
    "baseline": Peer(312, 78, (31, 94, 177), 87, 419),
    "tas": Peer(373, 81, (69, 126, 236), 109, 443),
}
UNKNOWN: Final = Peer(math.nan, math.nan, (math.nan,) * 3, math.nan, math.nan)


@contextmanager
def house(mix: Mix) -> Iterator[tuple[LocalCluster, Controller]]:
    """etcd, API server and queuectl, configured for a mix; its nodes are there and Ready."""
    spec = ClusterSpec(nodes=(), controllers=False, training_operator=False, fsync=False)
    with LocalCluster.start(spec) as cluster:
        client = cluster.client
        client.each(lambda one: client.create("/api/v1/nodes", one), mix.nodes)
        # The API server taints new nodes; the controller that takes the taint away does not run here.
        for node in mix.nodes:
            client.patch(f"/api/v1/nodes/{node['metadata']['name']}", {"spec": {"taints": None}})
        client.each(lambda one: client.create("/api/v1/namespaces", one), mix.spaces)
        install(cluster)
        settings = {"QUEUECTL_EVENTS_PER_SECOND": "1"}
        controller = Controller.start(cluster, settings)
        try:
            controller.wait_ready()
            with Rest(controller.api) as rest:
                rest.apply(list(mix.config))
            yield cluster, controller
        finally:
            controller.stop()


def play(mix: Mix) -> None:
    """One mix, and its table."""
    print(
        f"  {mix.name}: {len(mix.arrivals)} Jobs in {len(mix.queues)} ClusterQueues,"
        f" the last arrives after {mix.arrivals[-1].at:.0f} s",
        flush=True,
    )
    with house(mix) as (cluster, controller):
        servers = {name: cluster.pids()[name] for name in ("kube-apiserver", "etcd")}
        before = {name: cpu_of(pid) for name, pid in servers.items()}
        own = os.times()
        runner = Runner(
            mix, cluster.server, cluster.tls(), lambda text: print(f"    {text}", flush=True)
        )
        wall = runner.run(SECONDS)
        mine = os.times()
        used = {name: cpu_of(pid) - before[name] for name, pid in servers.items()}
        used["runner"] = mine.user + mine.system - own.user - own.system
        report(mix, runner, wall, controller, used)


def report(
    mix: Mix, runner: Runner, wall: float, controller: Controller, used: Mapping[str, float]
) -> None:
    lives = list(runner.lives.values())
    jobs = len(lives)
    peer = KUEUE.get(mix.name, UNKNOWN) if jobs >= 15_000 else UNKNOWN
    cost, writes = cost_of(controller), writes_of(controller)
    waits = mean_waits(lives)
    total = sum(writes.values()) + sum(runner.writes.values())

    def row(what: str, theirs: float, ours: float, target: str = "") -> tuple[str, ...]:
        known = not math.isnan(theirs)
        ratio = f"{ours / theirs:.2f}" if known else ""
        return what, f"{theirs:g}" if known else "-", f"{ours:.4g}", ratio, target

    print_table(
        ("", "Kueue", "queuectl", "ours / Kueue", "target"),
        row("wall, s", peer.wall, wall, "<= 0.33"),
        row("admissions per second", jobs / peer.wall, jobs / wall),
        row("mean use of nominal quota, %", peer.usage, usage(mix, lives, wall)),
        *(
            row(f"mean wait, {name}, s", peer.waits[i], waits[name], "<= 1")
            for i, name in enumerate(CLASSES)
        ),
        row("its own CPU, s", peer.cpu, cost.cpu, "< 1"),
        row("its peak memory, MB", peer.memory, cost.memory * 1.048576, "< 1"),
        row("embedded Postgres: CPU, s", math.nan, cost.postgres_cpu),
        row("embedded Postgres: private memory, MB", math.nan, cost.postgres_memory * 1.048576),
        row("writes per job, the runner's included", math.nan, total / jobs),
        row("API server CPU per job, ms", math.nan, 1000 * used["kube-apiserver"] / jobs),
        row("etcd CPU per job, ms", math.nan, 1000 * used["etcd"] / jobs),
        row("runner's CPU, s", math.nan, used["runner"]),
        row("evictions", math.nan, sum(life.evictions for life in lives)),
        row("latest creation behind its time, s", math.nan, runner.late),
    )
    print(f"    writes of queuectl: {dict(sorted(writes.items()))}; of the runner: {runner.writes}")


def mean_waits(lives: Sequence[Life]) -> dict[str, float]:
    """Seconds from the answered creation to the first admission, by class."""
    waits: dict[str, list[float]] = defaultdict(list)
    for life in lives:
        waits[life.arrival.klass].append(max(0.0, life.admissions[0] - life.created))
    return {name: statistics.fmean(values) for name, values in waits.items()}


def usage(mix: Mix, lives: Sequence[Life], wall: float) -> float:
    """Percent of the nominal quota of all queues that was held, over the whole run."""
    held = sum(life.held * life.arrival.cpu for life in lives)
    return 100 * held / (wall * sum(queue.nominal for queue in mix.queues))


def main() -> None:
    parser = argparse.ArgumentParser(description="Kueue's performance workloads on queuectl")
    parser.add_argument("mixes", nargs="*", default=["baseline", "tas"])
    parser.add_argument("--part", type=float, default=1.0, help="of each set's workloads")
    given = parser.parse_args()
    for name in given.mixes:
        play(read(name, given.part))


if __name__ == "__main__":
    main()
