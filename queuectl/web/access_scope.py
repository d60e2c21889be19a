"""What who asks may see and do, found out once per page: the pages show nothing else."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass

from starlette.requests import Request

from queuectl.api.access import Guard, caller_of
from queuectl.domain.identity import Right
from queuectl.domain.queue_counts import QueueCounts


@dataclass(frozen=True, slots=True)
class AccessScope:
    """Of one request.

    Attributes:
        who: name of who asks.
        namespaces: whose workloads may be seen; None = all.
        queues: all ClusterQueues may be seen; else only those that visible LocalQueues lead to.
        nodes: the nodes may be seen.
        plan: what-if questions may be asked.
        usage: reports may be made, of all namespaces or of one whose workloads may be seen.
        decisions: the planning cycles may be seen.
        audit: the log of who changed what may be seen.
        config: objects of the configuration may be seen: ClusterQueues, or LocalQueues of a namespace that may be seen.
    """

    who: str
    namespaces: frozenset[str] | None
    queues: bool
    nodes: bool
    plan: bool
    usage: bool
    decisions: bool
    audit: bool
    config: bool

    def sees(self, namespace: str) -> bool:
        """Whether the workloads of a namespace may be seen."""
        return self.namespaces is None or namespace in self.namespaces

    def tallies(self, known: Iterable[QueueCounts]) -> tuple[QueueCounts, ...]:
        """Those of namespaces that may be seen."""
        return tuple(tally for tally in known if self.sees(tally.namespace))


async def sight_of(
    guard: Guard, request: Request, namespaces: Callable[[], Awaitable[Iterable[str]]]
) -> AccessScope:
    """What may be seen, of these namespaces; they are asked for only when it is not all of them.

    Raises:
        ClusterUnavailable: nobody could be asked.
    """

    def may(verb: str, resource: str) -> Awaitable[bool]:
        return guard.may(request, Right(verb, resource))

    seen = await guard.visible(request, "list", "workloads", namespaces)

    async def of_those() -> Iterable[str]:
        return seen if seen is not None else await namespaces()

    async def somewhere(verb: str, resource: str) -> bool:
        return await guard.somewhere(request, verb, resource, of_those)

    queues, nodes, plan, decisions, audit, usage, local_queues = await asyncio.gather(
        may("list", "clusterqueues"),
        may("list", "nodes"),
        may("create", "plans"),
        may("list", "decisions"),
        may("get", "audit"),
        somewhere("get", "reports"),
        somewhere("list", "localqueues"),
    )
    return AccessScope(
        who=caller_of(request).name,
        namespaces=seen,
        queues=queues,
        nodes=nodes,
        plan=plan,
        usage=usage,
        decisions=decisions,
        audit=audit,
        config=queues or local_queues,
    )
