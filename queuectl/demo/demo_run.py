"""The demo: start a cluster with queuectl, run the gangs of the scenario, audit the result, and stop or keep the cluster.

Progress is a live line on a terminal, otherwise one line for each step.
"""

from __future__ import annotations

import secrets
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import Any, Final, Self

from rich.console import Console
from rich.status import Status

from queuectl.cluster.apply import deploy_folder
from queuectl.demo import audit, controller, explore, scenario
from queuectl.demo.api_connection import ApiConnection
from queuectl.demo.audit import AuditFinding
from queuectl.demo.controller import ControllerProcess
from queuectl.demo.progress_table import ProgressTable, TableState, moment, verdicts
from queuectl.demo.recorder import Recorder
from queuectl.demo.scenario import Expected, Gang, SubmissionPhase, namespaces
from queuectl.demo.verdict import contained, measured, reclaimed, scraped, verdict
from queuectl.domain.errors import QueuectlError
from queuectl.domain.ledger import State
from queuectl.domain.reasons import Code
from queuectl.domain.utilization import UseState
from queuectl.localcluster import ClusterSpec, LocalCluster, build, exporter, layout, take_down
from queuectl.localcluster.client import START_SECONDS, get_plain, wait_until
from queuectl.localcluster.layout import LOOPBACK, free_ports
from queuectl.localcluster.prometheus import Prometheus, exporters_job
from queuectl.localcluster.versions import PROMETHEUS, UNITS, kubectl

# ---- The run

_NAME: Final = "demo"
_MEANWHILE: Final = """\
The demo runs a real Kubernetes control plane. The build of its programs takes about {minutes} minutes on two cores, once.
Until then, in a clone of the repository:
- See why gangs wait: queuectl plan -f docs/examples/waiting.yaml
- See a preemption: queuectl plan -f docs/examples/lending.yaml. Change the file, and plan it again.
- Read docs/tutorials/first-ten-minutes.md, which uses the demo, and docs/explanation/concepts.md.
"""
"""Shown before the first build: commands and pages for the time that it takes."""
_CLUSTER_ELSEWHERE: Final = """\
The controller of the demo is stopped. Its cluster is not in {folder}. If you started the demo with another HOME or XDG_STATE_HOME, \
repeat this command with it."""
"""Shown if the demo has no cluster: it is removed already, or the folder of the clusters is another one."""
_POLL_SECONDS: Final = 0.4
# Idle time of the victim before the urgent gang is submitted: enough for two warnings, the grace period and one evaluation.
_IDLE_SECONDS: Final = 5.0
_RUN_SECONDS: Final = 120.0


class DemoIsUp(QueuectlError):
    """A kept demo is still running."""


def run(
    console: Console,
    *,
    keep: bool,
    fsync: bool = True,
    report: Callable[[str], None] | None = None,
) -> bool:
    """Run the demo.

    Args:
        console: for the output.
        keep: leave the cluster running, and print commands to try.
        fsync: etcd waits for the disk, as in production.
        report: prints reports of the server at this URL, at the end.

    Returns:
        Whether every check passed.

    Raises:
        DemoIsUp: a kept demo is running; only with ``keep``.
        LocalClusterError: the control plane does not start.
        QueuectlError: queuectl does not start, or its API refuses a request.
        KeyboardInterrupt: after Ctrl-C, SIGTERM or SIGHUP, when everything is stopped and removed.
    """
    name = _NAME if keep else f"{_NAME}-{secrets.token_hex(3)}"
    if keep and (_NAME in layout.names() or controller.exists(_NAME)):
        raise DemoIsUp("a demo is already running; stop it with `queuectl demo --down`")
    with _interruptible(), ExitStack() as stack:
        try:
            steps = stack.enter_context(Steps(console))
            stage = _build(stack, steps, name, fsync=fsync)
            passed = _print_result(console, steps, _run(console, stage))
            if report is not None:
                report(stage.controller.api)
            if keep:
                stage.leave(stack)
                explore.show(console, stage.cluster, stage.prometheus, stage.controller)
            else:
                steps.step("Stopping and removing the demo")
        finally:
            _hold_off_interrupts()
    return passed


def down(console: Console) -> bool:
    """Stop and remove a kept demo.

    Returns:
        Whether there was one, with its cluster.
    """
    with _interruptible():
        controller_ended = controller.take_down(_NAME)
        cluster_ended = take_down(_NAME)
    if controller_ended and not cluster_ended:
        console.print(_CLUSTER_ELSEWHERE.format(folder=layout.clusters()), soft_wrap=True)
        return False
    console.print("The demo is stopped." if cluster_ended else "No demo is running.")
    return cluster_ended


@dataclass(frozen=True, slots=True)
class RunningDemo:
    """The running components of the demo."""

    cluster: LocalCluster
    prometheus: Prometheus
    controller: ControllerProcess

    def leave(self, stack: ExitStack) -> None:
        """Let the components continue after this process."""
        self.controller.detach()
        self.cluster.detach()
        stack.pop_all()


def _build(stack: ExitStack, steps: Steps, name: str, *, fsync: bool) -> RunningDemo:
    _ensure_programs(steps, keep=name == _NAME)
    spec = ClusterSpec(nodes=(scenario.NODES,), fsync=fsync)
    cluster = LocalCluster.start(spec, name=name, progress=steps)
    stack.callback(cluster.stop)
    steps.step("Applying deploy/: ServiceAccount, rights, admission policies")
    controller.install(cluster)
    (port,) = free_ports(1)
    own_metrics = f"{LOOPBACK}:{port}"
    steps.step(f"Starting simulated GPU exporters of {scenario.NODES.count} nodes, and Prometheus")
    prometheus = _measure(cluster, own_metrics)
    steps.step("Starting queuectl serve with its ServiceAccount, and Postgres")
    addresses = {
        "QUEUECTL_METRICS_LISTEN": own_metrics,
        "QUEUECTL_PROMETHEUS_URL": prometheus.url,
    }
    served = ControllerProcess.start(cluster, scenario.SETTINGS | addresses)
    stack.callback(served.stop)
    served.wait_ready(waiting=steps.tick)
    steps.step("Creating the queues of two teams: " + _shares())
    _create_queues(cluster, served)
    steps.finish(f"Ready after {steps.elapsed:.1f} s: {cluster.server} and {served.api}\n")
    return RunningDemo(cluster, prometheus, served)


def _ensure_programs(steps: Steps, *, keep: bool) -> None:
    """Build the programs that the demo runs, and kubectl for the commands to try on a kept demo."""
    units = [*UNITS, PROMETHEUS, *([kubectl()] if keep else [])]
    if missing := [unit for unit in units if build.existing(unit) is None]:
        minutes = sum(unit.minutes for unit in missing)
        steps.finish(_MEANWHILE.format(minutes=max(1, round(minutes))))
    build.ensure(steps, units=units)


def _measure(cluster: LocalCluster, own_metrics: str) -> Prometheus:
    """A Prometheus as in production: it scrapes the GPU exporters and queuectl, with the rules of deploy/."""
    exporters = exporters_job(exporter.start_for(cluster), honor_labels=False)
    queuectl = {"job_name": "queuectl", "static_configs": [{"targets": [own_metrics]}]}
    return Prometheus.start(
        [exporters, queuectl],
        scrape_seconds=scenario.SCRAPE_SECONDS,
        rules=sorted((deploy_folder() / "chart" / "rules").glob("*.yaml")),
        keeper=cluster.supervisor,
    )


def _shares() -> str:
    return ", ".join(f"{team} {quota} GPUs" for team, quota in scenario.QUOTAS.items())


def _create_queues(cluster: LocalCluster, served: ControllerProcess) -> None:
    cluster.client.apply(*namespaces(scenario.QUOTAS))
    for team in scenario.QUOTAS:
        account = f"/api/v1/namespaces/{team}/serviceaccounts/default"
        what = f"the ServiceAccount of {team}"
        wait_until(partial(cluster.client.exists, account), what, START_SECONDS)
    with ApiConnection(served.api) as rest:
        rest.apply(map(scenario.with_idle_reclaim, scenario.configuration()))


def _run(console: Console, stage: RunningDemo) -> list[AuditFinding]:
    gangs = scenario.gangs()
    console.print(scenario.INTRODUCTION, highlight=False, soft_wrap=not console.is_terminal)
    with (
        Recorder(stage.cluster.kubeconfig) as recorder,
        ApiConnection(stage.controller.api) as connection,
    ):
        demo = DemoRun(stage.cluster, connection, recorder, gangs)
        with ProgressTable(console) as board:
            late = demo.run(board)
        console.print()
        recorder.settle()
        explained = {
            gang.ref: connection.explain(gang.namespace, gang.name)
            for gang in gangs
            if gang.expected is Expected.NEVER_FITS
        }
        preempted = {gang.ref: _preempted(connection, gang) for gang in gangs}
    recording = recorder.recording()
    gaps = (f"{recording.gaps} watches expired",) if recording.gaps else ()
    return [
        AuditFinding("the recording is complete", f"{len(recording.events)} changes", gaps),
        *audit.checks(recording, limits=scenario.LIMITS),
        *verdict(gangs, recording, explained),
        measured(gangs, demo.uses),
        scraped(stage.prometheus.query, scenario.NODES.count),
        reclaimed(gangs, preempted),
        contained(get_plain(f"{stage.controller.metrics}/metrics").text),
        *late,
    ]


@dataclass(slots=True)
class DemoRun:
    """One run: submits the gangs of each phase, and polls until all gangs are finished."""

    cluster: LocalCluster
    api: ApiConnection
    recorder: Recorder
    gangs: Sequence[Gang]
    began: float = field(default_factory=time.time)
    submitted: list[Gang] = field(default_factory=list)
    uses: dict[str, set[UseState]] = field(default_factory=dict)
    """The states of GPU use of each gang so far, by ``namespace/name``."""

    def run(self, board: ProgressTable) -> list[AuditFinding]:
        """Run until the end.

        Returns:
            A failed finding if the gangs did not finish in time; otherwise nothing.
        """
        last: TableState | None = None
        self._submit(SubmissionPhase.FIRST)
        while True:
            workloads = self.api.workloads()
            nodes, pods = self.recorder.now()
            last = moment(time.time(), self.began, self.submitted, workloads, nodes, pods, last)
            board.show(last)
            self._note(workloads)
            self._advance(workloads)
            waiting = [gang.ref for gang in self.gangs if not _over(gang, workloads)]
            if not waiting:
                return []
            if last.at > _RUN_SECONDS:
                text = f"not finished after {_RUN_SECONDS:.0f} s: {', '.join(waiting)}"
                return [AuditFinding("the demo ended in time", "", (text,))]
            time.sleep(_POLL_SECONDS)

    def _advance(self, workloads: Mapping[str, Mapping[str, Any]]) -> None:
        first = [gang for gang in self.gangs if gang.phase is SubmissionPhase.FIRST]
        running = all(_state(gang, workloads) is State.RUNNING for gang in first)
        if len(self.submitted) == len(first) and running:
            self._submit(SubmissionPhase.BURST)
        elif len(self.submitted) < len(self.gangs) and self._urgent_due(workloads):
            self._submit(SubmissionPhase.URGENT)

    def _note(self, workloads: Mapping[str, Mapping[str, Any]]) -> None:
        for ref, workload in workloads.items():
            if workload["use"] is not None:
                self.uses.setdefault(ref, set()).add(UseState(workload["use"]["state"]))

    def _urgent_due(self, workloads: Mapping[str, Mapping[str, Any]]) -> bool:
        """Whether the expected victim is idle for long enough, or has finished already."""
        [victim] = [gang for gang in self.submitted if gang.expected is Expected.IS_PREEMPTED]
        use = workloads.get(victim.ref, {}).get("use")
        if use is None or use["state"] != UseState.IDLE:
            return _state(victim, workloads) is State.FINISHED
        return time.time() - datetime.fromisoformat(use["since"]).timestamp() >= _IDLE_SECONDS

    def _submit(self, phase: SubmissionPhase) -> None:
        gangs = [gang for gang in self.gangs if gang.phase is phase]
        self.cluster.client.each(self._create, gangs)
        self.submitted += gangs

    def _create(self, gang: Gang) -> None:
        collection = self.cluster.client.path_of(gang.document).rsplit("/", 1)[0]
        self.cluster.client.create(collection, gang.document)


def _preempted(connection: ApiConnection, gang: Gang) -> list[str]:
    """The reason of each preemption of a gang."""
    lines = connection.history(gang.namespace, gang.name)
    reasons = (line["reason"] for line in lines)
    return [str(one["details"].get("why")) for one in reasons if one["code"] == Code.PREEMPTED]


def _state(gang: Gang, workloads: Mapping[str, Mapping[str, Any]]) -> State | None:
    workload = workloads.get(gang.ref)
    return State(workload["state"]) if workload is not None else None


def _over(gang: Gang, workloads: Mapping[str, Mapping[str, Any]]) -> bool:
    if gang.expected is Expected.NEVER_FITS:
        workload = workloads.get(gang.ref)
        return workload is not None and workload["reason"]["code"] == Code.SHAPE_NEVER_FITS
    return _state(gang, workloads) is State.FINISHED


def _print_result(console: Console, steps: Steps, findings: Sequence[AuditFinding]) -> bool:
    for line in verdicts(findings):
        console.print(line, soft_wrap=not console.is_terminal)
    passed = all(finding.ok for finding in findings)
    word = "[green]All checks passed" if passed else "[bold red]A check failed"
    console.print(f"\n{word}[/] after {steps.elapsed:.0f} s.", highlight=False)
    return passed


_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextmanager
def _interruptible() -> Iterator[None]:
    """SIGTERM and SIGHUP have the effect of Ctrl-C."""
    before = {one: signal.signal(one, signal.default_int_handler) for one in _SIGNALS}
    try:
        yield
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)


def _hold_off_interrupts() -> None:
    """Ignore signals until the end of _interruptible: a second Ctrl-C must not interrupt the clean-up."""
    for one in _SIGNALS:
        signal.signal(one, signal.SIG_IGN)


# ---- Progress

_HEARTBEAT_SECONDS: Final = 30.0


class Steps:
    """A StepProgress (queuectl.localcluster.progress) that also removes its live line after an error."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._status: Status | None = None
        self._what = self._coming = ""
        self._began = self._step_began = self._printed_at = time.monotonic()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stop()

    @property
    def elapsed(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self._began

    def step(self, what: str, coming: str = "") -> None:
        """End the previous step and begin this one. ``coming`` names the next step."""
        self._close()
        self._what = what
        self._step_began = self._printed_at = time.monotonic()
        self._coming = f"  next: {coming}" if coming else ""
        if self._console.is_terminal:
            self._status = self._console.status(what)
            self._status.start()

    def tick(self, detail: str = "") -> None:
        """Show that the current step continues; without a live line, every 30 s."""
        now = time.monotonic()
        passed = now - self._step_began
        if self._status is None and now - self._printed_at >= _HEARTBEAT_SECONDS:
            self._printed_at = now
            self._console.print(f"  {self._what}: {passed:.0f} s  {detail}", highlight=False)
        elif self._status is not None:
            self._status.update(f"{self._what}  [dim]{passed:.0f} s  {detail}{self._coming}")

    def finish(self, what: str) -> None:
        """End the current step, and print a summary."""
        self._close()
        self._console.print(what, highlight=False, soft_wrap=True)

    def _close(self) -> None:
        self._stop()
        if self._what:
            passed = time.monotonic() - self._step_began
            self._console.print(f"[green]✓[/] {self._what}  [dim]{passed:.1f} s", highlight=False)
            self._what = ""

    def _stop(self) -> None:
        if self._status is not None:
            self._status.stop()
            self._status = None
