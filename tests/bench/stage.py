"""A control plane, queuectl on it or not, and a recorder: the stage for each load of bench_system.

The floor is the same control plane without queuectl: the same Jobs, but no policy suspends them and no controller reads their
labels; kube-scheduler places pods one by one. It is a lower bound for each queue controller, and it does not start gangs.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from queuectl.demo.api_connection import ApiConnection
from queuectl.demo.audit import AuditFinding, checks
from queuectl.demo.controller import ControllerProcess, install
from queuectl.demo.recorder import Recorder, Recording
from queuectl.demo.scenario import Document, namespaces
from queuectl.domain.jobs import JobRecord, PodPhase, PodRecord
from queuectl.localcluster import ClusterSpec, LocalCluster, NodeSpec
from queuectl.localcluster.client import get_plain
from queuectl.objects.kinds import KINDS
from tests.support.controllers import CheckedController

TICKS = os.sysconf("SC_CLK_TCK")
BLOCK = "topology.queuectl.dev/block"
RACK = "topology.queuectl.dev/rack"
AT_REST = 0.2
"""CPU seconds of the control plane in a second: less than this, it has come to rest."""
INSTALLING = ("kube-apiserver", "kube-controller-manager")
"""The programs that are busy after an installation."""


@dataclass(frozen=True, slots=True)
class Cost:
    """CPU seconds and peak resident MiB of queuectl and, apart, of its Postgres."""

    cpu: float = 0.0
    memory: float = 0.0
    postgres_cpu: float = 0.0
    postgres_memory: float = 0.0


@dataclass
class Stage:
    """One run. ``rest`` and ``controller`` are None on the floor."""

    cluster: LocalCluster
    recorder: Recorder
    controller: ControllerProcess | None = None
    rest: ApiConnection | None = None
    submitted: dict[str, float] = field(default_factory=dict)

    def submit(self, *jobs: Document) -> None:
        """Create jobs concurrently; remembers when each was asked for."""
        client = self.cluster.client

        def create(job: Document) -> None:
            self.submitted[job["metadata"]["name"]] = time.time()
            client.create(client.path_of(job).rsplit("/", 1)[0], job)

        client.each(create, jobs)

    def wait_for(self, count: int, phase: PodPhase, prefix: str, seconds: float) -> None:
        """Until so many pods whose names begin with ``prefix`` have reached a phase.

        Raises:
            TimeoutError: naming what was reached.
        """
        deadline = time.monotonic() + seconds
        while (found := self._reached(phase, prefix)) < count:
            if time.monotonic() > deadline:
                raise TimeoutError(f"{found} of {count} pods {phase} after {seconds:.0f} s")
            time.sleep(0.1)

    def wait_for_jobs(self, count: int, seconds: float) -> None:
        """Until so many jobs have succeeded."""
        deadline = time.monotonic() + seconds
        said = 0.0
        while (done := self._finished()) < count:
            if time.monotonic() > deadline:
                raise TimeoutError(f"{done} of {count} jobs done after {seconds:.0f} s")
            if time.monotonic() - said > 20:
                said = time.monotonic()
                print(f"    {done} of {count} jobs done", flush=True)
            time.sleep(0.2)

    def _reached(self, phase: PodPhase, prefix: str) -> int:
        _, pods = self.recorder.now()
        return sum(p.phase is phase and p.name.startswith(prefix) for p in pods)

    def _finished(self) -> int:
        facts = self.recorder.jobs()
        return sum(job.outcome is not None for job in facts)

    def times(self) -> tuple[dict[str, float], dict[str, float]]:
        """Seconds from submission until all pods of each job were bound, and running, for the first time."""
        recording = self.recorder.recording()
        names, sizes = _jobs(recording)
        bound: dict[str, dict[str, float]] = {}
        running: dict[str, dict[str, float]] = {}
        for event in recording.events:
            pod = event.fact
            if isinstance(pod, PodRecord) and pod.owner in names and pod.node:
                bound.setdefault(pod.owner, {}).setdefault(pod.uid, event.at)
                if pod.phase is not PodPhase.PENDING:
                    running.setdefault(pod.owner, {}).setdefault(pod.uid, event.at)
        return (
            self._whole(bound, names, sizes),
            self._whole(running, names, sizes),
        )

    def _whole(
        self,
        seen: Mapping[str, Mapping[str, float]],
        names: Mapping[str, str],
        sizes: Mapping[str, int],
    ) -> dict[str, float]:
        found = {}
        for uid, pods in seen.items():
            if len(pods) >= sizes[uid] and names[uid] in self.submitted:
                whole = sorted(pods.values())[sizes[uid] - 1]
                found[names[uid]] = whole - self.submitted[names[uid]]
        return found

    def audit(self) -> list[AuditFinding]:
        """The demo's checks over everything that happened; gangs only."""
        self.recorder.settle(seconds=60)
        return checks(self.recorder.recording())

    def writes(self) -> dict[tuple[str, str], float]:
        """queuectl's writes to the API server by (kind, result)."""
        assert self.controller is not None
        return writes_of(self.controller)

    def cost(self) -> Cost:
        """The resources that queuectl has used up to now."""
        assert self.controller is not None
        return cost_of(self.controller)


def writes_of(controller: ControllerProcess) -> dict[tuple[str, str], float]:
    """Writes to the API server by (kind, result)."""
    text = get_plain(f"{controller.metrics}/metrics").text
    pattern = r'queuectl_cluster_writes_total\{kind="(\w+)",result="(\w+)"\} ([\d.e+]+)'
    return {(kind, result): float(n) for kind, result, n in re.findall(pattern, text)}


def cost_of(controller: ControllerProcess) -> Cost:
    """The resources that a controller has used up to now."""
    serve = controller.pid
    family = descendants(serve)
    return Cost(
        cpu_of(serve),
        peak_of(serve),
        sum(cpu_of(pid) for pid in family),
        sum(private_of(pid) for pid in family),
    )


def _jobs(recording: Recording) -> tuple[dict[str, str], dict[str, int]]:
    jobs = [e.fact for e in recording.events if isinstance(e.fact, JobRecord)]
    return {j.uid: j.name for j in jobs}, {j.uid: j.pods for j in jobs}


def _stat(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()


def cpu_of(pid: int) -> float:
    """CPU seconds of a process and its reaped children up to now."""
    try:
        fields = _stat(pid)
    except (FileNotFoundError, ProcessLookupError):
        return 0.0
    return (int(fields[11]) + int(fields[12]) + int(fields[13]) + int(fields[14])) / TICKS


def _status(pid: int, key: str) -> float:
    try:
        text = Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return 0.0
    found = re.findall(rf"{key}:\s+(\d+) kB", text)
    return int(found[0]) / 1024 if found else 0.0  # it has ended, and its parent has not seen that


def peak_of(pid: int) -> float:
    """Peak resident MiB of a process."""
    return _status(pid, "VmHWM")


def resident_of(pid: int) -> float:
    """Resident MiB of a process now."""
    return _status(pid, "VmRSS")


def private_of(pid: int) -> float:
    """Resident MiB of a process without what it shares with its siblings, so that a sum is not counted over."""
    return _status(pid, "RssAnon")


def descendants(root: int) -> list[int]:
    """The processes below a process."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parents[int(entry.name)] = int(_stat(int(entry.name))[1])
            except (FileNotFoundError, ProcessLookupError):
                continue
    found: list[int] = []
    ring = [root]
    while ring:
        ring = [pid for pid, parent in parents.items() if parent in ring]
        found += ring
    return found


def wait_until_at_rest(
    cluster: LocalCluster,
    programs: Sequence[str] = INSTALLING,
    below: float = AT_REST,
    seconds: float = 120.0,
) -> float:
    """Wait until programs of the control plane have come to rest. A load that begins earlier pays for what was installed before it.

    Returns:
        The seconds that it took, at most ``seconds``.
    """
    began, quiet = time.monotonic(), 0
    pids = [cluster.pids()[name] for name in programs]
    while quiet < 3 and time.monotonic() - began < seconds:
        before = sum(map(cpu_of, pids))
        time.sleep(1.0)  # ``below`` is of one second
        quiet = quiet + 1 if sum(map(cpu_of, pids)) - before < below else 0
    return time.monotonic() - began


@contextmanager
def stage(
    nodes: NodeSpec,
    config: list[Document] | None,
    spaces: list[str],
    settings: Mapping[str, str] | None = None,
    **spec: Any,
) -> Iterator[Stage]:
    """A fresh control plane. ``config`` None = the floor: no queuectl and no policies. ``spec``: more of its ClusterSpec."""
    shape = ClusterSpec(nodes=(nodes,), fsync=False, operators=(), **spec)
    with LocalCluster.start(shape) as cluster:
        cluster.client.apply(*namespaces(spaces))
        if config is None:
            with Recorder(cluster.kubeconfig, {"Job": KINDS["Job"]}) as recorder:
                yield Stage(cluster, recorder)
            return
        install(cluster)
        controller = CheckedController.start(cluster, settings)
        try:
            controller.wait_ready()
            with (
                ApiConnection(controller.api) as rest,
                Recorder(cluster.kubeconfig, {"Job": KINDS["Job"]}) as recorder,
            ):
                rest.apply(config)
                yield Stage(cluster, recorder, controller, rest)
        finally:
            controller.stop()
