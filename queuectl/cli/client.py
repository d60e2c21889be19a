"""The REST API as the client commands see it: paths in, decoded JSON out, problems as exit codes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Annotated, Any, Final
from urllib.parse import quote, urlsplit

import httpx2
import typer

from queuectl.api.kinds import CONFIG_KINDS, PREFIX, ConfigKind
from queuectl.cli.errors import CommandFailed, Exit

Json = dict[str, Any]
TIMEOUT_SECONDS: Final = 30.0
PAGE: Final = 500

Server = Annotated[
    str, typer.Option("--server", envvar="QUEUECTL_SERVER", help="Address of queuectl's REST API.")
]
DEFAULT_SERVER: Final = "http://127.0.0.1:8000"
Namespace = Annotated[str | None, typer.Option("--namespace", "-n", help="Namespace.")]

_CODES: Final = {
    400: Exit.BAD_INPUT,
    404: Exit.NOT_FOUND,
    409: Exit.CONFLICT,
    412: Exit.CONFLICT,
    413: Exit.BAD_INPUT,
    415: Exit.BAD_INPUT,
    422: Exit.BAD_INPUT,
}


class Refused(CommandFailed):
    """The server answered with a problem. ``errors`` are its fields and reasons."""

    def __init__(self, problem: Mapping[str, Any], status: int) -> None:
        super().__init__(
            str(problem.get("detail") or problem.get("title") or f"HTTP {status}"),
            _CODES.get(status, Exit.FAILURE),
        )
        self.errors: list[Json] = list(problem.get("errors") or [])


class Client:
    """One connection to the server. Methods raise Refused, or CommandFailed when nobody answers."""

    def __init__(self, http: httpx2.Client) -> None:
        self._http = http

    def get(self, path: str, **query: object) -> Json:
        """One answer. Query parameters that are None are left out; lists are repeated."""
        params = {name: value for name, value in query.items() if value is not None}
        return self._send("GET", path, params=params)

    def put(self, path: str, document: Json) -> Json:
        return self._send("PUT", path, json=document)

    def post(self, path: str, body: Json) -> Json:
        return self._send("POST", path, json=body)

    def workloads(self, **query: object) -> Iterator[Json]:
        """All workloads that match, page by page."""
        cursor: object = None
        while True:
            page = self.get(f"{PREFIX}/workloads", limit=PAGE, cursor=cursor, **query)
            yield from page["items"]
            cursor = page["nextCursor"]
            if cursor is None:
                return

    def _send(self, method: str, path: str, **extra: Any) -> Json:
        try:
            response = self._http.request(method, path, **extra)
        except httpx2.TransportError as error:
            where = self._http.base_url
            raise CommandFailed(
                f"no answer from {where} ({error}): is `queuectl serve` running there? "
                "Another address is given by --server or QUEUECTL_SERVER."
            ) from error
        body = _decoded(response)
        if response.is_error:
            raise Refused(body, response.status_code)
        return body


def _decoded(response: httpx2.Response) -> Json:
    try:
        body = response.json()
    except ValueError:
        body = None
    if not isinstance(body, dict):
        raise CommandFailed(f"{response.url} answered with no JSON: is it a queuectl server?")
    return body


@contextmanager
def connect(server: str) -> Iterator[Client]:
    """A client for the server at this address."""
    address = urlsplit(server)
    if address.scheme not in ("http", "https") or not address.netloc:
        message = f"--server {server!r} is no address like {DEFAULT_SERVER}"
        raise CommandFailed(message, Exit.BAD_INPUT)
    # The address is this machine's own: proxies of the environment are not for it.
    with httpx2.Client(base_url=server, timeout=TIMEOUT_SECONDS, trust_env=False) as http:
        yield Client(http)


def config_kind(word: str) -> ConfigKind | None:
    """The kind a person means by ``ClusterQueue``, ``clusterqueues``, ``cq``...; None for a workload.

    Raises:
        CommandFailed: no kind is called so.
    """
    lowered = word.lower()
    if lowered in ("workload", "workloads", "wl"):
        return None
    for kind in CONFIG_KINDS:
        if lowered in (kind.singular, kind.plural, *kind.aliases):
            return kind
    known = ", ".join(["workloads", *(kind.plural for kind in CONFIG_KINDS)])
    raise CommandFailed(f"{word!r} is no kind; there are {known}", Exit.BAD_INPUT)


def workload_path(name: str, namespace: str | None) -> str:
    """Path of a workload given as ``name`` or ``namespace/name``.

    Raises:
        CommandFailed: both name a namespace, and not the same.
    """
    given, _, bare = name.rpartition("/")
    if given and namespace and given != namespace:
        message = f"{name!r} and --namespace {namespace} name different namespaces"
        raise CommandFailed(message, Exit.BAD_INPUT)
    scope = given or namespace or "default"
    return f"{PREFIX}/namespaces/{quote(scope, safe='')}/workloads/{quote(bare, safe='')}"


def config_path(kind: ConfigKind, name: str, namespace: str | None) -> str:
    """Path of a configuration object."""
    scope = quote(namespace or "default", safe="") if kind.namespaced else ""
    return kind.path(scope, quote(name, safe=""))
