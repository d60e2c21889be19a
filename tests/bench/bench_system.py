"""queuectl on a whole real control plane, against the bare floor in the same run.

    python -m tests.bench.bench_system [burst] [gang] [refusal] [preempt] [large-gang]

Kueue's figures alongside ours were measured on such a machine with Kueue HEAD of 2026-08 (full manager, client QPS 300/500);
they are not re-run here. Everything runs on 2 cores: etcd without fsync, API server in-flight 2000/1000, other components
with QPS 1000/2000. KWOK simulates the kubelets.
"""

from __future__ import annotations

import re
import statistics
import sys
import time
from collections.abc import Callable

from queuectl.demo import scenario as m
from queuectl.demo.api_connection import ApiRefused
from queuectl.demo.audit import AuditFinding
from queuectl.demo.scenario import Document, PodSetManifest
from queuectl.domain.jobs import PodPhase, PodRecord
from queuectl.localcluster import NodeSpec
from queuectl.localcluster.client import get_plain
from tests.bench.history import record
from tests.bench.stage import BLOCK, RACK, Stage, cpu_of, stage

SPACE = "bench"
LEVELS = (BLOCK, RACK)
SETTINGS = {"QUEUECTL_EVENTS_PER_SECOND": "20"}


def config(quotas: dict[str, int], *, within: str = "Never") -> list[Document]:
    """ClusterQueues of so many GPUs over one topology, each behind a LocalQueue of the same name."""
    documents = [m.topology("gpus", *LEVELS), m.flavor("gpu", topology="gpus")]
    for name, gpus in quotas.items():
        documents.append(
            m.cluster_queue(name, "gpu", {"nvidia.com/gpu": gpus, "cpu": "1M"}, within=within)
        )
        documents.append(m.local_queue(SPACE, name, name))
    return [*documents, m.priority_class("low", 0), m.priority_class("high", 100)]


def job(
    name: str,
    queue: str | None,
    pods: PodSetManifest,
    seconds: float | None,
    priority: str | None = None,
) -> Document:
    return m.job(name, SPACE, queue, pods, seconds=seconds, priority_class=priority)


def summary(findings: list[AuditFinding]) -> str:
    """The audit in one line; raises when the cluster was ever in a state it must not be in."""
    for finding in findings:
        if not finding.ok:
            raise AssertionError(f"{finding.name}: {finding.problems[:3]}")
    return "; ".join(f"{f.name}: {f.numbers}" for f in findings)


# ---- 1,000 Jobs of 8 one-GPU pods


def burst(jobs: int = 1000) -> None:
    """1,000 Jobs × 8 one-GPU pods, required rack, 500 nodes, 4 queues, 10 s each."""
    nodes = NodeSpec(blocks=5, racks_per_block=10, hosts_per_rack=10)
    rows = {}
    for who in ("floor", "queuectl"):
        print(f"  {who}: {jobs} jobs of 8 pods", flush=True)
        queues = {f"team-{i}": nodes.count * 2 for i in range(4)}
        setup = config(queues) if who == "queuectl" else None
        with stage(nodes, setup, [SPACE], SETTINGS) as play:
            began = time.monotonic()
            play.submit(
                *(
                    job(
                        f"burst-{i:04}",
                        f"team-{i % 4}",
                        PodSetManifest(8, gpus=1, required=RACK),
                        10,
                    )
                    for i in range(jobs)
                )
            )
            created = time.monotonic() - began
            play.wait_for_jobs(jobs, 900)
            wall = time.monotonic() - began
            bound, running = play.times()
            rows[who] = (wall, mean(bound), mean(running))
            print(f"    created in {created:.0f} s; wall {wall:.1f} s; {len(running)} whole")
            if play.controller is not None:
                print_costs(play, jobs)
                print("    audit:", summary(play.audit()))
    floor, ours = rows["floor"], rows["queuectl"]
    record("1,000 gangs of 8 pods, one rack each, 500 nodes: all finished after", ours[0])
    print_table(
        ("", "Kueue", "floor", "queuectl", "ours / floor", "target"),
        (
            "wall, s",
            "297",
            f"{floor[0]:.0f}",
            f"{ours[0]:.0f}",
            f"{ours[0] / floor[0]:.2f}",
            "<= 1.25",
        ),
        (
            "mean to all pods bound, s",
            "105",
            f"{floor[1]:.0f}",
            f"{ours[1]:.0f}",
            f"{ours[1] / floor[1]:.2f}",
            "<= 1.1",
        ),
        (
            "mean to all running, s",
            "147",
            f"{floor[2]:.0f}",
            f"{ours[2]:.0f}",
            f"{ours[2] / floor[2]:.2f}",
            "<= 1.1",
        ),
    )


def print_costs(play: Stage, jobs: int) -> None:
    writes, cost = play.writes(), play.cost()
    admission = sum(
        n for (kind, result), n in writes.items() if result == "ok" and kind in ("Job", "Pod")
    )
    every = sum(writes.values())
    record("writes to the API server for each of these gangs", admission / jobs)
    print_table(
        ("", "Kueue", "queuectl", "target"),
        ("protocol writes per gang", "27.3", f"{admission / jobs:.2f}", "<= 9"),
        ("all writes counted per gang", "", f"{every / jobs:.2f}", ""),
        ("CPU of the controller, s", "83", f"{cost.cpu:.0f}", "< 83"),
        ("its peak memory, MiB", "283", f"{cost.memory:.0f}", "<= 400"),
        ("embedded Postgres: CPU, s", "-", f"{cost.postgres_cpu:.0f}", ""),
        ("embedded Postgres: private memory, MiB", "-", f"{cost.postgres_memory:.0f}", ""),
    )
    print(f"    writes: {dict(sorted(writes.items()))}")


# ---- one 512-pod gang


def gang() -> None:
    """One gang of 512 pods of 8 GPUs on 512 nodes: submission to all running."""
    nodes = NodeSpec(blocks=4, racks_per_block=8, hosts_per_rack=16)
    rows = {}
    for who in ("floor", "queuectl"):
        print(f"  {who}: 512 pods", flush=True)
        setup = config({"all": 4096}) if who == "queuectl" else None
        with stage(nodes, setup, [SPACE], SETTINGS) as play:
            play.submit(job("gang", "all", PodSetManifest(512, gpus=8), None))
            play.wait_for(512, PodPhase.RUNNING, "gang-", 120)
            bound, running = play.times()
            rows[who] = (bound["gang"], running["gang"])
            if play.rest is not None:
                print("    audit:", summary(play.audit()))
                print("    stages:", stages(play))
    record("one gang of 512 pods: from submission until all run", rows["queuectl"][1])
    print_table(
        ("", "Kueue", "floor", "queuectl", "target"),
        ("to all bound, s", "-", *(f"{rows[w][0]:.1f}" for w in ("floor", "queuectl")), ""),
        ("to all running, s", "6.1", *(f"{rows[w][1]:.1f}" for w in ("floor", "queuectl")), "<= 5"),
    )


# ---- one gang of 4,096 pods


def large_gang() -> None:
    """One gang of 4,096 pods of 1 GPU on 512 of 1,024 nodes: submission to all running, with the costs.

    The third system is the floor with a node selector of the block in the template: a start without gates could be no faster.
    """
    nodes = NodeSpec(blocks=2, racks_per_block=32, hosts_per_rack=16)
    rows = []
    for who in ("floor", "floor, in one block", "queuectl"):
        print(f"  {who}: 4,096 pods", flush=True)
        setup = config({"all": 8192}) if who == "queuectl" else None
        with stage(nodes, setup, [SPACE], SETTINGS) as play:
            document = job("gang", "all", PodSetManifest(4096, gpus=1, required=BLOCK), None)
            if who == "floor, in one block":
                document["spec"]["template"]["spec"]["nodeSelector"] = {BLOCK: "b0"}
            before = cpu_seconds(play)
            play.submit(document)
            play.wait_for(4096, PodPhase.RUNNING, "gang-", 900)
            bound, running = play.times()
            after = cpu_seconds(play)
            cells = [
                bound["gang"],
                running["gang"],
                *(b - a for a, b in zip(before, after, strict=True)),
            ]
            if play.controller is not None:
                cells.append(play.cost().cpu)
                print("    stages:", stages(play))
                print(f"    writes: {dict(sorted(play.writes().items()))}")
            rows.append((who, *(f"{cell:.1f}" for cell in cells), *("-" * (7 - len(cells)))))
            print(f"    {rows[-1]}", flush=True)
    components = ("API server", "etcd", "scheduler", "controllers", "queuectl")
    print_table(
        ("s", "to all bound", "to all running", *(f"CPU of {c}" for c in components)), *rows
    )


def cpu_seconds(play: Stage) -> list[float]:
    """CPU time of the components up to now."""
    names = ("kube-apiserver", "etcd", "kube-scheduler", "kube-controller-manager")
    pids = play.cluster.pids()
    return [cpu_of(pids[name]) for name in names]


def stages(play: Stage) -> str:
    """Mean of each stage of a cycle, ms."""
    assert play.controller is not None
    text = get_plain(f"{play.controller.metrics}/metrics").text
    name = "queuectl_cycle_stage_duration_seconds"
    sums = dict(re.findall(rf'{name}_sum\{{stage="(\w+)"\}} ([\d.e+-]+)', text))
    counts = dict(re.findall(rf'{name}_count\{{stage="(\w+)"\}} ([\d.e+-]+)', text))
    return ", ".join(
        f"{stage} {1000 * float(sums[stage]) / max(1.0, float(counts[stage])):.1f} ms × {float(counts[stage]):.0f}"
        for stage in sums
    )


# ---- a full cluster's "no"


def refusal() -> None:
    """An 80-GPU gang that cannot start: by quota, and by topology with 400 GPUs free but none in one rack."""
    nodes = NodeSpec(blocks=5, racks_per_block=10, hosts_per_rack=10)
    setup = config({"busy": 4000, "small": 40})
    rows = []
    with stage(nodes, setup, [SPACE], SETTINGS) as play:
        assert play.rest is not None
        # 9 of 10 nodes of every rack are full: 400 GPUs free, 8 in each rack.
        fill = [
            job(f"fill-{i:02}", "busy", PodSetManifest(9, gpus=8, required=RACK), None)
            for i in range(50)
        ]
        play.submit(*fill)
        play.wait_for(450, PodPhase.RUNNING, "fill-", 180)
        for name, queue in (("quota", "small"), ("topology", "busy")):
            took = []
            for i in range(10):
                shape = PodSetManifest(10, gpus=8, required=RACK)
                began = time.perf_counter()
                play.submit(job(f"{name}-{i}", queue, shape, None))
                explained = reason_of(play, f"{name}-{i}")
                took.append(time.perf_counter() - began)
            rows.append((name, explained, took))
            record(
                "a full cluster refuses a gang of 80 GPUs, with a reason", statistics.median(took)
            )
        print("    audit:", summary(play.audit()))
    print_table(
        ("no by", "Kueue, s", "median, s", "max, s", "target", "reason"),
        *(
            (
                name,
                "0.05 (a count)",
                f"{statistics.median(took):.3f}",
                f"{max(took):.3f}",
                "<= 0.1, proved",
                text,
            )
            for name, text, took in rows
        ),
    )


def reason_of(play: Stage, name: str) -> str:
    """Wait for a reason other than being queued; from the REST API, as a user would."""
    assert play.rest is not None
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        try:
            found = play.rest.workload(SPACE, name)["reason"]
        except ApiRefused:  # the ledger does not know it yet
            continue
        if found["code"] != "Queued":
            return f"{found['code']} ({found['details'].get('proof')}): {found['message']}"
        time.sleep(0.002)
    raise TimeoutError(f"{name} has no reason after 30 s")


# ---- preemption of many small gangs


def preempt() -> None:
    """500 nodes full of small low-priority gangs; a 64-pod × 8-GPU gang of high priority in one block."""
    nodes = NodeSpec(blocks=5, racks_per_block=10, hosts_per_rack=10)
    setup = config({"all": 4000}, within="LowerPriority")
    with stage(nodes, setup, [SPACE], SETTINGS) as play:
        sizes = [1, 1, 1, 2] * 100
        small = [
            job(f"small-{i:03}", "all", PodSetManifest(n, gpus=8), None, "low")
            for i, n in enumerate(sizes)
        ]
        play.submit(*small)
        play.wait_for(sum(sizes), PodPhase.RUNNING, "small-", 240)
        time.sleep(5)
        asked = time.time()
        play.submit(job("big", "all", PodSetManifest(64, gpus=8, required=BLOCK), None, "high"))
        play.wait_for(64, PodPhase.RUNNING, "big-", 120)
        _, running = play.times()
        assert play.rest is not None
        victims = [w for w in play.rest.workloads().values() if w["evictions"]]
        gone = victim_pods(play, asked)
        lost = sum(8 * (at - since) for at, since in gone)
        print("    audit:", summary(play.audit()))
        print("    stages:", stages(play))
    record("64 pods of high priority on a full cluster: until all run", running["big"])
    print_table(
        ("", "Kueue", "queuectl", "target"),
        ("to all running, s", "8.1", f"{running['big']:.1f}", "<= 8"),
        ("gangs evicted", "57", str(len(victims)), "the proved minimum"),
        ("pods evicted", "64", str(len(gone)), ""),
        ("GPU-seconds lost", "3,706 (other ages)", f"{lost:.0f}", ""),
    )


def victim_pods(play: Stage, asked: float) -> list[tuple[float, float]]:
    """(when it began to leave, when it began to run) of each evicted pod."""
    found: dict[str, tuple[float, float]] = {}
    started: dict[str, float] = {}
    for event in play.recorder.recording().events:
        pod = event.fact
        if isinstance(pod, PodRecord) and pod.name.startswith("small-"):
            if pod.phase is PodPhase.RUNNING:
                started.setdefault(pod.uid, event.at)
            if pod.terminating and event.at > asked and pod.uid in started:
                found.setdefault(pod.uid, (event.at, started[pod.uid]))
    return list(found.values())


def mean(values: dict[str, float]) -> float:
    return statistics.fmean(values.values())


def print_table(*rows: tuple[str, ...]) -> None:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    print()
    for number, row in enumerate(rows):
        cells = " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        print(f"    | {cells} |")
        if number == 0:
            print("    | " + " | ".join("-" * width for width in widths) + " |")
    print(flush=True)


LOADS: dict[str, Callable[[], None]] = {
    "gang": gang,
    "refusal": refusal,
    "preempt": preempt,
    "burst": burst,
    "large-gang": large_gang,
}


def main(names: list[str]) -> None:
    for name in names or list(LOADS):
        print(f"{name}: {LOADS[name].__doc__}", flush=True)
        LOADS[name]()


if __name__ == "__main__":
    main(sys.argv[1:])
