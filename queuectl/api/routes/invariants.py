"""A complete check of the leader's invariants."""

# No postponed annotations here: see routes/config.py.

from datetime import datetime

from fastapi import APIRouter
from pydantic import Field

from queuectl.api.access import Guard
from queuectl.api.openapi import responses
from queuectl.api.ports import Diagnoser
from queuectl.api.problems import ApiProblem, ProblemType
from queuectl.api.schemas import View
from queuectl.domain.ledger import Checked, Invariant
from queuectl.domain.words import utc
from queuectl.objects.configuration.config_kinds import PREFIX

PATH = f"{PREFIX}/invariants"


class ViolationView(View):
    """A violated invariant of one workload: a defect."""

    invariant: Invariant
    kind: str
    namespace: str
    name: str
    uid: str
    message: str


class CheckedView(View):
    """The result of a check against the cluster and the database."""

    at: datetime
    workloads: int = Field(description="Number of checked workloads.")
    pods: int
    nodes: int
    violations: list[ViolationView]


def add_routes(routes: APIRouter, guard: Guard, diagnoser: Diagnoser | None) -> None:
    """Offer the path."""

    @routes.get(
        PATH,
        dependencies=[guard.needs("get", "invariants")],
        tags=["Invariants"],
        operation_id="checkInvariants",
        summary="Check the invariants of all workloads; only the leader answers",
        responses=responses(ProblemType.NOT_KNOWN_YET),
    )
    async def check_invariants() -> CheckedView:
        checked = await diagnoser.check() if diagnoser is not None else None
        if checked is None:
            leader = await diagnoser.leader() if diagnoser is not None else ""
            who = f"{leader} leads" if leader else "none leads now"
            text = f"only the process that leads checks invariants: {who}"
            raise ApiProblem(ProblemType.NOT_KNOWN_YET, text)
        return _view(checked)


def _view(checked: Checked) -> CheckedView:
    return CheckedView(
        at=utc(checked.at),
        workloads=checked.workloads,
        pods=checked.pods,
        nodes=checked.nodes,
        violations=[
            ViolationView(
                invariant=one.invariant,
                kind=one.kind,
                namespace=one.namespace,
                name=one.name,
                uid=one.uid,
                message=one.message,
            )
            for one in checked.violations
        ],
    )
