"""A client of the REST API: paths in, decoded JSON out, problems as exit codes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from difflib import get_close_matches
from typing import Annotated, Any, Final
from urllib.parse import quote, urlsplit

import httpx2
import typer

from queuectl.cli import connection, credentials, tokenrequest
from queuectl.cli.errors import CommandFailed, Exit
from queuectl.objects.configuration.config_kinds import CONFIG_KINDS, PREFIX, ConfigKind

Json = dict[str, Any]
TIMEOUT_SECONDS: Final = 30.0
SILENCE_SECONDS: Final = 45.0  # of a stream, which sends a sign of life every 15 s
PAGE: Final = 500

Server = Annotated[
    str,
    typer.Option("--server", metavar="URL", envvar="QUEUECTL_SERVER", help=connection.SERVER_HELP),
]
DEFAULT_SERVER: Final = "http://127.0.0.1:8000"
Namespace = Annotated[
    str | None,
    typer.Option(
        "--namespace",
        "-n",
        metavar="NAME",
        help="Namespace. Default: that of the kubeconfig's context; for a list, all namespaces.",
    ),
]

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

_READ_CA = (
    r"kubectl -n queuectl-system get configmap queuectl-ca -o 'jsonpath={.data.ca\.crt}' > ca.crt"
)


class RequestRefused(CommandFailed):
    """The server answered with a problem.

    Attributes:
        errors: the fields that are wrong, with reasons.
        blockers: why the server is not ready.
    """

    def __init__(self, problem: Mapping[str, Any], status: int) -> None:
        super().__init__(
            str(problem.get("detail") or problem.get("title") or f"HTTP {status}"),
            _CODES.get(status, Exit.FAILURE),
        )
        self.errors: list[Json] = list(problem.get("errors") or [])
        self.blockers: list[str] = list(problem.get("blockers") or [])


class ServerClient:
    """A connection to the server. Methods raise RequestRefused, or CommandFailed when the server does not answer."""

    def __init__(self, http: httpx2.Client, tls_server_name: str | None = None) -> None:
        """``tls_server_name``: the name in the server's certificate; None = the host of the address."""
        self._http = http
        self._extensions = {"sni_hostname": tls_server_name} if tls_server_name else {}

    def get(self, path: str, /, **query: object) -> Json:
        """A JSON answer. Query parameters that are None are left out; a list repeats its parameter."""
        params = {name: value for name, value in query.items() if value is not None}
        return self._send("GET", path, params=params)

    def text(self, path: str, /, **query: object) -> str:
        """An answer that is not JSON. Query parameters that are None are left out."""
        params = {name: value for name, value in query.items() if value is not None}
        return self._answer("GET", path, params=params).text

    def put(self, path: str, document: Json) -> Json:
        return self._send("PUT", path, json=document)

    def post(self, path: str, body: Json, timeout: float = TIMEOUT_SECONDS) -> Json:
        """``timeout``: seconds in which the server must answer."""
        return self._send("POST", path, json=body, timeout=timeout)

    def delete(self, path: str, version: str | None = None) -> None:
        """Delete one object. ``version``: the version that it must have; None = any."""
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
        """All items of a list that begins with the oldest, page by page."""
        after: object = 0
        while after is not None:
            page = self.get(path, limit=PAGE, after=after, **query)
            yield from page["items"]
            after = page["nextAfter"]

    def newest_first(self, path: str, most: int, /, **query: object) -> Iterator[Json]:
        """At most ``most`` items of a list that begins with the newest."""
        before: object = None
        while most > 0:
            page = self.get(path, limit=min(most, PAGE), before=before, **query)
            yield from page["items"]
            most, before = most - len(page["items"]), page["nextBefore"]
            if before is None:
                return

    @contextmanager
    def lines(self, path: str, /, **query: object) -> Iterator[Iterator[str]]:
        """The lines of a stream, as they arrive."""
        params: Any = {name: value for name, value in query.items() if value is not None}
        streaming = self._http.stream(
            "GET", path, params=params, timeout=SILENCE_SECONDS, extensions=self._extensions
        )
        with self._transport_errors(), streaming as response:
            _check(response)
            yield response.iter_lines()

    def _send(self, method: str, path: str, **extra: Any) -> Json:
        return _decoded(self._answer(method, path, **extra))

    def _answer(self, method: str, path: str, **extra: Any) -> httpx2.Response:
        with self._transport_errors():
            response = self._http.request(method, path, extensions=self._extensions, **extra)
        _check(response)
        return response

    @contextmanager
    def _transport_errors(self) -> Iterator[None]:
        """Turn an error of the connection into CommandFailed."""
        try:
            yield
        except httpx2.TransportError as error:
            raise _no_answer(self._http.base_url, error) from error


def _check(response: httpx2.Response) -> None:
    """Raise RequestRefused for a problem."""
    if response.is_error:
        response.read()
        raise RequestRefused(_decoded(response), response.status_code)


def _no_answer(where: httpx2.URL, error: httpx2.TransportError) -> CommandFailed:
    """The error, with what the user can do about it."""
    why = str(error)
    if "mismatch" in why or "not valid for" in why:
        hint = "give the name in its certificate with --tls-server-name or QUEUECTL_TLS_SERVER_NAME"
    elif "certificate verify failed" in why:
        hint = f"give the CA of its certificate with --ca-file or QUEUECTL_CA_FILE. If queuectl created the certificate: {_READ_CA}"
    elif isinstance(error, httpx2.RemoteProtocolError) and where.scheme == "http":
        hint = "if it uses TLS, give an https:// address with --server or QUEUECTL_SERVER"
    else:
        hint = "give the address of the REST API with --server or QUEUECTL_SERVER"
    return CommandFailed(f"no answer from {where} ({error}): {hint}")


def _decoded(response: httpx2.Response) -> Json:
    try:
        body = response.json()
    except ValueError:
        body = None
    if not isinstance(body, dict):
        raise CommandFailed(
            f"{response.url}: the answer is not JSON, so it is not from queuectl: check the address of the REST API"
        )
    return body


@contextmanager
def connect(server: str) -> Iterator[ServerClient]:
    """A client for the server at this address."""
    address = urlsplit(server)
    if address.scheme not in ("http", "https") or not address.netloc:
        message = f"--server {server!r}: not an address like {DEFAULT_SERVER}"
        raise CommandFailed(message, Exit.BAD_INPUT)
    own = credentials.loopback(address.hostname or "")
    with httpx2.Client(
        base_url=server,
        timeout=TIMEOUT_SECONDS,
        auth=credentials.TokenAuth(_token),
        verify=connection.trusted(secure=address.scheme == "https"),
        trust_env=not own,  # a proxy of the environment is not for this machine
    ) as http:
        yield ServerClient(http, connection.connection_options().tls_server_name)


def _token() -> str:
    """The token of the user. Raises CommandFailed when there is none."""
    path, account = (
        connection.connection_options().token_file,
        connection.connection_options().service_account,
    )
    if path and account:
        message = "--token-file and --as-serviceaccount exclude each other"
        raise CommandFailed(message, Exit.BAD_INPUT)
    if account:
        return tokenrequest.made_for(account, connection.context())
    return credentials.from_file(path) if path else credentials.of_context(connection.context())


def config_kind(word: str, other_words: Iterable[str] = ()) -> ConfigKind | None:
    """The configuration kind of a word such as ``ClusterQueue``, ``clusterqueues`` or ``cq``; None for a workload.

    Args:
        word: the kind as the user typed it.
        other_words: other kinds of the command, for the message.

    Raises:
        CommandFailed: there is no such kind.
    """
    lowered = word.lower()
    if lowered in ("workload", "workloads", "wl", "job", "jobs"):
        return None
    for kind in CONFIG_KINDS:
        if lowered in (kind.singular, kind.plural, *kind.aliases):
            return kind
    words = ["workloads", *other_words, *(kind.plural for kind in CONFIG_KINDS)]
    near = get_close_matches(lowered, words, cutoff=0.7)
    meant = f"did you mean {near[0]}?" if near else "`queuectl get` lists the kinds"
    raise CommandFailed(f"unknown kind {word!r}; {meant}", Exit.BAD_INPUT)


def workload_path(name: str, namespace: str | None) -> str:
    """Path of a workload given as ``name`` or ``namespace/name``.

    Raises:
        CommandFailed: the name and ``namespace`` name different namespaces.
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
