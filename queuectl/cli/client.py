"""The REST API as the client commands see it: paths in, decoded JSON out, problems as exit codes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Annotated, Any, Final
from urllib.parse import quote, urlsplit

import httpx2
import typer

from queuectl.api.kinds import CONFIG_KINDS, PREFIX, ConfigKind
from queuectl.cli import connection, credentials, tokenrequest
from queuectl.cli.errors import CommandFailed, Exit

Json = dict[str, Any]
TIMEOUT_SECONDS: Final = 30.0
SILENCE_SECONDS: Final = 45.0  # of a stream that says every 15 s that it lives
PAGE: Final = 500

Server = Annotated[
    str, typer.Option("--server", envvar="QUEUECTL_SERVER", help="Address of queuectl's REST API.")
]
DEFAULT_SERVER: Final = "http://127.0.0.1:8000"
Namespace = Annotated[str | None, typer.Option("--namespace", "-n", help="Namespace.")]

_CODES: Final = {
    400: Exit.BAD_INPUT,
    401: Exit.NOT_ALLOWED,
    403: Exit.NOT_ALLOWED,
    404: Exit.NOT_FOUND,
    409: Exit.CONFLICT,
    412: Exit.CONFLICT,
    413: Exit.BAD_INPUT,
    415: Exit.BAD_INPUT,
    422: Exit.BAD_INPUT,
}


class Refused(CommandFailed):
    """The server answered with a problem. ``errors`` are its fields and reasons, ``blockers`` what keeps it."""

    def __init__(self, problem: Mapping[str, Any], status: int) -> None:
        super().__init__(
            str(problem.get("detail") or problem.get("title") or f"HTTP {status}"),
            _CODES.get(status, Exit.FAILURE),
        )
        self.errors: list[Json] = list(problem.get("errors") or [])
        self.blockers: list[str] = list(problem.get("blockers") or [])


class Client:
    """One connection to the server. Methods raise Refused, or CommandFailed when nobody answers."""

    def __init__(self, http: httpx2.Client) -> None:
        self._http = http

    def get(self, path: str, /, **query: object) -> Json:
        """One answer. Query parameters that are None are left out; lists are repeated."""
        params = {name: value for name, value in query.items() if value is not None}
        return self._send("GET", path, params=params)

    def text(self, path: str) -> str:
        """An answer that is no JSON."""
        return self._answer("GET", path).text

    def put(self, path: str, document: Json) -> Json:
        return self._send("PUT", path, json=document)

    def post(self, path: str, body: Json, patience: float = TIMEOUT_SECONDS) -> Json:
        """``patience``: seconds until the server must have answered."""
        return self._send("POST", path, json=body, timeout=patience)

    def delete(self, path: str, version: str | None = None) -> None:
        """Delete one object. ``version``: only if it is still of that one; None = whatever it is."""
        headers = {"If-Match": f'"{version}"'} if version is not None else {}
        self._answer("DELETE", path, headers=headers)

    def workloads(self, **query: object) -> Iterator[Json]:
        """All workloads that match."""
        return self.pages(f"{PREFIX}/workloads", **query)

    def pages(self, path: str, /, **query: object) -> Iterator[Json]:
        """All items of a list, page by page."""
        for page in self.answers(path, **query):
            yield from page["items"]

    def answers(self, path: str, /, **query: object) -> Iterator[Json]:
        """The pages themselves."""
        cursor: object = None
        while True:
            page = self.get(path, limit=PAGE, cursor=cursor, **query)
            yield page
            cursor = page["nextCursor"]
            if cursor is None:
                return

    def following(self, path: str, /, **query: object) -> Iterator[Json]:
        """All items of a list that is told from its beginning, page by page."""
        after: object = 0
        while after is not None:
            page = self.get(path, limit=PAGE, after=after, **query)
            yield from page["items"]
            after = page["nextAfter"]

    def newest_first(self, path: str, most: int, /, **query: object) -> Iterator[Json]:
        """The newest items, at most so many, of a list that is told from its end."""
        before: object = None
        while most > 0:
            page = self.get(path, limit=min(most, PAGE), before=before, **query)
            yield from page["items"]
            most, before = most - len(page["items"]), page["nextBefore"]
            if before is None:
                return

    @contextmanager
    def lines(self, path: str, /, **query: object) -> Iterator[Iterator[str]]:
        """The lines of a stream, as they come."""
        params: Any = {name: value for name, value in query.items() if value is not None}
        streaming = self._http.stream("GET", path, params=params, timeout=SILENCE_SECONDS)
        with self._heard(), streaming as response:
            _check(response)
            yield response.iter_lines()

    def _send(self, method: str, path: str, **extra: Any) -> Json:
        return _decoded(self._answer(method, path, **extra))

    def _answer(self, method: str, path: str, **extra: Any) -> httpx2.Response:
        with self._heard():
            response = self._http.request(method, path, **extra)
        _check(response)
        return response

    @contextmanager
    def _heard(self) -> Iterator[None]:
        """Where nobody answers, say so."""
        try:
            yield
        except httpx2.TransportError as error:
            raise _silence(self._http.base_url, error) from error


def _check(response: httpx2.Response) -> None:
    """Raise Refused for a problem."""
    if response.is_error:
        response.read()
        raise Refused(_decoded(response), response.status_code)


def _silence(where: httpx2.URL, error: httpx2.TransportError) -> CommandFailed:
    """What to look at then."""
    hint = "is `queuectl serve` running there? Another address is given by --server or QUEUECTL_SERVER."
    if "certificate verify failed" in str(error):
        hint = "name the authority of its certificate by --ca-file or QUEUECTL_CA_FILE."
    return CommandFailed(f"no answer from {where} ({error}): {hint}")


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
    own = credentials.loopback(address.hostname or "")
    with httpx2.Client(
        base_url=server,
        timeout=TIMEOUT_SECONDS,
        auth=credentials.TokenAuth(_token),
        verify=connection.trusted(secure=address.scheme == "https"),
        trust_env=not own,  # proxies of the environment are not for this machine
    ) as http:
        yield Client(http)


def _token() -> str:
    """Raises CommandFailed when there is none."""
    path, account = connection.means().token_file, connection.means().service_account
    if path and account:
        message = "--token-file and --as-serviceaccount both say who you are: give one of them"
        raise CommandFailed(message, Exit.BAD_INPUT)
    if account:
        return tokenrequest.made_for(account, connection.context())
    return credentials.from_file(path) if path else credentials.of_context(connection.context())


def config_kind(word: str, others: Iterable[str] = ()) -> ConfigKind | None:
    """The kind a person means by ``ClusterQueue``, ``clusterqueues``, ``cq``...; None for a workload.

    Args:
        word: what was typed.
        others: what else there is, for the message.

    Raises:
        CommandFailed: no kind is called so.
    """
    lowered = word.lower()
    if lowered in ("workload", "workloads", "wl"):
        return None
    for kind in CONFIG_KINDS:
        if lowered in (kind.singular, kind.plural, *kind.aliases):
            return kind
    known = ", ".join(["workloads", *others, *(kind.plural for kind in CONFIG_KINDS)])
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
    scope = given or namespace or connection.default_namespace()
    return f"{PREFIX}/namespaces/{quote(scope, safe='')}/workloads/{quote(bare, safe='')}"


def config_path(kind: ConfigKind, name: str, namespace: str | None) -> str:
    """Path of a configuration object."""
    scope = (namespace or connection.default_namespace()) if kind.namespaced else ""
    return kind.path(quote(scope, safe=""), quote(name, safe=""))
