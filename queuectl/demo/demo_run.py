"""Runs the whole demo: builds the stage, plays the programme, judges it from outside, and clears away or leaves it up."""

from __future__ import annotations

import secrets
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import Any, Final

from rich.console import Console

from queuectl.cluster.apply import deploy_folder
from queuectl.demo import audit, controller, explore, scenario
from queuectl.demo.audit import Finding
from queuectl.demo.controller import Controller
from queuectl.demo.manifests import namespaces
from queuectl.demo.progress_table import ProgressTable, TableState, moment, verdicts
from queuectl.demo.recorder import Recorder
from queuectl.demo.rest import ApiConnection
from queuectl.demo.scenario import Act, Fate, Gang
from queuectl.demo.steps import Steps
from queuectl.demo.verdict import measured, reclaimed, scraped, verdict
from queuectl.domain.errors import QueuectlError
from queuectl.domain.ledger import State
from queuectl.domain.reasons import Code
from queuectl.domain.utilization import UseState
from queuectl.localcluster import (
    ClusterSpec,
    LocalCluster,
    build,
    exporter,
    layout,
    take_down,
)
from queuectl.localcluster.client import wait_until
from queuectl.localcluster.layout import LOOPBACK, free_ports
from queuectl.localcluster.prometheus import Prometheus, exporters_job
from queuectl.localcluster.versions import ALL_UNITS

NAME: Final = "demo"
_LOOK_SECONDS: Final = 0.4
# Of the gang that shall give way, measured, before the emergency: two warnings, the grace and a look after it lie in between.
_IDLE_SECONDS: Final = 5.0
_SHOW_SECONDS: Final = 120.0
_NAMESPACE_SECONDS: Final = 30.0


class DemoIsUp(QueuectlError):
    """One that was left up stands in the way."""


def run(
    console: Console,
    *,
    keep: bool,
    fsync: bool = True,
    report: Callable[[str], None] | None = None,
) -> bool:
    """Run the demo.

    Args:
        console: to show it on.
        keep: leave everything up afterwards, and say what to try.
        fsync: etcd waits for the disk, as in production.
        report: shows reports of the queuectl with this URL at the end.

    Returns:
        Whether every check held.

    Raises:
        DemoIsUp: one was left up; only when ``keep``.
        LocalClusterError: the control plane does not come up.
        QueuectlError: queuectl does not, or its API refuses.
        KeyboardInterrupt: at Ctrl-C, SIGTERM or a hang-up, after everything was taken down.
    """
    name = NAME if keep else f"{NAME}-{secrets.token_hex(3)}"
    if keep and (layout.find(NAME) is not None or controller.home_of(NAME).exists()):
        raise DemoIsUp("a demo is up already; `queuectl demo --down` takes it down")
    with _interruptible(), ExitStack() as stack:
        try:
            steps = stack.enter_context(Steps(console))
            stage = _build(stack, steps, name, fsync=fsync)
            held = _judge(console, steps, _play(console, stage))
            if report is not None:
                report(stage.controller.api)
            if keep:
                stage.leave(stack)
                explore.tell(console, stage.cluster, stage.prometheus, stage.controller)
            else:
                steps.step("Taking it all down")
        finally:
            _hold_off_interrupts()
    return held


def down(console: Console) -> bool:
    """Take down what `--keep` left.

    Returns:
        Whether there was something.
    """
    with _interruptible():
        ended = controller.take_down(NAME)
        there = take_down(NAME) or ended
    console.print("The demo is down." if there else "No demo is up.")
    return there


@dataclass(frozen=True, slots=True)
class Stage:
    """What the programme is played on."""

    cluster: LocalCluster
    prometheus: Prometheus
    controller: Controller

    def leave(self, stack: ExitStack) -> None:
        """Let it outlive this process."""
        self.controller.detach()
        self.cluster.detach()
        stack.pop_all()


def _build(stack: ExitStack, steps: Steps, name: str, *, fsync: bool) -> Stage:
    build.ensure(steps, units=ALL_UNITS)
    spec = ClusterSpec(nodes=(scenario.NODES,), fsync=fsync)
    cluster = LocalCluster.start(spec, name=name, progress=steps)
    stack.callback(cluster.stop)
    steps.step("Applying deploy/: identity, rights, admission policies")
    controller.install(cluster)
    (port,) = free_ports(1)
    own_metrics = f"{LOOPBACK}:{port}"
    steps.step(f"Starting GPU exporters that play for {scenario.NODES.count} nodes, and Prometheus")
    prometheus = _measure(cluster, own_metrics)
    steps.step("Starting queuectl serve under its own ServiceAccount, and its Postgres")
    addresses = {
        "QUEUECTL_METRICS_LISTEN": own_metrics,
        "QUEUECTL_PROMETHEUS_URL": prometheus.url,
    }
    served = Controller.start(cluster, scenario.SETTINGS | addresses)
    stack.callback(served.stop)
    served.wait_ready(waiting=steps.tick)
    steps.step("Creating two teams' queues: " + _shares())
    _create_queues(cluster, served)
    steps.done(f"Ready after {steps.elapsed:.1f} s: {cluster.server} and {served.api}\n")
    return Stage(cluster, prometheus, served)


def _measure(cluster: LocalCluster, own_metrics: str) -> Prometheus:
    """A Prometheus as in production: it scrapes the GPU exporters and queuectl, by the rules of deploy/."""
    exporters = exporters_job(exporter.play_beside(cluster), honor_labels=False)
    queuectl = {"job_name": "queuectl", "static_configs": [{"targets": [own_metrics]}]}
    return Prometheus.start(
        [exporters, queuectl],
        scrape_seconds=scenario.SCRAPE_SECONDS,
        rules=sorted((deploy_folder() / "prometheus").glob("*.yaml")),
        keeper=cluster.supervisor,
    )


def _shares() -> str:
    return ", ".join(f"{team} {quota} GPUs" for team, quota in scenario.QUOTAS.items())


def _create_queues(cluster: LocalCluster, served: Controller) -> None:
    cluster.client.apply(*namespaces(scenario.QUOTAS))
    for team in scenario.QUOTAS:
        account = f"/api/v1/namespaces/{team}/serviceaccounts/default"
        what = f"the service account of {team}"
        wait_until(partial(cluster.client.exists, account), what, _NAMESPACE_SECONDS)
    with ApiConnection(served.api) as rest:
        rest.apply(map(scenario.hurried, scenario.configuration()))


def _play(console: Console, stage: Stage) -> list[Finding]:
    gangs = scenario.programme()
    console.print(scenario.WHAT_TO_WATCH, highlight=False, soft_wrap=not console.is_terminal)
    with (
        Recorder(stage.cluster.kubeconfig) as recorder,
        ApiConnection(stage.controller.api) as rest,
    ):
        show = DemoRun(stage.cluster, rest, recorder, gangs)
        with ProgressTable(console) as board:
            late = show.play(board)
        console.print()
        recorder.settle()
        explained = {
            gang.ref: rest.explain(gang.namespace, gang.name)
            for gang in gangs
            if gang.fate is Fate.NEVER_FITS
        }
        preempted = {gang.ref: _preempted(rest, gang) for gang in gangs}
    recording = recorder.recording()
    gaps = (f"{recording.gaps} watches expired",) if recording.gaps else ()
    return [
        Finding("the audit saw everything", f"{len(recording.events)} changes", gaps),
        *audit.checks(recording, limits=scenario.LIMITS),
        *verdict(gangs, recording, explained),
        measured(gangs, show.uses),
        scraped(stage.prometheus.query, scenario.NODES.count),
        reclaimed(gangs, preempted),
        *late,
    ]


@dataclass(slots=True)
class DemoRun:
    """The programme being played: submits each act when its time has come, and looks until all is over."""

    cluster: LocalCluster
    rest: ApiConnection
    recorder: Recorder
    gangs: Sequence[Gang]
    began: float = field(default_factory=time.time)
    submitted: list[Gang] = field(default_factory=list)
    uses: dict[str, set[UseState]] = field(default_factory=dict)
    """What the GPUs of each gang were ever said to do, by ``namespace/name``."""

    def play(self, board: ProgressTable) -> list[Finding]:
        """Play to the end.

        Returns:
            A finding that failed when it did not come to an end in time; nothing otherwise.
        """
        seen: TableState | None = None
        self._submit(Act.PROLOGUE)
        while True:
            workloads = self.rest.workloads()
            nodes, pods = self.recorder.now()
            seen = moment(time.time(), self.began, self.submitted, workloads, nodes, pods, seen)
            board.show(seen)
            self._note(workloads)
            self._advance(workloads)
            waiting = [gang.ref for gang in self.gangs if not _over(gang, workloads)]
            if not waiting:
                return []
            if seen.at > _SHOW_SECONDS:
                text = f"{_SHOW_SECONDS:.0f} s were not enough for {', '.join(waiting)}"
                return [Finding("the show came to its end", "", (text,))]
            time.sleep(_LOOK_SECONDS)

    def _advance(self, workloads: Mapping[str, Mapping[str, Any]]) -> None:
        first = [gang for gang in self.gangs if gang.act is Act.PROLOGUE]
        running = all(_state(gang, workloads) is State.RUNNING for gang in first)
        if len(self.submitted) == len(first) and running:
            self._submit(Act.RUSH)
        elif len(self.submitted) < len(self.gangs) and self._emergency_due(workloads):
            self._submit(Act.EMERGENCY)

    def _note(self, workloads: Mapping[str, Mapping[str, Any]]) -> None:
        for ref, workload in workloads.items():
            if workload["use"] is not None:
                self.uses.setdefault(ref, set()).add(UseState(workload["use"]["state"]))

    def _emergency_due(self, workloads: Mapping[str, Mapping[str, Any]]) -> bool:
        """Whether the gang that shall give way is known to be idle, or has been started in vain."""
        [victim] = [gang for gang in self.submitted if gang.fate is Fate.GIVES_WAY]
        use = workloads.get(victim.ref, {}).get("use")
        if use is None or use["state"] != UseState.IDLE:
            return _state(victim, workloads) is State.FINISHED
        return time.time() - datetime.fromisoformat(use["since"]).timestamp() >= _IDLE_SECONDS

    def _submit(self, act: Act) -> None:
        gangs = [gang for gang in self.gangs if gang.act is act]
        self.cluster.client.each(self._create, gangs)
        self.submitted += gangs

    def _create(self, gang: Gang) -> None:
        collection = self.cluster.client.path_of(gang.document).rsplit("/", 1)[0]
        self.cluster.client.create(collection, gang.document)


def _preempted(rest: ApiConnection, gang: Gang) -> list[str]:
    """Why it was preempted, each time."""
    lines = rest.history(gang.namespace, gang.name)
    told = (line["reason"] for line in lines)
    return [str(one["details"].get("why")) for one in told if one["code"] == Code.PREEMPTED]


def _state(gang: Gang, workloads: Mapping[str, Mapping[str, Any]]) -> State | None:
    workload = workloads.get(gang.ref)
    return State(workload["state"]) if workload is not None else None


def _over(gang: Gang, workloads: Mapping[str, Mapping[str, Any]]) -> bool:
    if gang.fate is Fate.NEVER_FITS:
        workload = workloads.get(gang.ref)
        return workload is not None and workload["reason"]["code"] == Code.SHAPE_NEVER_FITS
    return _state(gang, workloads) is State.FINISHED


def _judge(console: Console, steps: Steps, findings: Sequence[Finding]) -> bool:
    for line in verdicts(findings):
        console.print(line, soft_wrap=not console.is_terminal)
    held = all(finding.ok for finding in findings)
    word = "[green]Every check held" if held else "[bold red]A check failed"
    console.print(f"\n{word}[/], after {steps.elapsed:.0f} s in all.", highlight=False)
    return held


_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextmanager
def _interruptible() -> Iterator[None]:
    """SIGTERM and SIGHUP end it as Ctrl-C does."""
    before = {one: signal.signal(one, signal.default_int_handler) for one in _SIGNALS}
    try:
        yield
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)


def _hold_off_interrupts() -> None:
    """From here to the end of _interruptible: taking down must not be cut short by an impatient second Ctrl-C."""
    for one in _SIGNALS:
        signal.signal(one, signal.SIG_IGN)
