"""``queuectl get``: list, read or watch workloads, configuration, nodes, domains, events, decisions, commands and more.

``--watch`` prints the list, then its changes, until the user interrupts it.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime
from typing import Annotated, Any, Final

import typer

from queuectl.cli import complete, events, program
from queuectl.cli.client import (
    DEFAULT_SERVER,
    WORKLOAD_WORDS,
    Json,
    Namespace,
    Server,
    config_kind,
    connect,
    workloads,
)
from queuectl.cli.errors import CommandFailed, Exit
from queuectl.cli.filters import Selector, caller_of, states_of
from queuectl.cli.listings import (
    LISTINGS,
    Form,
    ListingOptions,
    NoHeaders,
    by_urgency,
    configuration,
)
from queuectl.cli.render import Column, GrowingTable, ListFormat, emit_yaml
from queuectl.client.client import Client
from queuectl.client.errors import NotPermitted, ObjectNotFound
from queuectl.client.requests import FINISHED, UNFINISHED
from queuectl.objects.configuration.config_kinds import CONFIG_KINDS, PREFIX

# ---- The command

_PLURALS: Final = {
    name: plural
    for plural, names in {
        "nodes": ("nodes", "node", "no"),
        "domains": ("domains", "domain"),
        "events": ("events", "event", "ev"),
        "decisions": ("decisions", "decision"),
        "commands": ("commands", "command"),
        "pastuse": ("pastuse",),
        "unmanaged": ("unmanaged",),
        "receivers": ("receivers", "receiver"),
        "subscriptions": ("subscriptions", "subscription"),
    }.items()
    for name in names
}
_LISTS: Final = {
    "queue": ("workloads",),
    "cluster_queue": ("workloads", "events"),
    "state": ("workloads", "commands"),
    "all": ("workloads", "subscriptions"),
    "user": ("workloads",),
    "mine": ("workloads",),
    "label_selector": ("workloads",),
    "sort": ("workloads",),
    "by": ("commands",),
    "domain": ("nodes",),
    "free": ("nodes",),
    "search": ("nodes",),
    "summary": ("nodes",),
    "watch": ("workloads", "events"),
}
"""Options that filter lists, and the lists that they filter."""
Everywhere = Annotated[
    bool,
    typer.Option(
        "--all-namespaces",
        "-A",
        help="List all namespaces. This is also the default.",
    ),
]


def get_command(
    kind: Annotated[
        str | None,
        typer.Argument(
            metavar="KIND",
            help="workloads, nodes, clusterqueues, ...; `queuectl get` lists all kinds.",
            autocompletion=complete.kinds,
        ),
    ] = None,
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="NAME",
            help="One object; omit it for a list. For domains, the Topology. For commands, the workload or an ID.",
            autocompletion=complete.names,
        ),
    ] = None,
    namespace: Namespace = None,
    everywhere: Everywhere = False,
    output: Form = ListFormat.TABLE,
    queue: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Only workloads of this LocalQueue.",
            autocompletion=complete.local_queues,
        ),
    ] = None,
    cluster_queue: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Only workloads or events of this ClusterQueue.",
            autocompletion=complete.cluster_queues,
        ),
    ] = None,
    state: Annotated[
        list[str] | None,
        typer.Option(
            metavar="STATE,...",
            help="Only workloads or commands in these states. Can be repeated.",
            autocompletion=complete.states,
        ),
    ] = None,
    every: Annotated[
        bool,
        typer.Option(
            "--all",
            help="Also list finished workloads, the same as --state with all states; or the subscriptions of all users.",
        ),
    ] = False,
    user: Annotated[
        str | None,
        typer.Option(
            metavar="USER", help="Only workloads of this user.", autocompletion=complete.users
        ),
    ] = None,
    mine: Annotated[bool, typer.Option("--mine", help="Only your own workloads.")] = False,
    selector: Selector = None,
    sort: Annotated[
        str | None,
        typer.Option(
            metavar="KEY",
            help="Sort workloads by name, state, clusterQueue, user, gpus, priority, queuedAt, since or urgency; "
            "-KEY reverses the order. Default: -urgency: pending ones first, then admitted ones; of each, the newest first.",
        ),
    ] = None,
    by: Annotated[
        str | None, typer.Option(metavar="USER", help="Only commands of this user.")
    ] = None,
    job_kind: Annotated[
        str | None,
        typer.Option(
            "--kind",
            metavar="KIND",
            help="Only workloads of this kind of job, for example Job or PyTorchJob.",
        ),
    ] = None,
    domain: Annotated[
        list[str] | None,
        typer.Option(
            metavar="LABEL=VALUE",
            help="Only nodes in this domain. Can be repeated; a node must be in all.",
        ),
    ] = None,
    free: Annotated[
        float | None,
        typer.Option(
            metavar="GPUS", min=0, help="Only open nodes with at least this many free GPUs."
        ),
    ] = None,
    search: Annotated[
        str | None,
        typer.Option(
            metavar="TEXT", help="Only nodes with this in their name or in the name of a gang."
        ),
    ] = None,
    summary: Annotated[
        bool,
        typer.Option("--summary", help="Sum up the nodes of each ResourceFlavor and GPU model."),
    ] = False,
    watch: Annotated[
        bool,
        typer.Option(
            "--watch", "-w", help="Watch workloads or events: print changes as they happen."
        ),
    ] = False,
    last: Annotated[
        int,
        typer.Option(
            metavar="COUNT",
            min=1,
            max=10_000,
            help="Only the newest COUNT events, decisions or commands. Filters select from the newest COUNT events.",
        ),
    ] = 100,
    no_headers: NoHeaders = False,
    server: Server = DEFAULT_SERVER,
) -> None:
    """List the objects of a kind, read one of them, or watch them."""
    if kind is None:
        raise CommandFailed(f"name a kind:\n{_kinds()}", Exit.BAD_INPUT)
    if kind.lower() in ("pods", "pod", "po"):
        raise CommandFailed("to list pods, use `kubectl get pods`", Exit.BAD_INPUT)
    other = plural_of(kind)
    config = None if other else config_kind(kind, dict.fromkeys(_PLURALS.values()))
    plural = other or (config.plural if config else "workloads")
    if everywhere and (namespace is not None or name is not None):
        raise CommandFailed("--all-namespaces excludes a name and --namespace", Exit.BAD_INPUT)
    filters = {
        "queue": queue,
        "cluster_queue": cluster_queue,
        "state": states_of(plural, state or ()),
        "all": every or None,
        "user": user,
        "mine": mine or None,
        "label_selector": selector,
        "sort": sort,
        "by": by,
        "kind": job_kind,
        "domain": domain,
        "free": free,
        "search": search,
        "summary": summary or None,
    }
    given = {option: value for option, value in filters.items() if value not in (None, [])}
    _check(plural, name, {**given, "watch": True} if watch else given)
    if every and state:
        raise CommandFailed("--all excludes --state", Exit.BAD_INPUT)
    if summary and len(given) > 1:
        raise CommandFailed("--summary excludes the filters of nodes", Exit.BAD_INPUT)
    if mine and user is not None:
        raise CommandFailed("--mine excludes --user", Exit.BAD_INPUT)
    with connect(server, waits=watch) as client:
        sent = {
            option: given[option] for option in given if option not in ("all", "mine", "summary")
        }
        if mine:
            sent["user"] = caller_of(client)
        wanted = ListingOptions(
            *(name, namespace, output, sent, watch, last),
            headers=not no_headers,
            every=every,
            summary=summary,
        )
        if config is not None:
            configuration(client, config, wanted)
        else:
            LISTINGS[plural](client, wanted)


def plurals() -> dict[str, list[str]]:
    """The kinds of lists, with their other names."""
    kinds = {WORKLOAD_WORDS[0]: [*WORKLOAD_WORDS[1:]]}
    for short, plural in _PLURALS.items():
        kinds.setdefault(plural, []).append(short)
    for config in CONFIG_KINDS:
        kinds[config.plural] = [config.singular, *config.aliases]
    return kinds


def plural_of(word: str) -> str | None:
    """The kind of a list that is neither of workloads nor of configuration."""
    return _PLURALS.get(word.lower())


def _kinds() -> str:
    """A line for each kind, with its other names."""
    return "\n".join(
        f"  {plural:<26} {', '.join(each for each in names if each != plural)}".rstrip()
        for plural, names in plurals().items()
    )


def _check(plural: str, name: str | None, options: dict[str, Any]) -> None:
    """Refuse options without effect."""
    for option in options:
        lists = _LISTS.get(option)
        if lists is None:
            if plural != "workloads" and (plural, name is None) != ("commands", False):
                raise CommandFailed(
                    "--kind is for workloads, and for the commands of a workload", Exit.BAD_INPUT
                )
        elif plural not in lists or name is not None:
            typed = "selector" if option == "label_selector" else option.replace("_", "-")
            what = " and ".join(lists)
            raise CommandFailed(f"--{typed} is for lists of {what}", Exit.BAD_INPUT)
    if plural == "pastuse" and name is not None:
        raise CommandFailed("pastuse: lists all entries; omit the name", Exit.BAD_INPUT)
    if plural in ("receivers", "subscriptions") and name is not None:
        raise CommandFailed(f"{plural}: lists all of them; omit the name", Exit.BAD_INPUT)
    if plural == "unmanaged" and name is not None:
        raise CommandFailed("unmanaged: lists all pods; omit the name", Exit.BAD_INPUT)
    if plural == "events" and name is not None:
        raise CommandFailed(
            f"events: use `{program.called()} history {name}` for the events of one workload",
            Exit.BAD_INPUT,
        )


# ---- Watches

_ONE_BY_ONE: Final = 25
"""If more workloads change at once, the client requests the list."""
Printer = Callable[[Iterable[Json]], None]


def printer(
    options: ListingOptions, columns: Sequence[Column], named: Callable[[Json], str]
) -> Printer:
    """A function that prints objects in this format: JSON as a line each, YAML as documents."""
    output = options.output
    match output:
        case ListFormat.JSON:
            return lambda items: _write(json.dumps(i, ensure_ascii=False) + "\n" for i in items)
        case ListFormat.YAML:
            return _yaml
        case ListFormat.NAME:
            return lambda items: _write(named(item) + "\n" for item in items)
        case _:
            wide = output is ListFormat.WIDE
            return GrowingTable(columns, wide=wide, headers=options.headers).add


def _write(lines: Iterable[str]) -> None:
    sys.stdout.writelines(lines)
    sys.stdout.flush()


def _yaml(workloads: Iterable[Json]) -> None:
    for item in workloads:
        sys.stdout.write("---\n")
        emit_yaml(item)
    sys.stdout.flush()


def watch_events(client: Client, show: Printer, after: int, **filters: Any) -> None:
    """Print the events above an id, as they arrive."""
    for batch in events.gathered(client.watch(after, **filters)):
        show([block.data for block in batch if block.event == "step"])


def watch_workloads(
    client: Client,
    show: Printer,
    namespace: str | None = None,
    cluster_queue: str | None = None,
    *,
    every: bool = False,
    **filters: Any,
) -> None:
    """Print the list, then each workload that changes. Several changes in one batch are printed once.

    Without ``every``, the list has no finished workloads; their last change is printed. The list is printed again when the database
    was restored.
    """
    scope = {"namespace": namespace, "cluster_queue": cluster_queue}
    position = client.position()  # before the list, so that no change is lost in between
    listed = filters if every else {"state": UNFINISHED, **filters}
    items = list(workloads(client, **scope, **listed))
    show(items if "sort" in filters else by_urgency(items))
    for batch in events.gathered(client.watch(position, **scope)):
        steps = [block.data for block in batch if block.event == "step"]
        uids = {step["uid"] for step in steps}
        if any(block.event == "reset" for block in batch):
            show(list(workloads(client, **scope, **listed)))
        elif len(uids) > _ONE_BY_ONE or (uids and "label_selector" in filters):
            found = _listed(client, steps, {**scope, **filters})
            show([item for item in found if item["uid"] in uids])
        else:
            show(_still(client, uids, filters))


def _listed(client: Client, steps: Sequence[Json], filters: dict[str, Any]) -> Iterator[Json]:
    """The workloads that match the filters. Of finished ones, only those that have finished since the first of the steps."""
    states = filters.get("state") or (*UNFINISHED, FINISHED)
    unfinished = [state for state in states if state != FINISHED]
    if unfinished:
        yield from workloads(client, **{**filters, "state": unfinished})
    if FINISHED in states:
        first = min(map(_time, steps))
        newest = {**filters, "state": FINISHED, "sort": "-since"}
        for item in workloads(client, **newest):
            if datetime.fromisoformat(item["since"]) < first:
                return
            yield item


def _time(step: Json) -> datetime:
    return datetime.fromisoformat(step["at"])


def _still(client: Client, uids: Iterable[str], filters: dict[str, Any]) -> list[Json]:
    """The workloads that still exist and match the filters."""
    matching = []
    for uid in uids:
        try:
            item = client.get(f"{PREFIX}/workloads/{uid}")
        except (ObjectNotFound, NotPermitted):
            continue
        states = filters.get("state")
        same = all(filters.get(name) in (None, item[name]) for name in ("queue", "kind", "user"))
        if same and (not states or item["state"] in states):
            matching.append(item)
    return matching
