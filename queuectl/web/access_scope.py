"""The rights of the caller, checked once per page. The pages show nothing else."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass

from starlette.requests import Request

from queuectl.api.access import Guard, caller_of
from queuectl.domain.identity import Right
from queuectl.domain.queries import QueueCounts


@dataclass(frozen=True, slots=True)
class AccessScope:
    """Of one request.

    Attributes:
        who: user name of the caller.
        namespaces: namespaces whose workloads the caller may list; None = all.
        queues: the caller may list all ClusterQueues; else only those of visible LocalQueues are shown.
        nodes: the caller may list nodes.
        plan: the caller may create plans.
        usage: the caller may get reports, of all namespaces or of a visible one.
        decisions: the caller may list decisions.
        audit: the caller may get the audit log.
        config: the caller may list ClusterQueues, or LocalQueues of a visible namespace.
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
        """Whether the caller may list the workloads of a namespace."""
        return self.namespaces is None or namespace in self.namespaces

    def tallies(self, tallies: Iterable[QueueCounts]) -> tuple[QueueCounts, ...]:
        """Those of visible namespaces."""
        return tuple(tally for tally in tallies if self.sees(tally.namespace))


async def access_of(
    guard: Guard, request: Request, namespaces: Callable[[], Awaitable[Iterable[str]]]
) -> AccessScope:
    """The rights of the caller. ``namespaces`` is called only where the caller may not list all workloads.

    Raises:
        ClusterUnavailable: the API server cannot review access.
    """

    def may(verb: str, resource: str) -> Awaitable[bool]:
        return guard.may(request, Right(verb, resource))

    visible = await guard.visible(request, "list", "workloads", namespaces)

    async def of_those() -> Iterable[str]:
        return visible if visible is not None else await namespaces()

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
        namespaces=visible,
        queues=queues,
        nodes=nodes,
        plan=plan,
        usage=usage,
        decisions=decisions,
        audit=audit,
        config=queues or local_queues,
    )
