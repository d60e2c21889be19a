"""What must be true at the end, beyond the audit: the right victim, the right finishes, the reason of what never fits.

Read from the recording, that is from the API server; only the reason of the gang that never fits, and who was measured to
be idle, is queuectl's word, because that is nothing the cluster could show. By what it was measured Prometheus is asked.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from queuectl.demo.audit import Finding
from queuectl.demo.recorder import Recording
from queuectl.demo.replay import Replay, place_of
from queuectl.demo.scenario import Act, Fate, Gang
from queuectl.domain.plan import PreemptionReason
from queuectl.domain.reasons import Code
from queuectl.domain.records import JobRecord, Outcome
from queuectl.domain.utilization import UseState
from queuectl.localcluster.prometheus import EXPORTERS_JOB


@dataclass(slots=True)
class Attempt:
    """One start as the cluster showed it: when its first pod was let go, when its last place was free again."""

    opened_at: float
    opened: int
    freed_at: float = 0.0
    freed: int = 0
    nodes: set[str] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class JobHistory:
    """What became of one job: its attempts by number, and its last record."""

    job: JobRecord
    attempts: Mapping[int, Attempt]


def courses(recording: Recording) -> tuple[dict[str, JobHistory], Mapping[str, Mapping[str, str]]]:
    """The course of each job by ``namespace/name``, and the labels of each node."""
    replay = Replay(recording)
    attempts: dict[tuple[str, int], Attempt] = {}
    for step in replay.steps():
        pod = step.after or step.before
        if pod is None or pod.owner not in replay.picture.jobs:
            continue
        key = (pod.owner, pod.attempt)
        held = step.before is not None and place_of(step.before) is not None
        holds = step.after is not None and place_of(step.after) is not None
        if holds:
            attempt = attempts.setdefault(key, Attempt(step.at, step.version))
            attempt.nodes |= {pod.node} if pod.node else set()
        elif held:
            attempts[key].freed_at, attempts[key].freed = step.at, step.version
    found = {
        f"{job.namespace}/{job.name}": JobHistory(
            job, {number: one for (owner, number), one in attempts.items() if owner == uid}
        )
        for uid, job in replay.picture.jobs.items()
    }
    return found, {name: node.labels for name, node in replay.picture.nodes.items()}


def verdict(
    gangs: Sequence[Gang], recording: Recording, explained: Mapping[str, Mapping[str, Any]]
) -> list[Finding]:
    """Judge the run.

    Args:
        gangs: the programme.
        recording: of the whole run.
        explained: answer of `/explain` for each gang that can never fit, by ``namespace/name``.
    """
    found, labels = courses(recording)
    missing = [gang.ref for gang in gangs if gang.ref not in found]
    if missing:
        return [Finding("every gang was seen", f"{len(found)}", tuple(missing))]
    return [
        _placed(gangs, found, labels),
        _victim(gangs, found),
        _finished(gangs, found),
        _never(gangs, found, explained),
    ]


def measured(gangs: Sequence[Gang], uses: Mapping[str, Collection[UseState]]) -> Finding:
    """Whether the gang whose GPUs do nothing was seen idle, and nobody else.

    Args:
        gangs: the programme.
        uses: what the GPUs of each gang were ever said to do, by ``namespace/name``.
    """
    idle = {ref for ref, states in uses.items() if UseState.IDLE in states}
    expected = {gang.ref for gang in gangs if gang.fate is Fate.GIVES_WAY}
    problems = (
        *(f"{ref} was never seen idle" for ref in sorted(expected - idle)),
        *(f"{ref} was taken for idle" for ref in sorted(idle - expected)),
    )
    known = sum(not {UseState.ACTIVE, UseState.IDLE}.isdisjoint(one) for one in uses.values())
    numbers = f"{known} of {len(uses)} gangs lived long enough to be measured"
    return Finding("only whose GPUs did nothing was seen idle", numbers, problems)


def scraped(query: Callable[[str], Sequence[Mapping[str, Any]]], exporters: int) -> Finding:
    """Whether Prometheus reached the exporter of every node.

    Args:
        query: the samples of an instant query.
        exporters: how many there are.
    """
    up = f'up{{job="{EXPORTERS_JOB}"}}[1h]'
    reached, answered, failed = (
        sum(int(float(sample["value"][1])) for sample in query(expression))
        for expression in (
            f"count(max_over_time({up}) == 1)",
            f"sum(sum_over_time({up}))",
            f"sum(count_over_time({up}) - sum_over_time({up}))",
        )
    )
    numbers = f"{reached} of {exporters} GPU exporters; {answered} scrapes, {failed} failed"
    problems = () if reached == exporters else (f"{exporters - reached} were never reached",)
    return Finding("measured by a Prometheus that sees every node", numbers, problems)


def reclaimed(gangs: Sequence[Gang], reasons: Mapping[str, Collection[str]]) -> Finding:
    """Whether the gang that gave way did so for not using its GPUs, and nobody else was evicted for others.

    Args:
        gangs: the programme.
        reasons: why each gang was preempted, by ``namespace/name``.
    """
    expected = {gang.ref for gang in gangs if gang.fate is Fate.GIVES_WAY}
    problems = []
    for gang in gangs:
        wanted = {PreemptionReason.IDLE.value} if gang.ref in expected else set()
        if (told := set(reasons.get(gang.ref, ()))) != wanted:
            problems.append(f"{gang.ref} was preempted for {sorted(told) or 'nothing'}")
    numbers = f"{', '.join(sorted(expected))}: {PreemptionReason.IDLE.value}"
    return Finding("it gave way because its GPUs did nothing", numbers, tuple(problems))


def _placed(
    gangs: Sequence[Gang],
    found: Mapping[str, JobHistory],
    labels: Mapping[str, Mapping[str, str]],
) -> Finding:
    """The programme's own word on where gangs must sit, whatever their objects ask."""
    problems = []
    bound = [gang for gang in gangs if gang.within and gang.fate is not Fate.NEVER_FITS]
    for gang in bound:
        for number, attempt in found[gang.ref].attempts.items():
            domains = {labels[node].get(gang.within or "", "none") for node in attempt.nodes}
            if len(domains) != 1:
                problems.append(f"{gang.ref}: start {number} sat in {sorted(domains)}")
    names = ", ".join(gang.name for gang in bound)
    return Finding("what asked for one rack or block got one", names, tuple(problems))


def _victim(gangs: Sequence[Gang], found: Mapping[str, JobHistory]) -> Finding:
    [victim] = [gang for gang in gangs if gang.fate is Fate.GIVES_WAY]
    [urgent] = [gang for gang in gangs if gang.act is Act.EMERGENCY]
    problems = [
        f"{gang.ref} was started {len(found[gang.ref].attempts)} times"
        for gang in gangs
        if len(found[gang.ref].attempts) != _starts(gang)
    ]
    numbers = ""
    if not problems:
        first, winner = found[victim.ref].attempts[1], found[urgent.ref].attempts[1]
        numbers = (
            f"{victim.name} left {winner.opened_at - first.freed_at:.1f} s before {urgent.name} started, "
            "and ran again later"
        )
        if first.freed >= winner.opened:
            problems = [f"{urgent.ref} started before the last pod of {victim.ref} was gone"]
    return Finding("the idlest gave way, and nobody else", numbers, tuple(problems))


def _starts(gang: Gang) -> int:
    return {Fate.FINISHES: 1, Fate.GIVES_WAY: 2, Fate.NEVER_FITS: 0}[gang.fate]


def _finished(gangs: Sequence[Gang], found: Mapping[str, JobHistory]) -> Finding:
    expected = [gang for gang in gangs if gang.fate is not Fate.NEVER_FITS]
    problems = tuple(
        f"{gang.ref}: {found[gang.ref].job.outcome or 'not finished'}"
        for gang in expected
        if found[gang.ref].job.outcome is not Outcome.SUCCEEDED
    )
    numbers = f"{len(expected) - len(problems)} of {len(expected)} jobs succeeded"
    return Finding("everything that can run has finished", numbers, problems)


def _never(
    gangs: Sequence[Gang],
    found: Mapping[str, JobHistory],
    explained: Mapping[str, Mapping[str, Any]],
) -> Finding:
    problems, sentences = [], []
    for gang in (one for one in gangs if one.fate is Fate.NEVER_FITS):
        said = explained.get(gang.ref, {})
        sentences.append(f"{gang.name}: {said.get('code')}: {said.get('message')}")
        if not found[gang.ref].job.suspended or said.get("code") != Code.SHAPE_NEVER_FITS:
            problems.append(f"{gang.ref} should wait, with the reason {Code.SHAPE_NEVER_FITS}")
    return Finding("what can never fit waits and says why", "; ".join(sentences), tuple(problems))
