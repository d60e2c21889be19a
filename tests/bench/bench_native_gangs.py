"""The gang scheduling of Kubernetes 1.37 alongside queuectl and alongside plain Jobs: docs/explanation/kubernetes-gangs.md.

    python -m tests.bench.bench_native_gangs [turns N] [preemption]

Without an argument, both parts run, the first one with one turn. The feature gates of the gang scheduling are on for each side, and
each side has its own control plane: 500 KWOK nodes of 8 GPUs in 50 racks of 10, etcd without fsync, client limits of 1000/2000.
Native gangs are Jobs whose pods name a PodGroup with the topology key of a rack; their PodGroups are there before their Jobs. With a
given domain, the PodGroup has no topology key, and the pods select a rack that has room, as a queue controller could choose it. Plain
Jobs have no topology. All times are from the creation of a Job until all its pods are bound. Writes are those that the API server counts
until all pods run, without the leases of nodes.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from queuectl.demo import scenario as m
from queuectl.demo.scenario import Document, PodSetManifest
from queuectl.domain.jobs import PodPhase
from queuectl.localcluster import NodeSpec
from queuectl.localcluster.client import wait_until
from tests.bench.bench_system import SETTINGS, SPACE, config, print_table
from tests.bench.kueue.figures import writes_in
from tests.bench.stage import BLOCK, RACK, Stage, cpu_of, stage

KUBERNETES: Final = "1.37.2"
SPEC: Final[dict[str, Any]] = {
    "kubernetes": KUBERNETES,
    "feature_gates": ("GenericWorkload", "TopologyAwareWorkloadScheduling"),
    "apis": ("scheduling.k8s.io/v1beta1",),
}
NODES: Final = NodeSpec(blocks=5, racks_per_block=10, hosts_per_rack=10)
PLAIN, NATIVE, GIVEN, QUEUECTL = SIDES = (
    "plain Jobs",
    "native gangs",
    "native gangs, given domain",
    "queuectl",
)
ROOM_OF_A_RACK: Final = 64  # GPUs that are given in each rack of 80
SECONDS: Final = 300.0
SETTLED_SECONDS: Final = 3.0


@dataclass(frozen=True)
class Load:
    """Equal gangs of one-GPU pods, each in one domain of a topology level, that are submitted at once.

    Attributes:
        first: the number of the first given domain, so that no two loads share one.
    """

    gangs: int
    pods: int
    level: str
    first: int

    @property
    def title(self) -> str:
        return f"{self.gangs} × {self.pods} pods, one {self.level.rpartition('/')[2]} each"

    def name(self, number: int) -> str:
        return f"gang{self.pods}-{number}"


# In this order, all of them fit, and the pods of one load run while the next one starts.
LOADS: Final = (Load(1, 512, BLOCK, 0), Load(12, 64, RACK, 10), Load(100, 8, RACK, 22))


@dataclass(frozen=True)
class Measured:
    """One load on one side. ``bound``: seconds of each gang; ``cpu``: seconds by program; ``together``: gangs in one domain."""

    bound: tuple[float, ...]
    writes: Counter[str]
    cpu: Mapping[str, float]
    together: int


def pod_group(name: str, pods: int, level: str | None = None, **spec: Any) -> Document:
    """A gang of Kubernetes: at least so many pods are bound, in one domain, or none is."""
    spec |= {"schedulingPolicy": {"gang": {"minCount": pods}}}
    if level is not None:
        spec["schedulingConstraints"] = {"topology": [{"key": level}]}
    return {
        "apiVersion": "scheduling.k8s.io/v1beta1",
        "kind": "PodGroup",
        "metadata": {"name": name, "namespace": SPACE},
        "spec": spec,
    }


def in_group(job: Document) -> Document:
    """The Job with pods that name the PodGroup of its name."""
    group = {"podGroupName": job["metadata"]["name"]}
    job["spec"]["template"]["spec"]["schedulingGroup"] = group
    return job


# ---- Time, writes and CPU time


def jobs_of(load: Load, side: str, domains: Sequence[str]) -> list[Document]:
    shape = PodSetManifest(load.pods, gpus=1, required=load.level)
    # The recorder follows Jobs with the label of a queue; without queuectl, it has no other effect.
    jobs = [m.job(load.name(number), SPACE, "all", shape) for number in range(load.gangs)]
    if side == GIVEN:
        # As many gangs as have room in a rack of 80 GPUs one after the other, then the next domain.
        for number, job in enumerate(jobs):
            domain = domains[load.first + number * load.pods // ROOM_OF_A_RACK]
            job["spec"]["template"]["spec"]["nodeSelector"] = {load.level: domain}
    return [in_group(job) for job in jobs] if side in (NATIVE, GIVEN) else jobs


def counted(play: Stage) -> tuple[Counter[str], dict[str, float]]:
    """Writes by resource, and CPU seconds by program, up to now."""
    writes = writes_in(play.cluster.client.text("/metrics"))
    del writes["leases"]
    used = {name: cpu_of(pid) for name, pid in play.cluster.pids().items()}
    if play.controller is not None:
        used[QUEUECTL] = cpu_of(play.controller.pid)
    return writes, used


def measure(play: Stage, load: Load, side: str) -> Measured:
    """Submit a load, and wait until all its pods run."""
    nodes, _ = play.recorder.now()
    jobs = jobs_of(load, side, sorted({node.labels[load.level] for node in nodes.values()}))
    before, used = counted(play)
    if side in (NATIVE, GIVEN):
        level = load.level if side == NATIVE else None
        play.submit(*(pod_group(load.name(n), load.pods, level) for n in range(load.gangs)))
    play.submit(*jobs)
    play.wait_for(load.gangs * load.pods, PodPhase.RUNNING, f"gang{load.pods}-", SECONDS)
    time.sleep(SETTLED_SECONDS)  # statuses and Events are written last
    after, at_end = counted(play)
    bound, _ = play.times()
    return Measured(
        tuple(bound[job["metadata"]["name"]] for job in jobs),
        after - before,
        {name: at_end[name] - used[name] for name in at_end},
        together(play, load),
    )


def together(play: Stage, load: Load) -> int:
    """The number of gangs whose pods are in one domain."""
    nodes, pods = play.recorder.now()
    domains: defaultdict[str, set[str]] = defaultdict(set)
    for pod in pods:
        if pod.node and pod.name.startswith(f"gang{load.pods}-"):
            domains[pod.name.rsplit("-", 2)[0]].add(nodes[pod.node].labels[load.level])
    return sum(len(those) == 1 for those in domains.values())


def remove(play: Stage) -> None:
    """Delete all Jobs and PodGroups, and wait for their end and that of the pods."""
    client = play.cluster.client
    jobs, groups = (
        f"/apis/{group}/namespaces/{SPACE}/{resource}"
        for group, resource in (("batch/v1", "jobs"), ("scheduling.k8s.io/v1beta1", "podgroups"))
    )
    for path in (jobs, groups):
        client.delete(path, propagationPolicy="Background")
    left = (jobs, groups, f"/api/v1/namespaces/{SPACE}/pods")
    wait_until(lambda: not any(client.get(path)["items"] for path in left), "an end", SECONDS)


def turn(side: str) -> dict[Load, Measured]:
    """All loads on one side."""
    setup = config({"all": NODES.count * 8}) if side == QUEUECTL else None
    with stage(NODES, setup, [SPACE], SETTINGS, **SPEC) as play:
        found = {}
        for load in LOADS:
            found[load] = measured = measure(play, load, side)
            print(
                f"  {side}: {load.title}: all bound after {max(measured.bound):.1f} s, "
                f"{measured.together} of {load.gangs} gangs together",
                flush=True,
            )
        return found


def turns(count: int) -> None:
    """All sides in turns, and a table for each load: the median of its values."""
    found: defaultdict[str, list[dict[Load, Measured]]] = defaultdict(list)
    for number in range(count):
        # In the reverse order each second time, so that a machine that slows down is unfair to none.
        for side in SIDES if number % 2 == 0 else reversed(SIDES):
            found[side].append(turn(side))
    for load in LOADS:
        print(f"\n  {load.title}")
        report({side: [one[load] for one in found[side]] for side in SIDES}, load)


def report(found: Mapping[str, list[Measured]], load: Load) -> None:
    resources = sorted({name for those in found.values() for one in those for name in one.writes})
    programs = ("kube-scheduler", "kube-controller-manager", "kube-apiserver", "etcd", QUEUECTL)

    def row(title: str, of: Any, form: str = "{:.2f}") -> tuple[str, ...]:
        return (
            title,
            *(form.format(statistics.median(of(one) for one in found[side])) for side in SIDES),
        )

    gangs = load.gangs
    print_table(
        ("", *SIDES),
        row("mean until all pods are bound, s", lambda one: statistics.fmean(one.bound)),
        row("the last gang, s", lambda one: max(one.bound)),
        row("gangs in one domain", lambda one: one.together, "{:.0f}"),
        row("writes for each gang", lambda one: one.writes.total() / gangs, "{:.1f}"),
        *(
            row(f"- {name}", lambda one, name=name: one.writes[name] / gangs, "{:.1f}")
            for name in resources
        ),
        *(row(f"CPU of {name}, s", lambda one, name=name: one.cpu.get(name, 0)) for name in programs),
    )  # fmt: skip


# ---- Preemption

ROOM: Final = NodeSpec(blocks=1, racks_per_block=2, hosts_per_rack=4)
VICTIM_PODS, PREEMPTOR_PODS = 2, 3
CASES: Final[Mapping[str, tuple[Document, str]]] = {
    "disruptionMode single, the default": ({}, "urgent"),
    "disruptionMode all": ({"disruptionMode": {"all": {}}}, "urgent"),
    "the pods of the preemptor have preemptionPolicy Never": ({}, "never"),
}


def preemption() -> None:
    """Gangs of two pods fill eight nodes; then a gang of three pods of a higher priority class comes."""
    rows = []
    with stage(ROOM, None, [SPACE], **SPEC) as play:
        play.cluster.client.apply(
            priority("urgent", "PreemptLowerPriority"), priority("never", "Never")
        )
        for title, (mode, klass) in CASES.items():
            running = preempted(play, mode, klass)
            victims = [pods for name, pods in running.items() if name != "preemptor"]
            rows.append(
                (
                    title,
                    str(running["preemptor"]),
                    *(str(victims.count(pods)) for pods in (0, 1, VICTIM_PODS)),
                )
            )
            remove(play)
    print_table(
        ("", "pods of the preemptor", "gangs evicted", "gangs with a part left", "gangs untouched"),
        *rows,
    )


def priority(name: str, policy: str) -> Document:
    return {
        "apiVersion": "scheduling.k8s.io/v1",
        "kind": "PriorityClass",
        "metadata": {"name": name},
        "value": 1000,
        "preemptionPolicy": policy,
    }


def preempted(play: Stage, mode: Document, klass: str) -> dict[str, int]:
    """The number of running pods of each gang, 15 seconds after the preemptor was created."""
    names = [f"gang-{number}" for number in range(ROOM.count // VICTIM_PODS)]
    shape = PodSetManifest(VICTIM_PODS, gpus=8)
    play.submit(*(pod_group(name, VICTIM_PODS, **mode) for name in names))
    play.submit(*(in_group(m.job(name, SPACE, "all", shape, retries=9)) for name in names))
    play.wait_for(ROOM.count, PodPhase.RUNNING, "gang-", SECONDS)
    job = in_group(m.job("preemptor", SPACE, "all", PodSetManifest(PREEMPTOR_PODS, gpus=8)))
    job["spec"]["template"]["spec"]["priorityClassName"] = klass
    play.submit(pod_group("preemptor", PREEMPTOR_PODS, priorityClassName=klass))
    play.submit(job)
    time.sleep(15.0)
    _, pods = play.recorder.now()
    running = Counter(
        pod.name.rsplit("-", 2)[0]
        for pod in pods
        if pod.phase is PodPhase.RUNNING and not pod.terminating
    )
    return {name: running[name] for name in (*names, "preemptor")}


def main(arguments: Iterable[str]) -> None:
    words = list(arguments) or ["turns", "1", "preemption"]
    if "turns" in words:
        turns(int(words[words.index("turns") + 1]))
    if "preemption" in words:
        preemption()


if __name__ == "__main__":
    main(sys.argv[1:])
