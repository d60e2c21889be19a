"""The check of the audit for gangs that consist of pods alone: groups of pods, and groups of LeaderWorkerSets.

- **group**: no pod of a group loses its gate before all pods of the group exist, and then all of them are bound to nodes, unless the
  group is stopped. If it can start before all its pods exist, those that exist start together

Such a pod has the labels of its attempt only from its release on. A group can get other pods in the same attempt: they replace pods
that were lost.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from itertools import chain
from typing import Final, NamedTuple

from queuectl.demo.findings import AuditFinding, opens
from queuectl.demo.replay import ObservedState, PodRevision
from queuectl.domain.jobs import JobRecord, PodPhase, PodRecord
from queuectl.objects.kinds.groups import GroupKey, key_of
from queuectl.objects.kinds.leaderworkerset import KIND as SET
from queuectl.objects.kinds.leaderworkerset import set_name
from queuectl.objects.kinds.pods import POD
from queuectl.objects.kinds.roster import member_of

_RELEASE_SECONDS: Final = 10.0
"""The release of a group takes one write for each pod. A pod that is deleted at most this many seconds before one of these writes can have
existed when the release began."""


class StartKey(NamedTuple):
    """One start of a group. ``workload``: uid of the gang; a later group can have the same name."""

    group: GroupKey
    workload: str
    attempt: int


@dataclass(slots=True)
class _Start:
    expected: int
    opened_at: float
    bound: set[str] = field(default_factory=set)
    whole_at: float | None = None
    stopped: bool = False


@dataclass(slots=True)
class Groups:
    """See the module's docstring."""

    observed: ObservedState
    starts: dict[StartKey, _Start] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    _pods: dict[GroupKey, dict[str, PodRecord]] = field(default_factory=lambda: defaultdict(dict))
    _succeeded: dict[tuple[GroupKey, str], set[str]] = field(
        default_factory=lambda: defaultdict(set)
    )
    """By group and workload: the uids of the pods that have succeeded, also of those that do not exist any more."""
    _deleted: dict[GroupKey, dict[str, float]] = field(default_factory=lambda: defaultdict(dict))
    """By group and uid of a pod: when it was deleted before its release, unix seconds."""
    _created: dict[str, float] = field(default_factory=dict)
    """By uid of a pod: when it was first seen, unix seconds."""

    def see(self, step: PodRevision) -> None:
        pod = step.after or step.before
        if pod is None or pod.member is None or key_of(pod).kind == POD:
            return
        group = key_of(pod)
        self._created.setdefault(pod.uid, step.at)
        if pod.gated and (step.after is None or pod.terminating):
            self._deleted[group].setdefault(pod.uid, step.at)
        key = StartKey(group, pod.member.workload, pod.attempt)
        if step.after is None:
            self._pods[group].pop(pod.uid, None)
        else:
            self._pods[group][pod.uid] = pod
        if opens(step) and key not in self.starts:
            self.starts[key] = self._open(step, key, pod)
        if pod.phase is PodPhase.SUCCEEDED:
            self._succeeded[group, key.workload].add(pod.uid)
        if key in self.starts and not pod.gated:
            self._follow(self.starts[key], step, pod)

    def _follow(self, start: _Start, step: PodRevision, pod: PodRecord) -> None:
        if pod.node and start.whole_at is None:
            start.bound.add(pod.uid)
            if len(start.bound) >= start.expected:
                start.whole_at = step.at
        lost = step.after is None or pod.terminating or pod.phase is PodPhase.FAILED
        start.stopped |= lost and pod.phase is not PodPhase.SUCCEEDED

    def _open(self, step: PodRevision, key: StartKey, pod: PodRecord) -> _Start:
        done = self._succeeded[key.group, key.workload]
        others = [one for one in self._pods[key.group].values() if one.uid not in done]
        there = sum(not (one.terminal or one.terminating) for one in others)
        # Pods that were deleted while this pod existed, and during the release.
        earliest = max(self._created[pod.uid], step.at - _RELEASE_SECONDS)
        there += sum(deleted_at >= earliest for deleted_at in self._deleted[key.group].values())
        first, expected = self._needed(key, pod, there, len(done))
        if there < first:
            self.problems.append(
                f"{key.group.namespace}/{key.group.name}: a pod of attempt {key.attempt} lost its gates at revision "
                f"{step.version}, when {there} of {first} pods existed"
            )
        return _Start(expected, step.at)

    def _needed(self, key: StartKey, pod: PodRecord, there: int, finished: int) -> tuple[int, int]:
        """The pods that must exist at the start, and those that the start is for."""
        made = self._set_of(key.group) if key.group.kind == SET else None
        if made is not None:
            return (1 if made.staged else made.pods), made.pods
        member = member_of(pod)
        if member.total is None or member.fast:
            return 1, there  # also of a group whose LeaderWorkerSet is deleted
        return member.total - finished, member.total - finished

    def _set_of(self, group: GroupKey) -> JobRecord | None:
        wanted = (SET, group.namespace, set_name(group.name)[0])
        jobs = self.observed.jobs.values()
        return next((one for one in jobs if (one.kind, one.namespace, one.name) == wanted), None)

    def finding(self) -> AuditFinding:
        latest = {key.group: key for key in self.starts}
        unfinished = [
            f"{key.group.namespace}/{key.group.name}: attempt {key.attempt} has {len(start.bound)} of {start.expected} pods on nodes"
            for key, start in self.starts.items()
            if start.whole_at is None and not (start.stopped or latest[key.group] != key)
        ]
        spans = [s.whole_at - s.opened_at for s in self.starts.values() if s.whole_at is not None]
        numbers = f"{len(self.starts)} starts of {len(latest)} groups; at most {max(spans, default=0):.1f} s from the first to the last pod"
        problems = tuple(chain(self.problems, unfinished))
        return AuditFinding("all pods of each group started together", numbers, problems)
