"""The client of a command, and the names that users give to kinds and objects."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from difflib import get_close_matches
from typing import Annotated, Any, Final

import typer

from queuectl.cli import complete, connection, program
from queuectl.cli.errors import CommandFailed, Exit
from queuectl.client import options, requests
from queuectl.client.client import Client
from queuectl.client.errors import NotPermitted
from queuectl.client.requests import by_cursor, segment
from queuectl.client.retries import RETRIES
from queuectl.objects.configuration.config_kinds import CONFIG_KINDS, PREFIX, ConfigKind

Json = dict[str, Any]

Server = Annotated[
    str,
    typer.Option("--server", metavar="URL", envvar="QUEUECTL_SERVER", help=connection.SERVER_HELP),
]
DEFAULT_SERVER: Final = options.DEFAULT_SERVER
WORKLOAD_WORDS: Final = ("workloads", "workload", "wl", "jobs", "job")
"""Words for the kind of workloads, the plural first."""
Namespace = Annotated[
    str | None,
    typer.Option(
        "--namespace",
        "-n",
        metavar="NAME",
        help="Namespace. Default: that of the kubeconfig's context, or of the pod without a kubeconfig; for a list, all namespaces.",
        autocompletion=complete.namespaces,
    ),
]


def connect(server: str, *, waits: bool = False) -> Client:
    """A client for the server at this address, with the connection options of the command.

    Args:
        server: the address.
        waits: the command sends a request again that fails, if that has no further effect. Otherwise the user sees the error at once.

    Raises:
        ClientError: an option is wrong.
    """
    chosen = replace(connection.connection_options(), server=server)
    return Client(options=chosen, retries=RETRIES if waits else 0)


def workloads(client: Client, **filters: object) -> Iterator[Json]:
    """All workloads that match, as objects to print. By name, unless a filter has another order."""
    return client.objects(by_cursor(f"{PREFIX}/workloads", **{"sort": "name", **filters}))


def config_kind(word: str, other_words: Iterable[str] = ()) -> ConfigKind | None:
    """The configuration kind of a word such as ``ClusterQueue``, ``clusterqueues`` or ``cq``; None for a workload.

    Args:
        word: the kind as the user typed it.
        other_words: other kinds of the command, for the message.

    Raises:
        CommandFailed: no such kind exists.
    """
    lowered = word.lower()
    if lowered in WORKLOAD_WORDS:
        return None
    for kind in CONFIG_KINDS:
        if lowered in (kind.singular, kind.plural, *kind.aliases):
            return kind
    words = [*WORKLOAD_WORDS, *other_words, *(kind.plural for kind in CONFIG_KINDS)]
    near = get_close_matches(lowered, words, cutoff=0.7)
    meant = f"did you mean {near[0]}?" if near else "`queuectl get` lists the kinds"
    if "/" in word:
        meant = "write kind and name as two words"
    raise CommandFailed(f"unknown kind {word!r}; {meant}", Exit.BAD_INPUT)


def workload_ref(name: str, namespace: str | None) -> str:
    """``namespace/name`` of a workload given as ``name`` or ``namespace/name``.

    Raises:
        CommandFailed: it has another form, or it and ``namespace`` name different namespaces.
    """
    given, _, bare = name.rpartition("/")
    kind = given.count("/") == 1 or given != given.lower()  # a namespace has no upper-case letters
    if "/" in given or not bare or kind:
        hint = ": leave out the kind" if bare and kind else ""
        raise CommandFailed(f"{name!r} is neither NAME nor NAMESPACE/NAME{hint}", Exit.BAD_INPUT)
    if given and namespace and given != namespace:
        message = f"{name!r} and --namespace {namespace} name different namespaces"
        raise CommandFailed(message, Exit.BAD_INPUT)
    return f"{given or namespace or connection.default_namespace()}/{bare}"


def workload_path(name: str, namespace: str | None) -> str:
    """Path of such a workload. Raises CommandFailed."""
    return requests.workload_path(workload_ref(name, namespace), "")


def read_config(client: Client, kind: ConfigKind, path: str, **query: object) -> Json:
    """Configuration of a kind.

    Raises:
        CommandFailed: the user does not have the right; for ClusterQueues, the message names the command that needs less.
    """
    try:
        body: Json = client.get(path, **query)
    except NotPermitted as error:
        if kind.kind != "ClusterQueue":
            raise
        advice = f"`{program.called()} get clusterqueues` lists the use of your queues"
        raise CommandFailed(f"{error}; {advice}", Exit.NOT_ALLOWED) from error
    return body


def config_path(kind: ConfigKind, name: str, namespace: str | None) -> str:
    """Path of a configuration object."""
    scope = (namespace or connection.default_namespace()) if kind.namespaced else ""
    return kind.path(segment(scope), segment(name))
