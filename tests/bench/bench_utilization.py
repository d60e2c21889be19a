"""The cost of one evaluation of all GPUs: ``python -m tests.bench.bench_utilization [--nodes N]``.

A real Prometheus that has recorded half an hour of a full cluster of 8-GPU nodes, one pod each, as deploy/chart/rules/rules.yaml
records it; every twentieth gang does nothing, so the longer window is read as well. Times are CPU times of queuectl and of
Prometheus, with the wall time alongside them. The second line is for exporters that queuectl scrapes itself: 8 GPUs and 6 metrics each.
"""

from __future__ import annotations

import argparse
import asyncio
import resource
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median

import numpy as np

from queuectl.domain.queues import IdleReclaim
from queuectl.localcluster.exporter import Dialect, render
from queuectl.localcluster.gpus import GpuPod, SimulatedGpus, parse_profile
from queuectl.localcluster.progress import LineProgress
from queuectl.localcluster.prometheus import Prometheus
from queuectl.state.gpu_holders import HeldGang, HeldPod
from queuectl.state.utilization import UseTracker
from queuectl.telemetry.signal.exporters import ExporterSource
from queuectl.telemetry.signal.prometheus import PrometheusSource

GPUS = 8
WINDOW, RECENT, SCRAPE = 1800.0, 120.0, 30.0
JOB = 'job="dcgm-exporter"'
RULE = IdleReclaim(window=WINDOW, warmup=0.0)


def history(nodes: int, now: float) -> Iterator[str]:
    """The series of the recording rules, in OpenMetrics."""
    steps = [now - WINDOW - 60 + 30 * n for n in range(round((WINDOW + 60) / 30) + 1)]
    values: dict[str, Callable[[bool], float]] = {
        'busy:2m{signal="profiling",': lambda idle: 0.0 if idle else 0.9,
        'mean:2m{signal="profiling",': lambda idle: 0.0 if idle else 0.8,
        'samples:2m{signal="profiling",': lambda _: 4,
        'devices:2m{signal="profiling",': lambda _: GPUS,
        'age{signal="profiling",': lambda _: 10,
        'tensor:2m{signal="profiling",': lambda idle: 0.0 if idle else 0.4,
        'memory_busy:2m{signal="profiling",': lambda idle: 0.0 if idle else 0.4,
        "memory_held{": lambda _: 0.1,
    }
    for name, value in values.items():
        yield f"# TYPE queuectl:gpu_{name.partition('{')[0]} gauge\n"
        for node in range(nodes):
            series = f'queuectl:gpu_{name}{JOB},namespace="team",pod="train-{node}"}} {value(does_nothing(node))} '
            yield "".join(f"{series}{at:.0f}\n" for at in steps)
    yield "# TYPE queuectl:gpus gauge\n"
    yield "".join(f"queuectl:gpus{{{JOB}}} {nodes * GPUS} {at:.0f}\n" for at in steps)
    yield "# EOF\n"


def does_nothing(node: int) -> bool:
    """Every twentieth gang of four."""
    return node // 4 % 20 == 0


def gangs(nodes: int, now: float) -> list[HeldGang]:
    """Of four pods each."""
    started = now - 10 * WINDOW
    pods = [HeldPod("team", f"train-{n}", f"uid-{n}", GPUS, started) for n in range(nodes)]
    return [
        HeldGang(f"gang-{n}", 1, "queue", RULE, started, tuple(pods[n : n + 4]))
        for n in range(0, nodes, 4)
    ]


def grown() -> float:
    """Largest memory of this process so far, MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


async def from_prometheus(nodes: int, rounds: int) -> str:
    now = float(round(time.time()))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "history.txt"
        with path.open("w") as file:
            file.writelines(history(nodes, now))
        server = Prometheus.start([], history=path, progress=LineProgress())
    with server:
        source = PrometheusSource(server.url, scrape_seconds=SCRAPE, timeout=120.0)
        held, before = gangs(nodes, now), grown()
        known = {pod.key for gang in held for pod in gang.pods}
        took = []
        for _ in range(rounds):
            tracker = UseTracker(SCRAPE)
            cpu, wall, theirs = time.process_time(), time.perf_counter(), server.cpu_seconds()
            recent = await source.sample(RECENT, now, known)
            windows = tracker.windows(held, recent)
            longer = {window: await source.sample(window, now, known) for window in windows}
            uses = tracker.judge(held, recent, longer)
            took.append(
                (
                    time.process_time() - cpu,
                    server.cpu_seconds() - theirs,
                    time.perf_counter() - wall,
                )
            )
        await source.close()
    states = sorted({str(use.state) for use in uses.values()})
    return line("Prometheus, recording rules", nodes, took, grown() - before, states)


async def from_exporters(nodes: int, rounds: int) -> str:
    """Without the network: what it costs to read and keep the texts, and to judge by them."""
    now, began = time.time(), grown()
    texts: dict[str, bytes | str] = {}
    for node in range(nodes):
        profile = parse_profile("idle" if does_nothing(node) else "busy")
        devices = SimulatedGpus(f"n{node}", GPUS)
        devices.put(GpuPod("team", f"train-{node}", f"uid-{node}", f"n{node}", GPUS, profile, now))
        texts[f"http://{node}"] = render(devices.assignments, [], Dialect(), now).encode()
    held = gangs(nodes, now)
    source = ExporterSource(list(texts), scrape_seconds=SCRAPE)
    known = {pod.key for gang in held for pod in gang.pods}
    took = []
    for step in range(rounds):
        at = now + SCRAPE * step
        tracker = UseTracker(SCRAPE)
        cpu, wall = time.process_time(), time.perf_counter()
        source._keep(at, texts)
        source._scraped_at = at
        recent = await source.sample(RECENT, at, known)
        tracker.judge(held, recent, {})
        took.append((time.process_time() - cpu, 0.0, time.perf_counter() - wall))
    await source.close()
    return line("exporters, two hours kept", nodes, took, grown() - began, [])


def line(
    name: str, nodes: int, took: list[tuple[float, float, float]], memory: float, states: list[str]
) -> str:
    ours, theirs, wall = (median(column) for column in np.array(took).T.tolist())
    cells = (
        name,
        f"{nodes} × {GPUS}",
        f"{ours:.2f}",
        f"{theirs:.2f}",
        f"{wall:.2f}",
        f"{memory:.0f}",
    )
    return f"| {' | '.join(cells)} | {', '.join(states) or '-'} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=5000)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    print("| source | GPUs | s of CPU, ours | s of CPU, Prometheus | s | MB more | states |")
    print("| --- " * 7 + "|", flush=True)
    for bench in (from_prometheus, from_exporters):
        print(asyncio.run(bench(given.nodes, given.rounds)), flush=True)


if __name__ == "__main__":
    main()
