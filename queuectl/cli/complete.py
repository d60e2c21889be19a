"""Completion of names from the server. It is quiet: a server that does not answer within a second offers no name."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import typer

from queuectl.cli.lazy import WHOLE_LINE
from queuectl.objects.configuration.config_kinds import BY_KIND, CONFIG_KINDS, PREFIX, ConfigKind

if TYPE_CHECKING:
    from queuectl.client.client import Client

SECONDS: Final = 1.0
"""Time in which the server must answer."""
_FIRST: Final = 500
"""Objects of a list that are offered."""
Offer = Callable[[typer.Context, str], list[str]]


def config_kinds(incomplete: str) -> list[str]:
    """Kinds of configuration, by their singular names."""
    return [kind.singular for kind in CONFIG_KINDS if kind.singular.startswith(incomplete)]


def deleted_kinds(incomplete: str) -> list[str]:
    """Kinds of objects that can be deleted by name."""
    kinds = [*config_kinds(""), "subscription"]
    return [kind for kind in kinds if kind.startswith(incomplete)]


def described_kinds(incomplete: str) -> list[str]:
    """Kinds of objects that can be described."""
    return [kind for kind in ("workload", *config_kinds("")) if kind.startswith(incomplete)]


def queue_kinds(incomplete: str) -> list[str]:
    """Kinds of queues."""
    return [kind for kind in ("clusterqueue", "localqueue") if kind.startswith(incomplete)]


def kinds(incomplete: str) -> list[str]:
    """Kinds of lists."""
    from queuectl.cli.get import plurals

    return [plural for plural in plurals() if plural.startswith(incomplete)]


def states(incomplete: str) -> list[str]:
    """States of workloads, after a comma also."""
    from queuectl.domain.ledger import State

    before, comma, last = incomplete.rpartition(",")
    return [f"{before}{comma}{state.value}" for state in State if state.value.startswith(last)]


def names(ctx: typer.Context, incomplete: str) -> list[str]:
    """Objects of the kind that the word before names."""
    from queuectl.cli.client import config_kind
    from queuectl.cli.errors import CommandFailed
    from queuectl.cli.get import plural_of

    word = str(ctx.params.get("kind") or "workloads")
    if plural_of(word) == "nodes":
        return nodes(ctx, incomplete)
    if plural_of(word) == "subscriptions":
        return subscriptions(ctx, incomplete)
    try:
        kind = config_kind(word)
    except CommandFailed:
        return []
    if kind is None:
        return workloads(ctx, incomplete)
    if kind.kind == "ClusterQueue":
        return cluster_queues(ctx, incomplete)
    return _configured(ctx, incomplete, kind)


def workloads(ctx: typer.Context, incomplete: str) -> list[str]:
    """Workloads that have not finished: as `NAME` with a namespace, otherwise as `NAMESPACE/NAME`."""

    def read(client: Client) -> Iterable[str]:
        from queuectl.client.requests import UNFINISHED

        namespace = ctx.params.get("namespace")
        for each in _items(client, "workloads", namespace=namespace, state=UNFINISHED):
            yield each["name"] if namespace else f"{each['namespace']}/{each['name']}"

    return _matching(ctx, incomplete, read)


def ranks(ctx: typer.Context, incomplete: str) -> list[str]:
    """Ranks of the workload of the command: as `RANK`, and as `PODSET/RANK` if there are several podsets."""

    def read(client: Client) -> Iterable[str]:
        from queuectl.cli.client import workload_path

        # Of a line that ends with an option, arguments are not assigned to their parameters.
        words = [ctx.params.get("workload"), *ctx.args]
        name = next((str(word) for word in words if word), "")
        path = workload_path(name, ctx.params.get("namespace"))
        pods = client.get(f"{path}/pods", limit=_FIRST)["items"]
        several = len({pod["podSet"] for pod in pods}) > 1
        for pod in pods:
            if pod["rank"] is not None:
                yield f"{pod['podSet']}/{pod['rank']}" if several else str(pod["rank"])

    return _matching(ctx, incomplete, read)


def selectors(ctx: typer.Context, incomplete: str) -> list[str]:
    """Labels of workloads that have not finished, as `KEY=VALUE`; after a comma also."""

    def read(client: Client) -> Iterable[str]:
        from queuectl.client.requests import UNFINISHED

        namespace = ctx.params.get("namespace")
        for each in _items(client, "workloads", namespace=namespace, state=UNFINISHED):
            yield from (f"{name}={label}" for name, label in (each.get("labels") or {}).items())

    before, comma, last = incomplete.rpartition(",")
    return [f"{before}{comma}{label}" for label in _matching(ctx, last, read)]


def users(ctx: typer.Context, incomplete: str) -> list[str]:
    """Users of the workloads that are listed first."""
    read = _field("workloads", lambda each: each["user"])
    return _matching(ctx, incomplete, read)


def nodes(ctx: typer.Context, incomplete: str) -> list[str]:
    """Nodes; after a comma also."""
    before, comma, last = incomplete.rpartition(",")
    read = _field("nodes", lambda each: each["name"])
    return [f"{before}{comma}{name}" for name in _matching(ctx, last, read)]


def namespaces(ctx: typer.Context, incomplete: str) -> list[str]:
    """Namespaces with a LocalQueue."""
    read = _field("localqueues", lambda each: each["metadata"]["namespace"])
    return _matching(ctx, incomplete, read)


def local_queues(ctx: typer.Context, incomplete: str) -> list[str]:
    """LocalQueues of the namespace of the command, or of all."""
    return _configured(ctx, incomplete, BY_KIND["LocalQueue"])


def cluster_queues(ctx: typer.Context, incomplete: str) -> list[str]:
    """The ClusterQueues that the user sees: all, or those of the user's namespaces."""
    return _matching(ctx, incomplete, _field("queueuse", lambda each: each["name"]))


def receivers(ctx: typer.Context, incomplete: str) -> list[str]:
    """Receivers of events that the user can use."""
    return _matching(ctx, incomplete, _field("receivers", lambda each: each["name"]))


def event_types(incomplete: str) -> list[str]:
    """Types of events, after a comma also."""
    from queuectl.domain.notifications import SELECTABLE

    before, comma, last = incomplete.rpartition(",")
    return [f"{before}{comma}{each}" for each in SELECTABLE if each.startswith(last)]


def subscriptions(ctx: typer.Context, incomplete: str) -> list[str]:
    """The user's subscriptions, by their ids."""
    return _matching(ctx, incomplete, _field("subscriptions", lambda each: each["id"]))


def budgets(ctx: typer.Context, incomplete: str) -> list[str]:
    """All Budgets."""
    return _configured(ctx, incomplete, BY_KIND["Budget"])


def _configured(ctx: typer.Context, incomplete: str, kind: ConfigKind) -> list[str]:
    """Objects of a kind of configuration, in the namespace of the command if it has one."""
    namespace = ctx.params.get("namespace") if kind.namespaced else None
    read = _field(kind.plural, lambda each: each["metadata"]["name"], namespace=namespace)
    return _matching(ctx, incomplete, read)


def _field(
    plural: str, read: Callable[[dict[str, Any]], object], **query: object
) -> Callable[[Client], Iterable[str]]:
    return lambda client: (
        str(read(each)) for each in _items(client, plural, **query) if read(each)
    )


def _items(client: Client, plural: str, **query: object) -> list[dict[str, Any]]:
    if plural in ("workloads", "nodes"):  # the other lists have no pages
        query["limit"] = _FIRST
    items: list[dict[str, Any]] = client.get(f"{PREFIX}/{plural}", **query)["items"]
    return items


def _matching(
    ctx: typer.Context, incomplete: str, read: Callable[[Client], Iterable[str]]
) -> list[str]:
    """The names with this beginning, which the server and the token of the line give.

    Nothing is printed: a message would disturb the command line.
    """
    from queuectl.cli.connection import connection_options
    from queuectl.client.client import Client

    if not ctx.meta.get(WHOLE_LINE):
        return []
    try:
        options = connection_options()
        options = replace(options, server=str(ctx.params.get("server") or options.server))
        with Client(options=options, retries=0, timeout=SECONDS) as client:
            found = set(read(client))
    except Exception:  # noqa: BLE001 - without an answer, no name is offered
        return []
    return sorted(name for name in found if name.startswith(incomplete))
