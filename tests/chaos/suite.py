"""One run: consecutive faults on a cluster under load, an audit after each, and the result."""

from __future__ import annotations

import json
import shutil
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from queuectl.demo import manifests as m
from queuectl.demo.manifests import Pods
from queuectl.localcluster import LocalCluster
from queuectl.localcluster.errors import LocalClusterError
from tests.chaos.audit import Auditor
from tests.chaos.faults import FAULTS
from tests.chaos.load import NAMESPACE, Load, configuration
from tests.chaos.stage import Stage, stage

RECOVERED_SECONDS = 120.0
"""Seconds after which a probe counts as failed; no figure depends on it."""
ENDED_SECONDS = 300.0


@dataclass(frozen=True)
class Injected:
    """One fault. ``recovered``: seconds from its end until a gang that is submitted then has ended; None = it has not."""

    name: str
    at: float
    lasted: float
    recovered: float | None
    problems: tuple[str, ...]


@dataclass
class Result:
    """The result of one run.

    Attributes:
        violations: of the invariants, each as a sentence.
        losses: gangs that were submitted and not deleted, and did not end.
    """

    seed: int
    seconds: float = 0.0
    injected: list[Injected] = field(default_factory=list)
    violations: list[str] = field(default_factory=list)
    losses: list[str] = field(default_factory=list)
    gangs: int = 0
    starts: int = 0
    evictions: int = 0
    steps: int = 0
    gaps: int = 0
    struck: int = 0

    @property
    def ok(self) -> bool:
        return not (self.violations or self.losses) and all(
            one.recovered is not None for one in self.injected
        )

    def table(self) -> str:
        """Markdown."""
        rows: dict[str, list[Injected]] = defaultdict(list)
        for one in self.injected:
            rows[one.name].append(one)
        lines = [
            "| fault | injected | recovered | seconds to recover: median | longest |",
            "| --- | --- | --- | --- | --- |",
        ]
        for name, those in sorted(rows.items()):
            spans = [one.recovered for one in those if one.recovered is not None]
            median = f"{statistics.median(spans):.1f}" if spans else "-"
            longest = f"{max(spans):.1f}" if spans else "-"
            lines.append(f"| {name} | {len(those)} | {len(spans)} | {median} | {longest} |")
        recovered = sum(one.recovered is not None for one in self.injected)
        lines.append(f"| all | {len(self.injected)} | {recovered} | | |")
        return "\n".join([*lines, "", self.summary()])

    def summary(self) -> str:
        return (
            f"seed {self.seed}, {self.seconds:.0f} s: {self.gangs} gangs, {self.starts} starts, "
            f"{self.evictions} evictions, {self.steps} changes of pods audited with {self.gaps} gaps, "
            f"{self.struck} requests whose answer was lost or late; "
            f"invariant violations {len(self.violations)}, losses {len(self.losses)}"
        )


@dataclass
class Run:
    """A run with one seed."""

    stage: Stage
    load: Load
    auditor: Auditor
    result: Result
    say: Callable[[str], None]
    _probes: int = 0

    def inject(self, name: str, draw: Random) -> None:
        """Inject one fault, and measure the recovery."""
        at = time.time()
        FAULTS[name](self.stage, self.load, draw)
        ended = time.time()
        recovered = self.probe()
        problems = tuple(self.auditor.look())
        self.result.injected.append(Injected(name, at, round(ended - at, 1), recovered, problems))
        self.result.violations += problems
        if recovered is None:
            self.result.violations.append(f"no recovery from: {name}")
        took = f"{recovered:.1f} s" if recovered is not None else "never"
        self.say(f"{name}: lasted {ended - at:.1f} s, recovered after {took}")
        for problem in problems:
            self.say(f"  VIOLATION {problem}")

    def probe(self) -> float | None:
        """Seconds until a gang that is submitted now has ended."""
        began = time.monotonic()
        name = f"probe{self._probes}"
        self._probes += 1
        document = m.job(
            name, NAMESPACE, "probe", Pods(1, gpus=8), seconds=0.1, priority_class="high",
            retries=20,
        )  # fmt: skip

        def submitted() -> bool:
            try:
                self.load.submit(document)
            except LocalClusterError as error:
                return "409" in str(error)
            return True

        def done() -> bool:
            return any(job.name == name and job.outcome is not None for job in self.load.jobs())

        if not self.stage.until(submitted, RECOVERED_SECONDS):
            return None
        return time.monotonic() - began if self.stage.until(done, RECOVERED_SECONDS) else None

    def end(self) -> None:
        """Wait for the end of all gangs, and run the final audit."""
        self.load.wind_up()

        def ended() -> bool:
            self.load.wind_up()
            return not self.load.live()

        self.stage.until(ended, ENDED_SECONDS)
        there = {job.name: job for job in self.load.jobs()}
        for name in self.load.submitted.keys() - self.load.deleted:
            job = there.get(name)
            if job is None or job.outcome is None:
                self.result.losses.append(f"{name}: {'gone' if job is None else 'never ended'}")
        self.stage.wait(2.0)  # the ledger records the last ends
        self.result.violations += self.auditor.last()
        self.result.gangs = len(self.load.submitted)
        self.result.steps = self.auditor.steps
        self.result.gaps = self.auditor.gaps
        self.result.starts = self.auditor.starts
        self.result.evictions = sum(self.auditor.evictions.values())
        wires = self.stage.wires
        self.result.struck = len(wires.database.struck) + len(wires.api.struck)

    def save(self, folder: Path) -> None:
        """Write files for an analysis: faults, violations, logs of the controllers, every revision."""
        folder.mkdir(parents=True, exist_ok=True)
        injected = [vars(one) for one in self.result.injected]
        (folder / "faults.jsonl").write_text("\n".join(json.dumps(one) for one in injected))
        found = [*self.result.violations, *self.result.losses]
        (folder / "violations.txt").write_text("\n".join(found))
        for controller in self.stage.controllers:
            shutil.copy(controller.log, folder / f"{controller.home.name}.log")
        with (folder / "events.txt").open("w") as file:
            for event in self.stage.recorder.recording().events:
                print(event, file=file)


def chaos(
    cluster: LocalCluster,
    seed: int,
    *,
    seconds: float = 0.0,
    names: Iterable[str] = (),
    gangs: int = 20,
    pace: float = 1.0,
    save: Path | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> Result:
    """Inject faults on a cluster where queuectl is installed and does not run.

    Args:
        cluster: of 16 nodes of 8 GPUs.
        seed: of all random choices.
        seconds: duration of the injection. Faults are drawn in rounds with one of each class.
        names: of the faults, in order, instead of random rounds.
        gangs: in the cluster at once.
        pace: factor for the duration of faults and gangs.
        save: a folder for the files for an analysis, if the run fails.
        say: called with a line for each fault.
    """
    began = time.monotonic()
    draw = Random(seed)
    cluster.client.apply(*m.namespaces([NAMESPACE]))
    with stage(cluster) as built:
        built.pace = pace
        built.apply(configuration())
        load = Load(built, Random(draw.random()), gangs, longest=8.0 * pace)
        run = Run(built, load, Auditor(built), Result(seed), say)
        built.meanwhile = load.tick
        try:
            for name in names or _rounds(draw, began + seconds):
                run.inject(name, draw)
            run.end()
            run.result.seconds = time.monotonic() - began
        finally:
            if save is not None and not (run.result.ok and run.result.seconds):
                run.save(save / f"seed-{seed}")
            load.clear()
    return run.result


def _rounds(draw: Random, end: float) -> Iterable[str]:
    while time.monotonic() < end:
        for name in draw.sample(sorted(FAULTS), len(FAULTS)):
            if time.monotonic() < end:
                yield name
