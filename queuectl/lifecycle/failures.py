"""Why the controller must stop a starting or running gang: it differs from its plan, or it does not become ready."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final

from queuectl.domain.events import Evict, RequiredWriteRefused
from queuectl.domain.jobs import JobRecord, PodPhase, PodRecord
from queuectl.domain.ledger import Entry, Intent, Purpose, State
from queuectl.domain.quantity import Resources
from queuectl.domain.reasons import PLANNED_AGAIN, Code, Reason
from queuectl.domain.request_rules import amounts, excess
from queuectl.domain.rules import PodsReadyRules
from queuectl.domain.words import counted
from queuectl.domain.workload import PodSet, PodSetPlacement
from queuectl.lifecycle.outstanding_writes import as_planned
from queuectl.lifecycle.refusals import WriteRefusal
from queuectl.state.readiness import needed
from queuectl.state.usage import pinned_to

_MOST_TOO_LARGE: Final = 3
"""Failed starts in a row, the last for pods that are too large: the gang is deactivated then."""


def unlike_planned(entry: Entry, job: JobRecord, pods: Sequence[PodRecord]) -> Evict | None:
    """The job was edited while it ran, or its pods request more than its template. ``pods``: of this attempt."""
    if job.suspended and entry.intent is Intent.START and not as_planned(entry, job):
        text = "its request changed before it started; it is planned again"
        return Evict(Reason(Code.CHANGED_OUTSIDE, text))
    if job.error is not None and not job.podsets:
        return Evict(Reason(Code.CHANGED_OUTSIDE, f"its object changed while it ran: {job.error}"))
    placed = entry.placement.podsets if entry.placement else ()
    podsets, left = {p.name: p for p in job.podsets}, needed(job, pods)
    if any(
        p.podset not in podsets or _other_size(p, podsets[p.podset], job, left[p.podset])
        for p in placed
    ):
        return Evict(Reason(Code.CHANGED_OUTSIDE, "its number of pods changed while it ran"))
    slots = {p.podset for p in placed}
    again = next((p for p in pods if p.waits and p.podset in podsets.keys() - slots), None)
    if again is not None:
        text = f"pod {again.name} was created again, after its podset {again.podset} had succeeded before this start"
        return Evict(Reason(Code.CHANGED_OUTSIDE, text))
    planned = entry.planned.requests if entry.planned is not None else {}
    fitting: dict[str, Resources] = {}  # pods that are alike share this object
    for pod in pods:
        if fitting.get(pod.podset) is pod.requests:
            continue
        podset = podsets.get(pod.podset)
        if podset is None or pod.terminal:
            continue
        most = planned.get(pod.podset, podset.shape.requests)
        if not pod.requests.fits(most + pod.overhead):
            return _too_large(entry, podset, pod, most)
        fitting[pod.podset] = pod.requests
    return None


def _too_large(entry: Entry, podset: PodSet, pod: PodRecord, most: Resources) -> Evict:
    """A webhook has changed a new pod, or a user has resized one that runs. The gang does not start again endlessly."""
    planned = f"more than the planned {amounts(most)}"
    text = f"pod {pod.name} requests {amounts(pod.requests)}, {planned}"
    if pod.needs is not None and podset.needs is not None:
        why = excess(pod.needs, podset.needs)
        text += f": {why}" if why else ""
    elif not pod.gated:
        text += ": it was resized after its release to its node"
    details = {"podSet": podset.name, PLANNED_AGAIN: pod.gated and not entry.failures}
    found = Reason(Code.PODS_LARGER_THAN_ASKED, text, details)
    if entry.failures + 1 < _MOST_TOO_LARGE:
        return Evict(found)
    limit = f"after {entry.failures + 1} failed starts in a row"
    return Evict(found, parked=Reason(Code.REQUEUING_LIMIT, f"{limit}: {text}"))


def _other_size(placed: PodSetPlacement, podset: PodSet, job: JobRecord, least: int) -> bool:
    """Whether the job's controller keeps another number of pods than planned.

    Fewer slots than the full size of the podset are correct in three cases: a gang that was adopted with some completions, a gang
    with pods that have succeeded since, and a gang that starts with fewer pods. In the last case the resumed job has that number.

    ``least``: pods of the podset that have not succeeded.
    """
    if job.suspended:
        least = min(least, placed.pods_of(podset))
    # The user of a resizable job takes pods from its gang, and gives it pods that are not part of it.
    if job.resizable:
        return placed.count > podset.count
    return placed.count > 0 and not least <= placed.count <= podset.count


def start_refused(
    entry: Entry, refusal: WriteRefusal | None, now: float, timeout: float
) -> Evict | None:
    """The API server denies the start, or has denied the release of the gang's pods for ``timeout`` seconds."""
    if refusal is None or entry.state is not State.STARTING:
        return None
    if refusal.purpose is Purpose.START:
        return Evict(Reason(Code.START_REFUSED, refusal.why))
    if refusal.purpose is Purpose.PIN and now - refusal.since >= timeout:
        return Evict(Reason(Code.START_REFUSED, refusal.why))
    return None


def stop_is_refused(refusal: WriteRefusal, *, resumed: bool) -> RequiredWriteRefused:
    """The message for an evicted gang that cannot be stopped, with the possible fix."""
    if resumed:
        effect = "its pods keep their nodes until the API server accepts it"
    else:
        effect = "its placement is kept until the object changes, because the response to its start was lost"
    advice = "remove the cause (a webhook, a policy, an object that is too large) or delete the job"
    does = "refuses" if refusal.answered else "does not answer the request"
    text = f"the API server {does} to suspend the job ({refusal.why}); {effect}; {advice}"
    return RequiredWriteRefused(refusal.purpose, text)


def pin_is_refused(refusal: WriteRefusal) -> RequiredWriteRefused:
    """The message for a running gang with a pod that cannot be released to its node, with the possible fix."""
    text = (
        f"the API server refuses to place one of its pods ({refusal.why}); the pod stays gated until the API server "
        "accepts it; remove the cause (a webhook, a policy) or delete the job"
    )
    return RequiredWriteRefused(refusal.purpose, text)


def refused_pods(
    pods: Iterable[PodRecord], since: Mapping[str, float], now: float
) -> dict[str, float]:
    """Released pods that kube-scheduler cannot schedule, by uid, with the time of the first observation (unix seconds).

    Args:
        pods: of one gang.
        since: the result of the last observation.
        now: unix seconds.
    """
    return {
        pod.uid: since.get(pod.uid, now)
        for pod in pods
        if pod.unschedulable and not pod.gated and pod.phase is PodPhase.PENDING
    }


def late_pods(
    pods: Iterable[PodRecord], attempt: int, since: Mapping[str, float], now: float
) -> dict[str, float]:
    """Gated pods of attempts before ``attempt`` that do not terminate, by uid, with the time of the first observation.

    ``pods``: all pods that the job controls; ``since``: the result of the last observation; ``now`` and results: unix seconds.
    """
    return {pod.uid: since.get(pod.uid, now) for pod in pods if pod.attempt < attempt and pod.waits}


def held_up(
    entry: Entry, job: JobRecord, late: Mapping[str, float], now: float, timeout: float
) -> Evict | None:
    """Pods of an earlier attempt have existed instead of the pods of this attempt for ``timeout`` seconds.

    The job's controller has read an earlier start, which was withdrawn in the meantime, and created its pods. It does not replace
    them, because they are valid pods of the job. After a stop, it deletes them.

    Args:
        entry: of the workload.
        job: its object.
        late: the result of :func:`late_pods`.
        now: unix seconds.
        timeout: seconds.
    """
    stuck = sum(now - since >= timeout for since in late.values())
    if entry.state is not State.STARTING or job.suspended or job.of_pods or not stuck:
        return None
    text = f"the job controller created {counted(stuck, 'pod')} of an earlier attempt; the job is stopped and starts again"
    return Evict(Reason(Code.CHANGED_OUTSIDE, text))


def pin_refused(
    pods: Sequence[PodRecord],
    refused: Mapping[str, float],
    now: float,
    timeout: float,
    names: Mapping[str, str],
    closed: Collection[str],
) -> Evict | None:
    """kube-scheduler has refused a pinned pod for ``timeout`` seconds.

    The next start avoids its node, unless queuectl knows why the node takes no pod: planning knows when it takes pods again.

    Args:
        pods: of the current attempt.
        refused: the result of :func:`refused_pods`.
        now: unix seconds.
        timeout: seconds.
        names: hostname label -> node name.
        closed: the nodes that take no new pods of it, as far as queuectl knows.
    """
    stuck = [pod for pod in pods if pod.uid in refused and now - refused[pod.uid] >= timeout]
    if not stuck:
        return None
    pins = sorted({pin for pod in stuck if (pin := pinned_to(pod, names)) is not None})
    nodes = f"planned node{'s' * (len(pins) != 1)} {', '.join(pins[:3])}"
    text = f"kube-scheduler refuses {counted(len(stuck), 'pod')} on the {nodes}"
    avoided = tuple(pin for pin in pins if pin not in closed)
    return Evict(Reason(Code.PIN_UNSCHEDULABLE, text), excluded=avoided)


def start_failed(entry: Entry, now: float, rules: PodsReadyRules, why: str) -> Evict | None:
    """Not all pods were ready in time: after the start, or after the loss of a pod. ``why``: those that are not, if they are known."""
    due = ready_by(entry, rules)
    if due is None or now < due:
        return None
    if entry.state is State.STARTING:
        text = f"not all pods were ready within {rules.timeout:.0f} s"
        cause = "WaitForStart"
    else:
        text = f"pods were lost and not all were ready again within {rules.recovery_timeout:.0f} s"
        cause = "WaitForRecovery"
    text += f"; {why}" if why else ""
    return Evict(Reason(Code.PODS_READY_TIMEOUT, text, {"cause": cause}))


def ready_by(entry: Entry, rules: PodsReadyRules) -> float | None:
    """The time (unix seconds) by which all pods must be ready; None without a limit."""
    if entry.state is State.STARTING and entry.started_at is not None:
        return entry.started_at + rules.timeout
    if entry.unready_since is not None and rules.recovery_timeout is not None:
        return entry.unready_since + rules.recovery_timeout
    return None
