"""How fast a running plan ends when the controller stops: ``python -m tests.bench.bench_stop``.

A thread solves, or plans, as in the loop; at a random moment this one calls ``StopSignal.stop`` as a shutdown does. The
figure is the time until the planning thread is back, in milliseconds, both by the wall clock.
"""

from __future__ import annotations

import argparse
import random
import threading
import time
from collections.abc import Callable

from queuectl.domain.snapshot import Snapshot, SolverLimits
from queuectl.planner import StopSignal, plan
from queuectl.planner.cache import PlannerCache
from queuectl.planner.solver import Solver
from tests.bench.bench_planner import SEED, Cluster, three
from tests.bench.clusters import SIZES, mixed_gang
from tests.planner.test_stop import hard_model

TRIES = 200
LIMITS = SolverLimits(deterministic_time=1e6, wall_seconds=600.0)
TARGET = "p95 50"


def stop_after(work: Callable[[StopSignal], object], seconds: float) -> float | None:
    """Milliseconds from the stop to the end of the work; None when it was over before."""
    stop = StopSignal()
    thread = threading.Thread(target=work, args=(stop,))
    thread.start()
    thread.join(timeout=seconds)
    if not thread.is_alive():
        return None
    at = time.perf_counter()
    stop.stop()
    thread.join()
    return (time.perf_counter() - at) * 1e3


def measure(
    load: str, work: Callable[[StopSignal], object], longest: float, tries: int, rng: random.Random
) -> None:
    """Print one line: the work is stopped after 5 ms to ``longest`` seconds."""
    took = [stop_after(work, rng.uniform(0.005, longest)) for _ in range(tries)]
    running = [each for each in took if each is not None]
    print(f"| {load} | {three(running)} | {len(running)} | {TARGET} |", flush=True)


def a_plan(rng: random.Random) -> tuple[Snapshot, PlannerCache, float]:
    """A hundred gangs on 5,000 nodes, what is known of them, and how long their plan takes."""
    cluster = Cluster(SIZES[1])
    gangs = [mixed_gang(f"g{i}", rng, queued_at=float(i)) for i in range(100)]
    snapshot = cluster.with_gangs(gangs)
    cache = PlannerCache()
    plan(snapshot, cache=cache)
    at = time.perf_counter()
    plan(snapshot, cache=cache)
    return snapshot, cache, time.perf_counter() - at


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tries", type=int, default=TRIES)
    tries = parser.parse_args().tries
    rng = random.Random(SEED)
    print("| stopped in the middle of | ms, p50 / p95 / max | tries | target |", flush=True)
    print("| --- | --- | --- | --- |", flush=True)
    hard = hard_model()
    measure(
        "a solve that would take minutes",
        lambda stop: Solver(LIMITS, stop).solve(hard),
        0.1,
        tries,
        rng,
    )
    snapshot, cache, seconds = a_plan(rng)
    measure(
        "a plan of 100 gangs on 5,000 nodes",
        lambda stop: plan(snapshot, stop, cache),
        0.9 * seconds,
        tries,
        rng,
    )


if __name__ == "__main__":
    main()
