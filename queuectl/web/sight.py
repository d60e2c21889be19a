"""What who asks may see and do, found out once per page: the pages show nothing else."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from starlette.requests import Request

from queuectl.api.access import Guard, caller_of
from queuectl.domain.identity import Right
from queuectl.domain.standings import Tally


@dataclass(frozen=True, slots=True)
class Sight:
    """Of one request.

    Attributes:
        who: name of who asks.
        namespaces: whose workloads may be seen; None = all.
        queues: all ClusterQueues may be seen; else only those that visible LocalQueues lead to.
        nodes: the nodes may be seen.
        plan: what-if questions may be asked.
    """

    who: str
    namespaces: frozenset[str] | None
    queues: bool
    nodes: bool
    plan: bool

    def sees(self, namespace: str) -> bool:
        """Whether the workloads of a namespace may be seen."""
        return self.namespaces is None or namespace in self.namespaces

    def tallies(self, known: Iterable[Tally]) -> tuple[Tally, ...]:
        """Those of namespaces that may be seen."""
        return tuple(tally for tally in known if self.sees(tally.namespace))


async def sight_of(guard: Guard, request: Request, namespaces: Iterable[str]) -> Sight:
    """What may be seen, of these namespaces.

    Raises:
        ClusterUnavailable: nobody could be asked.
    """

    async def known() -> Iterable[str]:
        return sorted(set(namespaces))

    return Sight(
        who=caller_of(request).name,
        namespaces=await guard.visible(request, "list", "workloads", known),
        queues=await guard.may(request, Right("list", "clusterqueues")),
        nodes=await guard.may(request, Right("list", "nodes")),
        plan=await guard.may(request, Right("create", "plans")),
    )
