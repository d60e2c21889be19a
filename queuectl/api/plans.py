"""What-if plans: the manifests of a question, its requests and its results.

Manifests in the body are one text with jobs and configuration objects, which is sorted into the two lists of the question. The
results leave out the names of gangs that the caller is not allowed to see.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any, Final

from pydantic import Field

from queuectl.api.access import Visible, redactor_for
from queuectl.api.body import MAX_BYTES
from queuectl.api.dry_run import excess_views
from queuectl.api.params import NAME
from queuectl.api.problems import wrong_members
from queuectl.api.reading import read_yaml_stream
from queuectl.api.schemas import (
    ExcessView,
    ObstacleView,
    PlacementView,
    ReasonView,
    SuggestedFixView,
    View,
)
from queuectl.api.views import obstacle_view, placement_view, reason_view, suggested_fix_view
from queuectl.domain.diagnosis import Diagnosis
from queuectl.domain.gpus import rounded, summed
from queuectl.domain.plan import Cost, Eviction, Plan, Proof
from queuectl.domain.reasons import Reason
from queuectl.domain.redaction import ANOTHER_TEAM, namespaces_in
from queuectl.domain.snapshot import Admitted, Pending, Snapshot
from queuectl.domain.what_if import WhatIfResult
from queuectl.domain.words import utc
from queuectl.domain.workload import Placement, Workload
from queuectl.objects.configuration.queue_config import is_config
from queuectl.objects.documents import documents_of

# ---- Bodies of requests and answers

MOST_WAITING: Final = 200  # listed gangs that stay pending
_MOST_JOBS: Final = 100  # submitted in one request
_MOST_OBJECTS: Final = 1000  # configuration objects in one request
_Named = Annotated[str, Field(pattern=NAME)]


class DeleteBody(View):
    """A configuration object."""

    kind: str = Field(max_length=63)
    name: _Named
    namespace: _Named | None = None


class AddBody(View):
    like: _Named = Field(
        description="A node as a model: the new nodes are in its domains, empty and ready."
    )
    count: int = Field(ge=1, le=1000)


class PlanBody(View):
    """The changes, which apply together; without any, the result is the current plan."""

    submit: list[dict[str, Any]] = Field(
        default=[], max_length=_MOST_JOBS, description="Jobs to submit, as in a manifest."
    )
    config: list[dict[str, Any]] = Field(
        default=[], max_length=_MOST_OBJECTS, description="Configuration objects to apply."
    )
    manifests: str = Field(
        default="",
        max_length=MAX_BYTES,
        description="YAML or JSON documents, as in a file for `queuectl plan -f`: jobs to submit and configuration objects to "
        "apply, in addition to `submit` and `config`.",
    )
    delete: list[DeleteBody] = Field(default=[], max_length=1000)
    drain: list[_Named] = Field(default=[], max_length=5000, description="Nodes to drain.")
    add: list[AddBody] = Field(default=[], max_length=20, description="Nodes to add.")


class Outcome(StrEnum):
    """The decision of a plan for a gang."""

    STARTS = "starts"
    REPAIRED = "repaired"  # continues to run; pods on lost nodes are replaced
    RESERVES = "reserves"  # is pending with a reservation, until evicted gangs have stopped
    WAITS = "waits"
    LEAVES = "leaves"  # is evicted
    MOVES = "moves"  # is evicted, and starts again elsewhere
    RUNS = "runs"


class CostView(View):
    priority: int = Field(description="Priority of the evicted gang.")
    lost_gpu_seconds: int
    gpus: float = Field(description="GPUs that become free.")


class GangOutcomeView(View):
    """A gang and the decision for it."""

    workload: str = Field(
        description=f"namespace/name; `{ANOTHER_TEAM}` for one that you are not allowed to see."
    )
    kind: str | None = Field(
        description="null = you are not allowed to see it; the same for `uid`."
    )
    uid: str | None
    cluster_queue: str | None
    gpus: float = Field(
        description="GPUs that it requests; an instance or a replica counts as a part of a GPU."
    )
    submitted: bool = Field(description="Whether the request submits it.")
    outcome: Outcome
    before: Outcome | None = Field(
        description="The decision without the change; null = the gang does not exist then."
    )
    placement: PlacementView | None = Field(
        description="The placement of its start, repair, reservation or move."
    )
    reason: ReasonView | None = Field(description="The reason why it is pending or evicted.")
    preemptor: str | None = Field(
        description="namespace/name of the gang for which it is evicted or migrated."
    )
    cost: CostView | None = Field(description="The lost work of its eviction.")
    conflict: list[ObstacleView] = Field(
        description="Blocking constraints; of the first submitted gangs only."
    )
    conflict_proof: Proof = Field(
        description="optimal = each blocking constraint is needed; feasible = the solver reached a limit, so the list can include constraints that do not block."
    )
    suggested_fixes: list[SuggestedFixView] = Field(
        description="Suggested fixes; of the first submitted gangs only."
    )


class CountsView(View):
    starts: int
    gpus_started: float
    waits: int = Field(description="Pending gangs, with those that have a reservation.")
    leaves: int = Field(description="Evicted gangs, with moved gangs.")
    lost_gpu_seconds: int


class IgnoredView(View):
    object: str = Field(description="API version, kind and name.")
    reason: str = Field(description="Why it has no effect.")


class PlanView(View):
    at: datetime = Field(description="Time of the snapshot.")
    revision: int = Field(description="Revision of the configuration.")
    before: CountsView = Field(description="The plan without the change.")
    after: CountsView = Field(description="The plan with the change.")
    starts: list[GangOutcomeView]
    leaves: list[GangOutcomeView]
    waits: list[GangOutcomeView] = Field(
        description="Submitted gangs first, then gangs with another decision than before; in queue order."
    )
    omitted: int = Field(description="Number of gangs that stay pending and are not listed.")
    over_quota: list[ExcessView] = Field(
        description="Quotas that running gangs would exceed, and do not exceed now."
    )
    warnings: list[str]
    ignored: list[IgnoredView] = Field(
        description="Documents of the request without effect on the plan."
    )


@dataclass(frozen=True, slots=True)
class _GangPlan:
    outcome: Outcome
    placement: Placement | None = None
    reason: Reason | None = None
    preemptor: str | None = None
    cost: Cost | None = None


def named_namespaces(trial: WhatIfResult) -> frozenset[str]:
    """The namespaces of the gangs in a plan, and of the LocalQueues in its warnings."""
    gangs: Iterable[Pending | Admitted] = (*trial.after.pending, *trial.after.admitted)
    warned = frozenset[str]().union(*map(namespaces_in, trial.warnings))
    queues = {namespace for namespace, _ in trial.after.config.local_queues}
    return frozenset(gang.workload.namespace for gang in gangs) | (warned & queues)


def plan_view(trial: WhatIfResult, visible: Visible) -> PlanView:
    """The plan with the changes, compared with the plan without them."""
    presenter = _PlanPresenter(trial, visible)
    before = dict(_gang_plans(trial.before, trial.without, ()))
    after = dict(_gang_plans(trial.after, trial.plan, trial.evicted))
    by_outcome: dict[Outcome, list[str]] = {outcome: [] for outcome in Outcome}
    for uid, gang_plan in after.items():
        by_outcome[gang_plan.outcome].append(uid)
    waits = [*by_outcome[Outcome.RESERVES], *by_outcome[Outcome.WAITS]]
    submitted = frozenset(trial.submitted)
    new = [uid for uid in waits if uid in submitted]
    other = [uid for uid in waits if uid not in submitted]

    def is_as_before(uid: str) -> bool:
        return uid in before and before[uid].outcome is after[uid].outcome

    changed = [uid for uid in other if not is_as_before(uid)]
    same = [uid for uid in other if is_as_before(uid)]

    def views(*lists: Iterable[str]) -> list[GangOutcomeView]:
        return [presenter.view(uid, after[uid], before.get(uid)) for uids in lists for uid in uids]

    return PlanView(
        at=utc(trial.before.now),
        revision=trial.before.config.revision,
        before=_counts(before, trial.before),
        after=_counts(after, trial.after),
        starts=views(by_outcome[Outcome.STARTS], by_outcome[Outcome.REPAIRED]),
        leaves=views(by_outcome[Outcome.LEAVES], by_outcome[Outcome.MOVES]),
        waits=views(new, changed, same[:MOST_WAITING]),
        omitted=len(same[MOST_WAITING:]),
        over_quota=presenter.excesses(),
        warnings=[*presenter.taken(), *presenter.warnings()],
        ignored=[IgnoredView(object=one.object, reason=one.reason) for one in trial.ignored],
    )


def _gang_plans(
    snapshot: Snapshot, plan: Plan, evicted: Collection[Eviction]
) -> Iterator[tuple[str, _GangPlan]]:
    """The decision for each gang, running gangs first. The last decision for a gang counts."""
    for gang in snapshot.admitted:
        yield gang.workload.uid, _GangPlan(Outcome.LEAVES if gang.leaving else Outcome.RUNS)
    for eviction in (*evicted, *plan.evicted):
        yield (
            eviction.uid,
            _GangPlan(Outcome.LEAVES, reason=Reason(eviction.code, eviction.message)),
        )
    for victim in plan.preempted:
        yield (
            victim.victim,
            _GangPlan(Outcome.LEAVES, preemptor=victim.preemptor, cost=victim.cost),
        )
    for move in plan.moved:
        yield move.uid, _GangPlan(Outcome.MOVES, move.placement, None, move.beneficiary, move.cost)
    for refusal in plan.pending:
        lease = refusal.lease
        outcome = Outcome.RESERVES if lease is not None else Outcome.WAITS
        place = lease.placement if lease is not None else None
        yield refusal.uid, _GangPlan(outcome, place, refusal.reasons[0])
    for admission in plan.admitted:
        outcome = Outcome.REPAIRED if admission.repaired else Outcome.STARTS
        yield admission.uid, _GangPlan(outcome, admission.placement)


def _counts(gang_plans: Mapping[str, _GangPlan], snapshot: Snapshot) -> CountsView:
    outcomes = [gang_plan.outcome for gang_plan in gang_plans.values()]
    gpus = {p.workload.uid: p.workload for p in snapshot.pending}
    started = [
        Admitted(gpus[uid], gang_plan.placement).gpus
        for uid, gang_plan in gang_plans.items()
        if gang_plan.outcome is Outcome.STARTS and gang_plan.placement is not None
    ]
    costs = [o.cost.lost_work for o in gang_plans.values() if o.cost is not None]
    return CountsView(
        starts=outcomes.count(Outcome.STARTS),
        gpus_started=rounded(summed(started)),
        waits=outcomes.count(Outcome.WAITS) + outcomes.count(Outcome.RESERVES),
        leaves=outcomes.count(Outcome.LEAVES) + outcomes.count(Outcome.MOVES),
        lost_gpu_seconds=sum(costs),
    )


class _PlanPresenter:
    """Presents the decisions to one caller."""

    def __init__(self, trial: WhatIfResult, visible: Visible) -> None:
        self._trial = trial
        self._visible = visible
        self._submitted = frozenset(trial.submitted)
        self._known: dict[str, Workload] = {
            **{a.workload.uid: a.workload for a in trial.after.admitted},
            **{p.workload.uid: p.workload for p in trial.after.pending},
        }
        others = [one for uid, one in self._known.items() if uid not in self._submitted]
        covered = {one.ref for one in others if not self._sees(one)}
        own = {self._known[uid].ref for uid in self._submitted}
        self._taken = {(one.kind, one.ref) for one in others if self._sees(one)}
        self._redactor = redactor_for(named_namespaces(trial), visible, own - covered)

    def view(self, uid: str, gang_plan: _GangPlan, before: _GangPlan | None) -> GangOutcomeView:
        workload = self._known[uid]
        submitted = uid in self._submitted
        seen = submitted or self._sees(workload)
        diagnosis = self._redactor.diagnosis(self._trial.diagnoses.get(uid) or Diagnosis(uid))
        queue = self._trial.after.config.cluster_queue_of(workload.namespace, workload.queue)
        shown = gang_plan if seen else replace(gang_plan, placement=None, reason=None)
        return GangOutcomeView(
            workload=workload.ref if seen else ANOTHER_TEAM,
            kind=workload.kind if seen else None,
            uid=uid if seen and not submitted else None,
            cluster_queue=queue.name if seen and queue is not None else None,
            gpus=rounded(workload.gpus),
            submitted=submitted,
            outcome=gang_plan.outcome,
            before=before.outcome if before is not None else None,
            placement=placement_view(shown.placement, planned=True) if shown.placement else None,
            reason=reason_view(self._redactor.redacted(shown.reason))
            if shown.reason is not None
            else None,
            preemptor=self._name(gang_plan.preemptor),
            cost=_cost(gang_plan.cost),
            conflict=[obstacle_view(one) for one in diagnosis.conflict],
            conflict_proof=diagnosis.proof,
            suggested_fixes=[suggested_fix_view(one) for one in diagnosis.suggested_fixes],
        )

    def excesses(self) -> list[ExcessView]:
        """Quotas that would be exceeded."""
        name = self._redactor.name
        found = excess_views(self._trial.excesses) or []
        return [
            ExcessView(**{**one, "workloads": [name(ref) for ref in one["workloads"]]})
            for one in found
        ]

    def warnings(self) -> list[str]:
        """Warnings of the trial, each once: those about objects of others can be the same without their names."""
        return list(dict.fromkeys(map(self._redactor.text, self._trial.warnings)))

    def taken(self) -> list[str]:
        """Warnings of names that exist already, if the caller is allowed to see these gangs."""
        submitted = (self._known[uid] for uid in self._trial.submitted)
        return [
            f"{one.ref}: there is a {one.kind} of this name already"
            for one in submitted
            if (one.kind, one.ref) in self._taken
        ]

    def _sees(self, workload: Workload) -> bool:
        return self._visible is None or workload.namespace in self._visible

    def _name(self, uid: str | None) -> str | None:
        return self._redactor.name(self._known[uid].ref) if uid is not None else None


def _cost(cost: Cost | None) -> CostView | None:
    if cost is None:
        return None
    return CostView(
        priority=cost.priority, lost_gpu_seconds=cost.lost_work, gpus=rounded(cost.gpus)
    )


# ---- Manifests

_FIELD: Final = "manifests"


def with_manifests(body: PlanBody) -> PlanBody:
    """The question with the documents of ``manifests`` in ``submit`` and ``config``.

    Raises:
        Problem: the text is not YAML, has too many values, or holds too many documents.
        DocumentError: a document is not an object.
    """
    documents = documents_of(_values(body.manifests), _FIELD, plain=True)
    submit, config = list(body.submit), list(body.config)
    for document in documents:
        (config if is_config(document) else submit).append(document.body)
    for found, most, what in (
        (submit, _MOST_JOBS, "jobs"),
        (config, _MOST_OBJECTS, "configuration objects"),
    ):
        if len(found) > most:
            reason = f"{len(found)} {what}; at most {most} can be tried out together"
            raise wrong_members([{"field": _FIELD, "reason": reason}])
    return body.model_copy(update={"submit": submit, "config": config, _FIELD: ""})


def _values(text: str) -> list[Any]:
    """A JSON list counts as that many documents."""
    values: list[Any] = []
    for value in read_yaml_stream(text.encode()):
        values += value if isinstance(value, list) else [value]
    return values
