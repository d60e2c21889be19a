"""The GPU utilization of gangs: samples of a source, joined with pods, and evaluated by the rule of the queue.

A gang that is not known to be idle is not idle. A gang is idle only if three conditions hold. Each GPU of each of its pods has
enough samples over the whole window of its queue. The window starts after its warm-up and after the start of each of its pods (pods
of a restarted gang have the same names as before). No GPU is used above the threshold.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import exp
from typing import Final

from queuectl.domain.utilization import (
    GangUse,
    PodKey,
    PodUse,
    SourceFault,
    UseState,
    UtilizationSample,
)
from queuectl.domain.words import counted, percent
from queuectl.state.gpu_holders import HeldGang, HeldPod
from queuectl.state.ledger import Ledger

COVERED: Final = 0.8
"""The part of the expected samples below which the utilization is unknown."""

_STUCK_BUSY: Final = 0.5  # engine activity of a gang without progress
_STUCK_WORK: Final = 0.01  # upper limit of its tensor and memory activity
_STALE_SCRAPES: Final = 2.5  # two intervals, and the duration of a scrape
_SETTLE_SCRAPES: Final = 4.0  # a younger pod has no data yet, which is not a fault of the set-up


class SampleByPod:
    """One set of samples by pod. A pod finds its own samples, not those of an earlier pod with its name."""

    def __init__(
        self, sample: UtilizationSample, scrape_seconds: float, recent: SampleByPod | None = None
    ) -> None:
        """``recent``: of a longer window, the recent samples. They show whether samples are more frequent than configured."""
        self.sample = sample
        self._recent = recent
        self._scrape = scrape_seconds
        self._stale = _STALE_SCRAPES * scrape_seconds
        self._rows: dict[PodKey, list[PodUse]] = {}
        for row in sample.pods:
            self._rows.setdefault((row.namespace, row.pod), []).append(row)

    def row(self, pod: HeldPod) -> PodUse | None:
        """The samples of its name, and of its uid if the source reports it."""
        rows = self._rows.get(pod.key, ())
        mine = [row for row in rows if row.uid == pod.uid] or [r for r in rows if r.uid is None]
        return mine[0] if len(mine) == 1 else None

    def fault(self, pod: HeldPod) -> str | None:
        """Why the utilization of the pod is unknown; None = each GPU has enough samples."""
        row = self.row(pod)
        if row is None:
            return "no GPU of it is seen"
        if row.shared or (pod.shared and not row.own):
            return "its GPU is shared or partitioned, and only the whole is measured"
        if row.gpus != pod.gpus:
            return f"{row.gpus} of its {pod.gpus} GPUs are seen"
        if row.uid is None and not self._begins_after(pod):
            return "it is newer than the measured window"
        if row.age > self._stale:
            return f"its newest sample is {row.age:.0f} s old"
        coverage = self._coverage(row, pod)
        if coverage < COVERED:
            return f"{percent(coverage)} of its samples are there"
        return None

    def _coverage(self, row: PodUse, pod: HeldPod) -> float:
        """The part of the expected samples that are there. A gap must not count as filled because samples are more frequent than configured."""
        lately = self._recent.row(pod) if self._recent is not None else None
        if self._recent is None or lately is None:
            return row.coverage
        allowed = self._scrape / self._recent.sample.window  # one sample can be missing
        return row.coverage / max(1.0, lately.coverage - allowed)

    def _begins_after(self, pod: HeldPod) -> bool:
        """Whether the window is in its life. For one more scrape, the exporter can report the earlier pod with its name."""
        if pod.started_at is None:
            return False
        return self.sample.at - self.sample.reach >= pod.started_at + self._scrape


class UseTracker:
    """Evaluates each gang with each set of samples, and keeps its previous result.

    Attributes:
        failed: the gangs whose samples could not be judged, with the error; the reader clears it.
    """

    def __init__(self, scrape_seconds: float) -> None:
        """``scrape_seconds``: between the samples of a GPU."""
        self._scrape = scrape_seconds
        self.failed: list[tuple[HeldGang, Exception]] = []
        self._before: dict[str, GangUse] = {}

    def windows(self, gangs: Sequence[HeldGang], recent: UtilizationSample) -> list[float]:
        """The longer windows (seconds) that the evaluation of these gangs needs, shortest first."""
        samples = SampleByPod(recent, self._scrape)
        lengths: set[float] = set()
        for gang in gangs:
            rows = [samples.row(pod) for pod in gang.pods]
            measured = [row for row in rows if row is not None]
            if len(measured) < len(rows) or not _warm(gang, recent.at, gang.rule.window):
                continue
            if max(row.busy for row in measured) <= gang.rule.active_above:
                lengths.add(gang.rule.window)
                if _memory(measured) > gang.rule.memory_above:
                    lengths.add(gang.rule.memory_window)
            elif _spins(measured):
                lengths.add(gang.rule.window)
        return sorted(lengths)

    def judge(
        self,
        gangs: Sequence[HeldGang],
        recent: UtilizationSample,
        longer: Mapping[float, UtilizationSample],
    ) -> dict[str, GangUse]:
        """The utilization of each gang, by uid: unknown where its samples cannot be judged. ``longer``: samples of the longer windows."""
        now = SampleByPod(recent, self._scrape)
        samples = {
            window: SampleByPod(sample, self._scrape, now) for window, sample in longer.items()
        }
        judged = {}
        for gang in gangs:
            before = self._last(gang)
            try:
                use = _judge(gang, now, samples, before)
                judged[gang.uid] = _weighed(use, gang, before)
            except Exception as error:  # noqa: BLE001 - contained
                self.failed.append((gang, error))
                why = "its samples cannot be judged: an internal error"
                judged[gang.uid] = _use(gang, UseState.UNKNOWN, recent.at, before, why)
        self._before = judged
        return judged

    def nothing(self, gangs: Sequence[HeldGang], at: float, why: str) -> dict[str, GangUse]:
        """The result without a response of the source: the utilization of each gang is unknown."""
        judged = {}
        for gang in gangs:
            judged[gang.uid] = _use(gang, UseState.UNKNOWN, at, self._last(gang), why)
        self._before = judged
        return judged

    def _last(self, gang: HeldGang) -> GangUse | None:
        before = self._before.get(gang.uid)
        return before if before is not None and before.attempt == gang.attempt else None


def _judge(
    gang: HeldGang, recent: SampleByPod, longer: Mapping[float, SampleByPod], before: GangUse | None
) -> GangUse:
    at, rule = recent.sample.at, gang.rule
    if gang.ready_at is None:
        return _use(gang, UseState.WARMUP, at, before, "not all of its pods are ready")
    if not _warm(gang, at, 0.0):
        left = gang.ready_at + rule.warmup - at
        return _use(gang, UseState.WARMUP, at, before, f"warms up for another {left:.0f} s")
    faults = {pod: recent.fault(pod) for pod in gang.pods}
    blind = [f"{pod.name}: {fault}" for pod, fault in faults.items() if fault is not None]
    seen = sum(pod.gpus for pod, fault in faults.items() if fault is None)
    if blind:
        more = f" (and {counted(len(blind) - 1, 'more pod')})" if len(blind) > 1 else ""
        covered = seen / gang.gpus
        return _use(gang, UseState.UNKNOWN, at, before, blind[0] + more, covered=covered)
    rows = [row for pod in gang.pods if (row := recent.row(pod)) is not None]
    mean = sum(row.mean * row.gpus for row in rows) / sum(row.gpus for row in rows)
    state, text = _state(gang, rows, mean, longer, before)
    known = None if state is UseState.UNKNOWN else mean
    return _use(gang, state, at, before, text, utilization=known, covered=1.0)


def _state(
    gang: HeldGang,
    rows: Sequence[PodUse],
    mean: float,
    longer: Mapping[float, SampleByPod],
    before: GangUse | None,
) -> tuple[UseState, str]:
    """The state of a gang with recent samples of all its GPUs."""
    rule = gang.rule
    busiest = max(row.busy for row in rows)
    was_idle = before is not None and before.state is UseState.IDLE
    limit = rule.active_above if was_idle else rule.idle_below
    if busiest <= limit:
        return _quiet(gang, rows, limit, longer)
    window = longer.get(rule.window)
    if window is not None and _spins(rows) and not _fault(gang, window):
        over = [row for pod in gang.pods if (row := window.row(pod)) is not None]
        if _spins(over):
            text = f"engines busy, nothing computed for {rule.window:.0f} s"
            return UseState.STUCK, text
    if mean < rule.low_below:
        return UseState.LOW, f"its GPUs are used {percent(mean)} on average"
    return UseState.ACTIVE, f"its GPUs are used {percent(mean)} on average"


def _quiet(
    gang: HeldGang, rows: Sequence[PodUse], limit: float, longer: Mapping[float, SampleByPod]
) -> tuple[UseState, str]:
    """The state of a gang without recent activity: idle, if that is known for the whole window."""
    rule = gang.rule
    loaded = _memory(rows) > rule.memory_above
    seconds = rule.memory_window if loaded else rule.window
    window = longer.get(seconds)
    if window is None or not _warm(gang, window.sample.at, window.sample.reach):
        return UseState.LOW, f"does nothing lately; idle once that lasts {seconds:.0f} s"
    fault = _fault(gang, window)
    if fault is not None:
        return UseState.UNKNOWN, f"does nothing lately; over {seconds:.0f} s: {fault}"
    over = [row for pod in gang.pods if (row := window.row(pod)) is not None]
    if max(row.busy for row in over) > limit:
        return UseState.LOW, f"does nothing lately; idle once that lasts {seconds:.0f} s"
    held = ", though it holds GPU memory" if loaded else ""
    # A threshold can be a part of a percent, or 0.
    below = f"stayed below {100 * limit:g}%" if limit else "did nothing"
    return UseState.IDLE, f"its busiest GPU {below} for {seconds:.0f} s{held}"


def _fault(gang: HeldGang, samples: SampleByPod) -> str | None:
    found = ((pod, samples.fault(pod)) for pod in gang.pods)
    return next((f"{pod.name}: {fault}" for pod, fault in found if fault is not None), None)


def _warm(gang: HeldGang, at: float, window: float) -> bool:
    """Whether a window that ends now starts after its warm-up."""
    return gang.ready_at is not None and at - window >= gang.ready_at + gang.rule.warmup


def _memory(rows: Sequence[PodUse]) -> float:
    """The memory use of the fullest GPU; a GPU without a value counts as full."""
    return max(1.0 if row.memory_held is None else row.memory_held for row in rows)


def _spins(rows: Sequence[PodUse]) -> bool:
    """Whether an engine is busy and all tensor pipes and memory interfaces are idle, with all of it known."""
    for row in rows:
        for work in (row.tensor, row.memory_busy):
            if work is None or work >= _STUCK_WORK:
                return False
    return max(row.busy for row in rows) >= _STUCK_BUSY


def _use(
    gang: HeldGang,
    state: UseState,
    at: float,
    before: GangUse | None,
    text: str,
    *,
    utilization: float | None = None,
    covered: float = 0.0,
) -> GangUse:
    same = before is not None and before.state is state
    since = before.since if before is not None and same else at
    return GangUse(gang.uid, gang.attempt, state, since, at, utilization, covered, text)


def _weighed(use: GangUse, gang: HeldGang, before: GangUse | None) -> GangUse:
    """The result with its weight. Samples replace the full use that counts while the utilization is unknown."""
    if use.utilization is None:
        return use
    if use.state is UseState.IDLE:
        return replace(use, weight=use.utilization)
    if before is None or before.weight is None:
        return replace(use, weight=1.0)
    kept = exp(-(use.at - before.at) / gang.rule.window)
    return replace(use, weight=before.weight * kept + use.utilization * (1.0 - kept))


def source_faults(
    gangs: Sequence[HeldGang], sample: UtilizationSample, scrape_seconds: float
) -> dict[SourceFault, int]:
    """The faults of the set-up, by the number of affected pods. Pods that have only started are left out."""
    settled = sample.at - max(sample.window, _SETTLE_SCRAPES * scrape_seconds)
    pods = [
        pod
        for gang in gangs
        for pod in gang.pods
        if pod.started_at is not None and pod.started_at <= settled
    ]
    if not pods:
        return {}
    if not sample.gpus:
        return {SourceFault.UNTRUSTED if sample.untrusted else SourceFault.NO_MATCH: len(pods)}
    samples = SampleByPod(sample, scrape_seconds)
    rows = [(pod, samples.row(pod)) for pod in pods]
    measured = [(pod, row) for pod, row in rows if row is not None]
    if not measured:
        return {SourceFault.WRONG_LABELS: len(pods)}
    counts = {
        # Profiling metrics describe whole GPUs: they never measure the slice of one pod.
        SourceFault.DCP_MISSING: sum(not (row.profiled or row.own) for _, row in measured),
        SourceFault.STALE: sum(row.age > _STALE_SCRAPES * scrape_seconds for _, row in measured),
        SourceFault.PARTIAL: len(rows)
        - len(measured)
        + sum(row.gpus != pod.gpus or row.coverage < COVERED for pod, row in measured),
    }
    return {fault: count for fault, count in counts.items() if count}


def present_uses(uses: Mapping[str, GangUse], ledger: Ledger) -> dict[str, GangUse]:
    """The utilization of gangs that hold GPUs now, without that of earlier attempts."""
    return {
        uid: use
        for uid, use in uses.items()
        if (entry := ledger.get(uid)) is not None and entry.attempt == use.attempt
    }
