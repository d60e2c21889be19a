"""Gangs that borrow, and are evicted when what they borrowed is reclaimed: work lost, and how long each size of gang waits.

    python -m tests.bench.bench_thrash [--replay] [--seeds 1,2,3] [--policy '{"borrowBackoffSeconds": 0}'] [--reclaim Never]
    python -m tests.bench.bench_thrash --orders [--seeds 1,2,3]
    python -m tests.bench.bench_thrash --peer FOLDER [--seeds 1,2,3]

The load is that of :mod:`tests.bench.thrash`. It runs on a real control plane, a new one for each seed; with ``--replay``
in simulated time around the planner and the ledger's state machine, with fixed latencies, so that the same seed gives the same figures.
With ``--orders`` it runs in one pool of GPUs without queuectl, in several queue orders. With ``--peer`` it runs on Kueue, of
which the folder holds a build (:mod:`tests.bench.thrash_peer`).
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import defaultdict
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

from queuectl.control.settings import Settings
from queuectl.demo.recorder import Recording
from queuectl.demo.scenario import Document
from queuectl.domain.events import Drained, Ended, PodsReady
from queuectl.domain.jobs import JobOutcome, JobRecord, PodPhase, PodRecord
from queuectl.domain.ledger import EntryChange, State
from tests.bench import queue_orders, thrash, thrash_peer
from tests.bench.bench_replay import Replay
from tests.bench.bench_system import SETTINGS, print_table, summary
from tests.bench.kueue.mix import Arrival, Mix, Queue
from tests.bench.stage import Stage, stage
from tests.bench.thrash import Fate, Figures, Gang, figures

CYCLE: Final = 0.2  # seconds between two cycles of the replay
STARTS: Final = 1.0  # seconds until a start has taken effect
LEAVES: Final = 1.0  # seconds until the pods of an evicted gang have terminated


@dataclass
class Simulated(Replay):
    """The replay of Kueue's workloads, with these gangs."""

    fates: dict[str, Fate] = field(default_factory=dict)
    gangs: dict[str, Gang] = field(default_factory=dict)
    running: dict[str, float] = field(default_factory=dict)
    lost: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    restarts: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    first: dict[str, float] = field(default_factory=dict)

    def _follow(self, change: EntryChange) -> None:
        entry = change.after
        if change.before is None or change.before.state is entry.state:
            return
        gang = self.gangs[entry.uid]
        if entry.state is State.STARTING:
            self.running[entry.uid] = began = self.now + STARTS
            self.first.setdefault(entry.uid, began)
            self._later(began, entry, PodsReady())
            self._later(began + gang.runtime, entry, Ended(JobOutcome.SUCCEEDED))
            self.ends[entry.uid] = began + gang.runtime
            self.fates[entry.uid] = Fate(
                gang,
                self.first[entry.uid],
                began + gang.runtime,
                self.lost[entry.uid],
                self.restarts[entry.uid],
            )
        elif entry.state is State.EVICTING:
            ran = max(0.0, self.now - self.running[entry.uid])
            self.lost[entry.uid] += ran * gang.pods * gang.gpus
            self.restarts[entry.uid] += 1
            self._later(self.now + LEAVES, entry, Drained())


def simulate(seed: int, queues: list[Document]) -> Figures:
    """One seed in simulated time."""
    gangs = list(thrash.gangs(seed))
    mix = Mix(
        "thrash",
        tuple(Queue(name, thrash.GPUS / len(thrash.QUEUES)) for name in thrash.QUEUES),
        tuple(queues),
        tuple(thrash.NODES.documents()),
        tuple(Arrival(g.at, g.name, g.queue, "small", g.runtime, 0, g.document) for g in gangs),
    )
    replay = Simulated(mix, Settings(), CYCLE)
    replay.gangs = {f"{g.queue}/{g.name}": g for g in gangs}
    replay.run()
    return figures(replay.fates.values())


def play(seed: int, queues: list[Document]) -> Figures:
    """One seed on a real control plane."""
    gangs = list(thrash.gangs(seed))
    with stage(thrash.NODES, queues, list(thrash.QUEUES), SETTINGS) as cluster:
        began = time.time()
        for gang in gangs:
            time.sleep(max(0.0, began + gang.at - time.time()))
            cluster.submit(gang.document)
        cluster.wait_for_jobs(len(gangs), 1800)
        fates = _fates(cluster, gangs, began)
        print("    audit:", summary(cluster.audit()), flush=True)
    return figures(fates)


def _fates(cluster: Stage, gangs: list[Gang], began: float) -> list[Fate]:
    """The recorded times of each gang."""
    recording = cluster.recorder.recording()
    names = {e.key: e.fact.name for e in recording.events if isinstance(e.fact, JobRecord)}
    ended: dict[str, float] = {}
    for event in recording.events:
        if isinstance(event.fact, JobRecord) and event.fact.outcome is not None:
            ended.setdefault(event.fact.name, event.at - began)
    _, running = cluster.times()
    lost, restarts = _lost(recording, names)
    return [
        Fate(
            gang,
            cluster.submitted[gang.name] + running[gang.name] - began,
            ended[gang.name],
            lost[gang.name] * gang.gpus,
            restarts[gang.name],
        )
        for gang in gangs
    ]


def _lost(recording: Recording, names: dict[str, str]) -> tuple[dict[str, float], dict[str, int]]:
    """Seconds that pods had run when they were deleted, and attempts that had such pods, by job."""
    started: dict[str, float] = {}
    left: set[str] = set()
    lost: dict[str, float] = defaultdict(float)
    attempts: dict[str, set[int]] = defaultdict(set)
    for event in recording.events:
        pod = event.fact
        if not isinstance(pod, PodRecord) or pod.owner not in names or event.key in left:
            continue
        if pod.terminal:
            left.add(event.key)
        elif pod.terminating or event.gone:
            left.add(event.key)
            attempts[names[pod.owner]].add(pod.attempt)
            if event.key in started:
                lost[names[pod.owner]] += event.at - started[event.key]
        elif pod.phase is PodPhase.RUNNING:
            started.setdefault(event.key, event.at)
    return lost, defaultdict(int, {name: len(found) for name, found in attempts.items()})


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--replay", action="store_true", help="in simulated time")
    parser.add_argument("--seeds", default=",".join(map(str, thrash.SEEDS)))
    parser.add_argument("--policy", type=json.loads, help="spec.policy of the queues, as JSON")
    parser.add_argument("--reclaim", default="Any", help="reclaimWithinCohort of the queues")
    parser.add_argument("--orders", action="store_true", help="in one pool of GPUs")
    parser.add_argument(
        "--peer", type=Path, metavar="FOLDER", help="on Kueue, of which it has a build"
    )
    options = parser.parse_args(arguments)
    seeds = [int(seed) for seed in options.seeds.split(",")]
    if options.orders:
        print_table(("order", *thrash.HEAD[1:]), *queue_orders.rows(seeds, STARTS))
        return
    run = simulate if options.replay else play
    if options.peer is not None:
        run = partial(thrash_peer.play, folder=options.peer, starts=STARTS)
    queues = thrash.config(options.policy, options.reclaim)
    found: list[Figures] = []
    rows: list[tuple[str, ...]] = [thrash.HEAD]
    for seed in seeds:
        total = sum(g.work for g in thrash.gangs(seed))
        print(f"  seed {seed}: {total:,} GPU-seconds", flush=True)
        found.append(run(seed, queues))
        rows.append(thrash.row(f"seed {seed}", found[-1]))
        print("   ", rows[-1], flush=True)
    print_table(*rows, thrash.row("median", thrash.medians(found)))


if __name__ == "__main__":
    main(sys.argv[1:])
