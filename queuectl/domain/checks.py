"""Admission checks: conditions outside the cluster's capacity that a gang needs before it starts.

A gang with quota and a placement is held for the checks of its ClusterQueue. Each check is in one of the four states of Kueue.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final

from queuectl.domain.fleet import HOSTNAME, Toleration
from queuectl.domain.pacing import doubling
from queuectl.domain.provisioning import ProvisioningConfig
from queuectl.domain.workload import PodSet

EXTERNAL: Final = "queuectl.dev/external"
"""The controller of checks whose state is set through the REST API."""

PROVISIONING: Final = "kueue.x-k8s.io/provisioning-request"
"""The controller of checks for which queuectl asks an autoscaler for nodes."""

CONTROLLERS: Final = (EXTERNAL, PROVISIONING)
"""Controllers of admission checks that queuectl honors."""

RETRY_BASE: Final = 60.0
"""Seconds until a gang queues again after its first ``Retry`` without ``requeueAfterSeconds``; doubled with each further one."""

RETRY_CEILING: Final = 1800.0
"""The longest back-off in seconds of a ``Retry`` without ``requeueAfterSeconds``."""

MOST_CHECKS: Final = 8
"""Of one ClusterQueue, as in Kueue."""

OWN_PREFIXES: Final = ("queuectl.dev/", "kueue.x-k8s.io/")
"""Prefixes of keys that an update of pods must not set."""


class CheckState(StrEnum):
    """The state of a check of one workload, as in Kueue."""

    PENDING = "Pending"
    READY = "Ready"
    RETRY = "Retry"  # release quota and placement, and try again later
    REJECTED = "Rejected"  # deactivate the workload


Pairs = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class PodSetUpdate:
    """Additions of a check to the pods of a podset. They never change a value that a template has."""

    podset: str
    labels: Pairs = ()
    annotations: Pairs = ()
    node_selector: Pairs = ()
    tolerations: tuple[Toleration, ...] = ()


@dataclass(frozen=True, slots=True)
class CheckReport:
    """A new state of one check of a workload.

    ``requeue_after``: seconds; only of ``Retry``. None = a back-off that doubles. ``updates``: only of ``Ready``. ``unasked``: flavors for
    which no nodes are requested until these unix seconds; only of ``Retry``, and the number of its retries begins again.
    """

    check: str
    state: CheckState
    message: str = ""
    requeue_after: float | None = None
    updates: tuple[PodSetUpdate, ...] = ()
    unasked: tuple[tuple[str, float], ...] = ()

    def repeats(self, status: CheckStatus) -> bool:
        """Whether it states what is known of the check."""
        known = status.state, status.message, status.updates
        return (self.state, self.message, self.updates) == known


@dataclass(frozen=True, slots=True)
class CheckStatus:
    """The state of one check of a workload that is held for it, or that has started.

    Attributes:
        since: unix seconds of the last change of ``state``.
        due: unix seconds at which a check that is still Pending counts as ``Retry``: a fixed time after ``since``; None = never.
    """

    name: str
    state: CheckState = CheckState.PENDING
    since: float = 0.0
    message: str = ""
    updates: tuple[PodSetUpdate, ...] = ()
    due: float | None = None

    def overdue(self, now: float) -> bool:
        """Whether it has not answered in time at ``now`` (unix seconds)."""
        waits = self.state is CheckState.PENDING
        return waits and self.due is not None and self.due <= now

    def __str__(self) -> str:
        return f"{self.name} ({self.state}{f': {self.message}' if self.message else ''})"


@dataclass(frozen=True, slots=True)
class Checks:
    """The admission checks of a workload.

    Attributes:
        statuses: of the checks that it needs, while it has a placement; empty otherwise.
        retries: check to the number of times that it answered ``Retry`` since the last start or activation.
        round: how often the workload was held for checks.
        request: digest of the request for which the checks are asked; empty if it is not known.
        unasked: flavor to the unix seconds before which no nodes are requested for it, because its requests failed.
    """

    statuses: tuple[CheckStatus, ...] = ()
    retries: Mapping[str, int] = field(default_factory=dict)
    round: int = 0
    unasked: Mapping[str, float] = field(default_factory=dict)
    request: str = ""

    @property
    def ready(self) -> frozenset[str]:
        """Names of the checks that are Ready."""
        return frozenset(s.name for s in self.statuses if s.state is CheckState.READY)

    @property
    def unready(self) -> tuple[CheckStatus, ...]:
        """The checks that are not Ready."""
        return tuple(s for s in self.statuses if s.state is not CheckState.READY)

    @property
    def updates(self) -> tuple[PodSetUpdate, ...]:
        """Additions to pods."""
        return tuple(update for status in self.statuses for update in status.updates)

    @property
    def due(self) -> float | None:
        """The first time (unix seconds) at which a check without an answer counts as ``Retry``."""
        return min((s.due for s in self.unready if s.due is not None), default=None)

    def of(self, name: str) -> CheckStatus | None:
        """The status of one check; None when the workload does not need it now."""
        return next((s for s in self.statuses if s.name == name), None)

    def needing(self, needed: Iterable[CheckStatus], request: str) -> Checks:
        """The checks for a placement of this request that needs these; the states of those that it needed already stay."""
        known = {status.name: status for status in self.statuses}
        statuses = tuple(known.get(status.name, status) for status in needed)
        began = 0 if self.statuses else 1
        return replace(self, statuses=statuses, round=self.round + began, request=request)

    def reset(self) -> Checks:
        """Without states: the workload has released its placement."""
        return replace(self, statuses=(), request="") if self.statuses else self

    def without_retries(self) -> Checks:
        """Of a gang that starts or is activated: earlier ``Retry`` no longer count."""
        return replace(self, retries={}, unasked={}) if self.retries or self.unasked else self

    def asking(self, now: float) -> Checks:
        """With the flavors for which nodes can be requested again at ``now`` (unix seconds)."""
        left = {flavor: until for flavor, until in self.unasked.items() if until > now}
        return replace(self, unasked=left) if len(left) < len(self.unasked) else self

    def reported(self, reports: Iterable[CheckReport], now: float, *, started: bool) -> Checks:
        """With new states. Reports for checks that the workload does not need are ignored.

        ``started``: its pods have the updates, and pods that are created again get the same ones.
        """
        by_name = {report.check: report for report in reports}
        statuses, retries, unasked = [], dict(self.retries), dict(self.unasked)
        for status in self.statuses:
            report = by_name.get(status.name)
            if report is None:
                statuses.append(status)
                continue
            since = status.since if report.state is status.state else now
            due = status.due + (since - status.since) if status.due is not None else None
            if started and report.state in (CheckState.PENDING, CheckState.READY):
                updates = status.updates
            else:
                updates = report.updates if report.state is CheckState.READY else ()
            statuses.append(
                replace(
                    status,
                    state=report.state,
                    since=since,
                    message=report.message,
                    updates=updates,
                    due=due,
                )
            )
            if report.state is CheckState.RETRY:
                retries[status.name] = 0 if report.unasked else retries.get(status.name, 0) + 1
                unasked |= dict(report.unasked)
        return replace(self, statuses=tuple(statuses), retries=retries, unasked=unasked)


NO_CHECKS: Final = Checks()


def back_off(report: CheckReport, retries: int) -> float:
    """Seconds until a gang queues again after the ``Retry`` number ``retries`` of a check."""
    if report.requeue_after is not None:
        return report.requeue_after
    return doubling(RETRY_BASE, RETRY_CEILING, retries)


@dataclass(frozen=True, slots=True)
class AdmissionCheck:
    """A configuration object.

    Attributes:
        controller: the name of the controller that sets its state.
        timeout: seconds after which a check that is still Pending counts as ``Retry``; None = never, as in Kueue.
        settings: name of its ProvisioningRequestConfig; empty for other controllers.
        provisioning: that object; None if it does not exist.
    """

    name: str
    controller: str
    timeout: float | None = None
    settings: str = ""
    provisioning: ProvisioningConfig | None = None

    def makes_nodes_for(self, podsets: Collection[PodSet]) -> bool:
        """Whether it makes nodes for a gang: a podset requests what its nodes are for."""
        return self.provisioning is not None and bool(self.provisioning.requested(podsets))


@dataclass(frozen=True, slots=True)
class CheckRule:
    """A ClusterQueue needs this check for gangs with one of these flavors; empty = for all of its gangs.

    ``provisions``: the check makes nodes, so that only gangs without nodes need it.
    """

    name: str
    on_flavors: frozenset[str] = frozenset()
    provisions: bool = False

    def applies(self, flavors: Iterable[str]) -> bool:
        """Whether a gang that is charged to these flavors needs it."""
        return not self.on_flavors or not self.on_flavors.isdisjoint(flavors)


def inactive(rules: Iterable[CheckRule], checks: Mapping[str, AdmissionCheck]) -> dict[str, str]:
    """The checks that no controller answers, with the cause."""
    causes = {}
    for rule in rules:
        check = checks.get(rule.name)
        if check is None:
            causes[rule.name] = "does not exist"
        elif check.controller not in CONTROLLERS:
            causes[rule.name] = (
                f"has controller {check.controller}, which queuectl does not support"
            )
        elif check.controller == PROVISIONING and check.provisioning is None:
            named = f"ProvisioningRequestConfig {check.settings}, which does not exist"
            causes[rule.name] = (
                f"names {named if check.settings else 'no ProvisioningRequestConfig'}"
            )
    return causes


def updated(podsets: tuple[PodSet, ...], updates: Iterable[PodSetUpdate]) -> tuple[PodSet, ...]:
    """The podsets with the node selectors and tolerations that checks add."""
    found = {podset.name: podset for podset in podsets}
    for update in updates:
        podset = found.get(update.podset)
        if podset is None or not (update.node_selector or update.tolerations):
            continue
        rules = podset.shape.rules.joined(update.node_selector, update.tolerations)
        found[update.podset] = replace(podset, shape=replace(podset.shape, rules=rules))
    return tuple(found.values())


def update_refusal(
    updates: Iterable[PodSetUpdate],
    earlier_updates: Iterable[PodSetUpdate],
    podsets: Iterable[PodSet],
) -> str | None:
    """Why updates cannot be honored; None if they can.

    Args:
        updates: of one check.
        earlier_updates: of the other checks of the workload.
        podsets: of the workload.
    """
    known = {podset.name: podset for podset in podsets}
    earlier = list(earlier_updates)
    for update in updates:
        podset = known.get(update.podset)
        if podset is None:
            return f"podSetUpdates: {update.podset} is not a podset of it ({', '.join(known)})"
        why = _conflict(update, podset, [o for o in earlier if o.podset == update.podset])
        if why is not None:
            return f"podSetUpdates: podset {update.podset}: {why}"
        earlier.append(update)
    return None


def _conflict(update: PodSetUpdate, podset: PodSet, earlier: list[PodSetUpdate]) -> str | None:
    fields: dict[str, tuple[Pairs, dict[str, str]]] = {
        "labels": (update.labels, dict(podset.labels)),
        "annotations": (update.annotations, dict(podset.annotations)),
        "nodeSelector": (update.node_selector, dict(podset.shape.rules.selector)),
    }
    for other in earlier:
        fields["labels"][1].update(other.labels)
        fields["annotations"][1].update(other.annotations)
        fields["nodeSelector"][1].update(other.node_selector)
    for field_name, (added, present) in fields.items():
        for key, value in added:
            if key.startswith(OWN_PREFIXES) or key == HOSTNAME:
                return f"{field_name} {key} belongs to the queue controller"
            if present.get(key, value) != value:
                return f"{field_name} {key} is {present[key]!r} already and cannot become {value!r}"
    return None
