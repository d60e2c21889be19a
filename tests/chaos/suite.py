"""One run: faults and hostile objects on a cluster under load, an audit after each group of faults, and the result."""

from __future__ import annotations

import json
import shutil
import statistics
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path
from random import Random
from typing import Final

from queuectl.demo import scenario as m
from queuectl.demo.scenario import PodSetManifest
from queuectl.localcluster import LocalCluster
from queuectl.localcluster.client import Client
from queuectl.localcluster.errors import LocalClusterError
from tests.chaos import hostile
from tests.chaos.audit import Auditor
from tests.chaos.faults import FAULTS, inject, together
from tests.chaos.hostile import CLASSES, Attack
from tests.chaos.load import NAMESPACE, Load
from tests.chaos.stage import Stage, stage
from tests.support.contained import contained, ended

RECOVERED_SECONDS = 120.0
"""Seconds after which a probe counts as failed; no figure depends on it."""
ENDED_SECONDS = 300.0
CHANGED = 20
"""Hostile objects that one tick changes."""


FAILURES: Final = Path("chaos-failures")
"""Runs that fail leave their logs in this folder, one folder for each seed."""


@dataclass(frozen=True)
class Injected:
    """Faults at the same time. ``recovered``: seconds from their end until a gang that is submitted then has ended; None = it has not."""

    names: tuple[str, ...]
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
        contained: units that a controller has set aside.
        hostile: objects that were created by class, over all rounds.
        refused: messages of admission by class.
    """

    seed: int
    seconds: float = 0.0
    injected: list[Injected] = field(default_factory=list)
    violations: list[str] = field(default_factory=list)
    losses: list[str] = field(default_factory=list)
    contained: list[str] = field(default_factory=list)
    hostile: Counter[str] = field(default_factory=Counter)
    refused: dict[str, set[str]] = field(default_factory=dict)
    gangs: int = 0
    starts: int = 0
    evictions: int = 0
    steps: int = 0
    gaps: int = 0
    struck: int = 0

    @property
    def ok(self) -> bool:
        return not (self.violations or self.losses or self.contained) and all(
            one.recovered is not None for one in self.injected
        )

    def table(self) -> str:
        """Markdown."""
        rows: dict[str, list[Injected]] = defaultdict(list)
        for one in self.injected:
            for name in one.names:
                rows[name].append(one)
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
        lines.append(f"| groups of faults | {len(self.injected)} | {recovered} | | |")
        return "\n".join([*lines, "", *self._objects(), "", self.summary()])

    def _objects(self) -> Iterator[str]:
        yield "| hostile objects | created | refused at admission |"
        yield "| --- | --- | --- |"
        for name, count in sorted(self.hostile.items()):
            refused = "; ".join(sorted(self.refused.get(name, ())))
            yield f"| {name} | {count} | {refused or '-'} |"

    def summary(self) -> str:
        return (
            f"seed {self.seed}, {self.seconds:.0f} s: {self.gangs} gangs, {self.starts} starts, "
            f"{self.evictions} evictions, {self.steps} changes of pods audited with {self.gaps} gaps, "
            f"{self.struck} requests whose answer was lost or late; "
            f"invariant violations {len(self.violations)}, losses {len(self.losses)}, units set aside {len(self.contained)}"
        )


@dataclass
class Run:
    """A run with one seed."""

    stage: Stage
    load: Load
    auditor: Auditor
    result: Result
    say: Callable[[str], None]
    attacks: Sequence[Attack] = ()
    _probes: int = 0
    _ticks: int = 0

    def inject(self, names: tuple[str, ...], draw: Random) -> None:
        """Inject faults at the same time, and measure the recovery."""
        at = time.time()
        inject(names, self.stage, self.load, draw)
        over = time.time()
        recovered = self.probe()
        problems = (*self.auditor.look(), *self.restarted())
        self.result.injected.append(Injected(names, at, round(over - at, 1), recovered, problems))
        self.result.violations += problems
        what = ", ".join(names)
        if recovered is None:
            self.result.violations.append(f"no recovery from: {what}")
        took = f"{recovered:.1f} s" if recovered is not None else "never"
        self.say(f"{what}: lasted {over - at:.1f} s, recovered after {took}")
        for problem in problems:
            self.say(f"  VIOLATION {problem}")

    def restarted(self) -> list[str]:
        """Restart the controllers that have ended by themselves. Returns a line for each."""
        found = []
        for controller in self.stage.controllers:
            if lines := ended(controller):
                found += lines
                controller.restart()
        return found

    def attack(self, client: Client, number: int, *, short: bool) -> None:
        """Create the objects of each hostile class."""
        self.attacks = [Attack(client, kind, f"{name}-{number}") for name, kind in CLASSES.items()]
        for name, attack in zip(CLASSES, self.attacks, strict=True):
            attack.create(attack.kind.short if short else attack.kind.size)
            self.result.hostile[name] += len(attack.created)
            self.result.refused.setdefault(name, set()).update(attack.refused)
        self.say(f"round {number}: {sum(len(one.created) for one in self.attacks)} hostile objects")

    def withdraw(self) -> None:
        """Delete the hostile objects."""
        for attack in self.attacks:
            attack.delete()
        self.attacks = ()

    def tick(self) -> None:
        """Keep the load, and change some objects of one hostile class."""
        self.load.tick()
        if self.attacks:
            self._ticks += 1
            with suppress(LocalClusterError):  # the API server does not answer
                self.attacks[self._ticks % len(self.attacks)].change(most=CHANGED)

    def probe(self) -> float | None:
        """Seconds until a gang that is submitted now has ended."""
        began = time.monotonic()
        name = f"probe{self._probes}"
        self._probes += 1
        document = m.job(
            name, NAMESPACE, "probe", PodSetManifest(1, gpus=8), seconds=0.1, priority_class="high",
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
        """Delete the hostile objects, wait for the end of all gangs, and run the final audit."""
        self.withdraw()
        self.load.wind_up()

        def ended() -> bool:
            self.load.wind_up()
            left = [p for p in self.stage.recorder.now()[1] if p.namespace == hostile.NAMESPACE]
            return not self.load.live() and not left

        self.stage.until(ended, ENDED_SECONDS)
        there = {job.name for job in self.load.jobs()}
        for name in self.load.submitted.keys() - self.load.deleted - self.load.ended():
            self.result.losses.append(f"{name}: {'never ended' if name in there else 'gone'}")
        self.stage.wait(2.0)  # the ledger records the last ends
        self.result.violations += [*self.auditor.last(), *self.restarted()]
        for controller in self.stage.controllers:
            self.result.contained += contained(controller)
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
        found = [*self.result.violations, *self.result.losses, *self.result.contained]
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
    groups: Sequence[tuple[str, ...]] = (),
    gangs: int = 20,
    pace: float = 1.0,
    save: Path | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> Result:
    """Inject faults on a cluster where queuectl is installed and does not run, while hostile objects of each class exist.

    Args:
        cluster: of 16 nodes of 8 GPUs.
        seed: of all random choices.
        seconds: duration of the injection. Faults are drawn in rounds with one of each class, one to three at a time. Each round
            has new hostile objects.
        groups: names of the faults of each time, in order, instead of random rounds. The hostile objects are few.
        gangs: in the cluster at once.
        pace: factor for the duration of faults and gangs.
        save: a folder for the files for an analysis, if the run fails.
        say: called with a line for each fault.
    """
    began = time.monotonic()
    draw = Random(seed)
    cluster.client.apply(*m.namespaces([NAMESPACE]))
    with devices_and_kinds(cluster), stage(cluster) as built, hostile.tenant(cluster) as tenant:
        built.pace = pace
        load = Load(built, Random(draw.random()), gangs, longest=8.0 * pace)
        built.apply(load.quotas.configuration())
        run = Run(built, load, Auditor(built), Result(seed), say)
        built.meanwhile = run.tick
        try:
            for number, faults in enumerate([groups] if groups else _rounds(draw, began + seconds)):
                run.attack(tenant, number, short=bool(groups))
                for names in faults:
                    run.inject(names, draw)
                run.withdraw()
            run.end()
            run.result.seconds = time.monotonic() - began
        finally:
            if save is not None and not (run.result.ok and run.result.seconds):
                run.save(save / f"seed-{seed}")
            run.withdraw()
            load.clear()
    return run.result


@contextmanager
def devices_and_kinds(cluster: LocalCluster) -> Iterator[None]:
    """Devices for the selectors of claims, and kinds without an operator. They are deleted at the end."""
    made = [*hostile.definitions(), *hostile.published(min(cluster.nodes.names()))]
    cluster.client.apply(*made)
    try:
        yield
    finally:
        for document in made:
            cluster.client.delete(cluster.client.path_of(document), missing_ok=True)


def _rounds(draw: Random, end: float) -> Iterator[Iterable[tuple[str, ...]]]:
    """Each round has each fault once. The last one ends at the end."""
    while time.monotonic() < end:
        names = draw.sample(sorted(FAULTS), len(FAULTS))
        yield takewhile(lambda _: time.monotonic() < end, together(names, draw))
