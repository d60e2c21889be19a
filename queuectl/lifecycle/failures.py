"""Why a gang that starts or runs must be taken down whole: it is not what was planned, or it does not come up."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from queuectl.domain.events import Evict, WriteRefused
from queuectl.domain.ledger import Entry, Intent, Purpose, State
from queuectl.domain.reasons import Code, Reason
from queuectl.domain.records import JobRecord, PodPhase, PodRecord
from queuectl.domain.rules import PodsReady
from queuectl.domain.words import counted
from queuectl.domain.workload import PodSet, PodSetPlacement
from queuectl.lifecycle.owed_writes import as_planned
from queuectl.lifecycle.refusals import Refusal
from queuectl.state.readiness import needed


def unlike_planned(entry: Entry, job: JobRecord, pods: Sequence[PodRecord]) -> Evict | None:
    """The job was edited while it ran, or its pods ask for more than it says. ``pods``: of this attempt."""
    if job.suspended and entry.intent is Intent.START and not as_planned(entry, job):
        text = "what it asks was changed before it started; it is planned again"
        return Evict(Reason(Code.CHANGED_OUTSIDE, text))
    placed = entry.placement.podsets if entry.placement else ()
    asked = {p.name: p for p in job.podsets}
    if any(p.podset not in asked or _other_size(p, asked[p.podset], job, pods) for p in placed):
        return Evict(
            Reason(Code.CHANGED_OUTSIDE, "the number of its pods was changed while it ran")
        )
    for pod in pods:
        podset = asked.get(pod.podset)
        if podset is None or pod.terminal:
            continue
        planned = entry.planned.requests if entry.planned is not None else {}
        most = planned.get(pod.podset, podset.shape.requests)
        if not pod.requests.fits(most):
            text = f"pod {pod.name} asks {pod.requests!r}; {most!r} were planned for it"
            return Evict(Reason(Code.PODS_LARGER_THAN_ASKED, text))
    return None


def _other_size(
    placed: PodSetPlacement, podset: PodSet, job: JobRecord, pods: Sequence[PodRecord]
) -> bool:
    """Whether the job's controller keeps another number of pods than was planned.

    Fewer slots than the podset's full size are right for one adopted when some of its completions were done, for one
    whose pods are done since, and for one that starts with fewer pods; of that the job itself knows once it is resumed.
    """
    least = needed(job, podset, pods)
    if job.suspended:
        least = min(least, placed.pods_of(podset))
    return placed.count > 0 and not least <= placed.count <= podset.count


def start_refused(
    entry: Entry, refusal: Refusal | None, now: float, patience: float
) -> Evict | None:
    """The API server refuses the start itself, or for ``patience`` seconds to let pods of a start go to their nodes."""
    if refusal is None or entry.state is not State.STARTING:
        return None
    if refusal.purpose is Purpose.START:
        return Evict(Reason(Code.START_REFUSED, refusal.why))
    if refusal.purpose is Purpose.PIN and now - refusal.since >= patience:
        return Evict(Reason(Code.START_REFUSED, refusal.why))
    return None


def stop_is_refused(refusal: Refusal, *, resumed: bool) -> WriteRefused:
    """What follows while an evicted gang cannot be stopped, and what a person can do."""
    if resumed:
        follows = "its pods keep what they hold until it accepts that"
    else:
        follows = "what was planned for it is kept, because an answer to its start was lost, until the object changes"
    advice = "remove what refuses it (a webhook, a policy, an object that is too large), or delete the job"
    text = f"the API server refuses to suspend it ({refusal.why}); {follows}: {advice}"
    return WriteRefused(refusal.purpose, text)


def pin_is_refused(refusal: Refusal) -> WriteRefused:
    """What follows while a pod of a gang that runs is not let go to its node, and what a person can do."""
    text = (
        f"the API server refuses to place a pod of it ({refusal.why}); the pod stays gated until it accepts that: "
        "remove what refuses it (a webhook, a policy), or delete the job"
    )
    return WriteRefused(refusal.purpose, text)


def refused_pods(
    pods: Iterable[PodRecord], known: Mapping[str, float], now: float
) -> dict[str, float]:
    """Pods that kube-scheduler refuses since they were let go, by uid, and when that was first seen (unix seconds).

    Args:
        pods: of one gang.
        known: what the last look found.
        now: unix seconds.
    """
    return {
        pod.uid: known.get(pod.uid, now)
        for pod in pods
        if pod.unschedulable and not pod.gated and pod.phase is PodPhase.PENDING
    }


def late_pods(
    pods: Iterable[PodRecord], attempt: int, known: Mapping[str, float], now: float
) -> dict[str, float]:
    """Gated pods of attempts before ``attempt`` that are not ending, by uid, and when each was first seen (unix seconds).

    ``pods``: all the job controls; ``known``: what the last look found; ``now``: unix seconds.
    """
    return {
        pod.uid: known.get(pod.uid, now)
        for pod in pods
        if pod.attempt < attempt and pod.gated and not pod.terminating and not pod.terminal
    }


def held_up(
    entry: Entry, job: JobRecord, late: Mapping[str, float], now: float, patience: float
) -> Evict | None:
    """Pods of an earlier attempt have been in the place of those of this one for ``patience`` seconds.

    The job's controller read an earlier start, which was taken back meanwhile, and made its pods. It does not replace
    them, because to it they are pods of the job; a stop makes it delete them.

    Args:
        entry: of the workload.
        job: its object.
        late: as :func:`late_pods` says.
        now: unix seconds.
        patience: seconds.
    """
    stuck = sum(now - since >= patience for since in late.values())
    if entry.state is not State.STARTING or job.suspended or not stuck:
        return None
    text = f"its controller made {counted(stuck, 'pod')} of an earlier attempt; it is stopped and starts again"
    return Evict(Reason(Code.CHANGED_OUTSIDE, text))


def pin_refused(
    pods: Sequence[PodRecord],
    refused: Mapping[str, float],
    now: float,
    patience: float,
    names: Mapping[str, str],
) -> Evict | None:
    """kube-scheduler has refused a pinned pod for ``patience`` seconds.

    Args:
        pods: of the present attempt.
        refused: as :func:`refused_pods` says.
        now: unix seconds.
        patience: seconds.
        names: hostname label -> node name.
    """
    stuck = [pod for pod in pods if pod.uid in refused and now - refused[pod.uid] >= patience]
    if not stuck:
        return None
    pins = sorted({names.get(pod.pin, pod.pin) for pod in stuck if pod.pin})
    text = f"kube-scheduler refuses {counted(len(stuck), 'pinned pod')} on {', '.join(pins[:3])}"
    return Evict(Reason(Code.PIN_UNSCHEDULABLE, text), excluded=tuple(pins))


def start_failed(entry: Entry, now: float, rules: PodsReady) -> Evict | None:
    """Not every pod was ready in time: at its start, or again after some pod was lost."""
    due = ready_by(entry, rules)
    if due is None or now < due:
        return None
    if entry.state is State.STARTING:
        text = f"not all pods were ready within {rules.timeout:.0f} s"
        cause = "WaitForStart"
    else:
        text = f"pods were lost and not all were ready again within {rules.recovery_timeout:.0f} s"
        cause = "WaitForRecovery"
    return Evict(Reason(Code.PODS_READY_TIMEOUT, text, {"cause": cause}))


def ready_by(entry: Entry, rules: PodsReady) -> float | None:
    """Unix seconds by which every pod must be ready; None when nothing is waited for, or for ever."""
    if entry.state is State.STARTING and entry.started_at is not None:
        return entry.started_at + rules.timeout
    if entry.unready_since is not None and rules.recovery_timeout is not None:
        return entry.unready_since + rules.recovery_timeout
    return None
