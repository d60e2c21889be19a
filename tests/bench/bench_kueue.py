"""Kueue's own performance workloads on queuectl, and alongside it on Kueue: every workload a batch/v1 Job.

    python -m tests.bench.bench_kueue [baseline] [tas] [large-scale] [--part 0.1] [--cohorts 1] [--peer FOLDER]

The cohorts, queues, quotas, arrivals, priorities, run times and topology are those of Kueue's test; the runner creates the
Jobs, ends each through its status when its run time is over, and confirms suspensions after evictions. The control plane is
a real kube-apiserver and etcd and nothing else, fresh for each side: 2 cores, etcd without fsync, API server in-flight
2000/1000. With ``--peer`` Kueue's real manager runs first (tests.bench.kueue.peer describes the files of the folder and how it is
set up), then queuectl, and the table shows both; without, queuectl alone.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import Final

from queuectl.demo.api_connection import ApiConnection
from queuectl.demo.controller import install
from queuectl.localcluster import ClusterSpec, LocalCluster
from tests.bench.bench_system import print_table
from tests.bench.history import record
from tests.bench.kueue import peer
from tests.bench.kueue.figures import Figures, Lag, Reading, figures
from tests.bench.kueue.mix import Mix, read
from tests.bench.kueue.runner import Runner
from tests.bench.stage import Cost, cost_of, cpu_of, peak_of, wait_until_at_rest
from tests.support.controllers import CheckedController

CLASSES: Final = ("large", "medium", "small")
SECONDS: Final = 3600.0
MEGABYTES: Final = 1.048576  # of a MiB

Side = tuple[LocalCluster, Callable[[], Cost]]
"""A control plane on which a controller admits Jobs, and what that controller has used up to now."""


@contextmanager
def floor(mix: Mix) -> Iterator[LocalCluster]:
    """etcd and API server; a mix's nodes are there and Ready, its namespaces too."""
    spec = ClusterSpec(nodes=(), controllers=False, operators=(), fsync=False)
    with LocalCluster.start(spec) as cluster:
        client = cluster.client
        client.each(lambda one: client.create("/api/v1/nodes", one), mix.nodes)
        # The API server taints new nodes; the controller that takes the taint away does not run here.
        for node in mix.nodes:
            client.patch(f"/api/v1/nodes/{node['metadata']['name']}", {"spec": {"taints": None}})
        client.each(lambda one: client.create("/api/v1/namespaces", one), mix.spaces)
        yield cluster


@contextmanager
def with_queuectl(mix: Mix) -> Iterator[Side]:
    """queuectl as deploy/ installs it, configured for a mix."""
    with floor(mix) as cluster:
        install(cluster)
        controller = CheckedController.start(cluster, {"QUEUECTL_EVENTS_PER_SECOND": "1"})
        try:
            controller.wait_ready()
            with ApiConnection(controller.api) as rest:
                rest.apply(list(mix.config))
            yield cluster, lambda: cost_of(controller)
        finally:
            controller.stop()


@contextmanager
def with_kueue(folder: Path, mix: Mix) -> Iterator[Side]:
    """Kueue, configured for a translated mix; at the end it reports the number of admitted Workloads."""
    with floor(mix) as cluster:
        kueue = peer.Kueue.start(cluster, folder, peer.jobs_alone())
        try:
            peer.configure(cluster, mix)
            yield cluster, lambda: Cost(cpu_of(kueue.pid), peak_of(kueue.pid))
            print(f"    Kueue: {peer.admitted(cluster)} Workloads admitted", flush=True)
        finally:
            kueue.stop()


def play(mix: Mix, side: Callable[[Mix], AbstractContextManager[Side]], name: str) -> Figures:
    """One mix on one side."""
    with side(mix) as (cluster, cost):
        wait_until_at_rest(cluster)
        before, own = Reading.of(cluster), os.times()
        say = f"    {name}: {{}}".format
        runner = Runner(
            mix, cluster.server, cluster.tls(), lambda text: print(say(text), flush=True)
        )
        wall = runner.run(SECONDS)
        mine = os.times()
        used = mine.user + mine.system - own.user - own.system
        return figures(mix, runner, wall, cost(), before, Reading.of(cluster), used)


def rows(of: Figures) -> dict[str, float]:
    """The rows of the table for one run, by name."""
    cost, jobs = of.cost, of.jobs

    def milliseconds(what: str, lag: Lag) -> dict[str, float]:
        return {f"{what}, mean ms": 1000 * lag.mean, f"{what}, max ms": 1000 * lag.worst}

    return (
        {
            "wall, s": of.wall,
            "admissions per second": jobs / of.wall,
            "mean use of nominal quota, %": of.usage,
        }
        | {f"mean wait, {name}, s": of.waits[name] for name in CLASSES}
        | {f"since it was to be created, {name}, s": of.delays[name] for name in CLASSES}
        | {
            "its own CPU, s": cost.cpu,
            "its peak memory, MB": cost.memory * MEGABYTES,
            "embedded Postgres: CPU, s": cost.postgres_cpu,
            "embedded Postgres: private memory, MB": cost.postgres_memory * MEGABYTES,
            "API server CPU, s": of.cpu["kube-apiserver"],
            "API server CPU per job, ms": 1000 * of.cpu["kube-apiserver"] / jobs,
            "etcd CPU, s": of.cpu["etcd"],
            "runner's CPU, s": of.cpu["runner"],
            "writes per job, the runner's included": of.all_writes / jobs,
            "writes per job without Events": (of.all_writes - of.events) / jobs,
            "evictions of running Jobs": of.evictions,
            "times the runner's watch was cut off": of.cut_off,
        }
        | milliseconds("a creation behind its time", of.creations)
        | milliseconds("a created Job unseen by the runner", of.sights)
        | milliseconds("an end asked for behind its time", of.ends)
        | milliseconds("an end asked for and not answered", of.answers)
    )


RECORDED: Final = {
    "baseline": "15,000 Jobs of Kueue's benchmark: all finished after",
    "tas": "the same with topology",
}
"""The measurement of a whole mix."""

TARGETS: Final = {
    "wall, s": "<= 0.33",
    **{f"mean wait, {name}, s": "<= 1" for name in CLASSES},
    "its own CPU, s": "< 1",
    "its peak memory, MB": "< 1",
}


def report(ours: Figures, theirs: Figures | None) -> None:
    """Both sides with our figure over theirs, or ours alone."""
    if theirs is None:
        print_table(("", "queuectl"), *((what, f"{n:.4g}") for what, n in rows(ours).items()))
    else:
        other = rows(theirs)
        print_table(
            ("", "Kueue", "queuectl", "ours / Kueue", "target"),
            *(
                (
                    what,
                    f"{other[what]:.4g}",
                    f"{n:.4g}",
                    f"{n / other[what]:.2f}" if other[what] else "",
                    TARGETS.get(what, ""),
                )
                for what, n in rows(ours).items()
            ),
        )
    for name, of in (("Kueue", theirs), ("queuectl", ours)):
        if of is not None:
            print(
                f"    writes on {name}'s side: {of.writes}; of the runner: {of.played}", flush=True
            )


def main() -> None:
    parser = argparse.ArgumentParser(description="Kueue's performance workloads")
    parser.add_argument("mixes", nargs="*", default=["baseline", "tas"])
    parser.add_argument("--part", type=float, default=1.0, help="of each set's workloads")
    parser.add_argument("--cohorts", type=int, help="so many of them at most")
    parser.add_argument(
        "--peer", type=Path, metavar="FOLDER", help="a build of Kueue, which runs first"
    )
    given = parser.parse_args()
    for name in given.mixes:
        mix = read(name, given.part, given.cohorts)
        print(
            f"  {mix.name}: {len(mix.arrivals)} Jobs in {len(mix.queues)} ClusterQueues,"
            f" the last arrives after {mix.arrivals[-1].at:.0f} s",
            flush=True,
        )
        theirs = (
            play(peer.translated(mix), partial(with_kueue, given.peer), "Kueue")
            if given.peer
            else None
        )
        ours = play(mix, with_queuectl, "queuectl")
        if given.part == 1.0 and given.cohorts is None and name in RECORDED:
            record(RECORDED[name], ours.wall)
        report(ours, theirs)


if __name__ == "__main__":
    main()
