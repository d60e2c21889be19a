"""A small synchronous client of the API server, to set up a cluster and to read it in tests and the demo.

The controller has another client, in `queuectl.cluster`.
"""

from __future__ import annotations

import contextlib
import ssl
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx2

from queuectl.localcluster import yaml_files
from queuectl.localcluster.certificates import KeyPair, write_secret
from queuectl.localcluster.errors import ApiServerError, LocalClusterError, UnreachableError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

Document = dict[str, Any]
"""A Kubernetes object as decoded JSON."""

JSON = "application/json"
MERGE_PATCH = "application/merge-patch+json"
FIELD_MANAGER = "queuectl-localcluster"
_DISCOVERY = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
NO_TRUSTED_CA = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
"""A TLS context without CAs, for clients of servers without TLS."""
_TIMEOUT_SECONDS = 30.0
START_SECONDS = 240.0
"""The limit for anything to come up. It is long, because two cores can run several clusters. A component that ends is noticed at once."""
_CONNECTIONS = 16


class Client:
    """Requests to one API server as one user.  Safe to use from several threads.

    Paths belong to the Kubernetes API, such as `/api/v1/nodes/n0`.  Every method raises `ApiServerError` when the
    server refuses, and `UnreachableError` when it does not answer.
    """

    def __init__(
        self, server: str, authority: bytes, identity: KeyPair | str | None = None
    ) -> None:
        """Make a client.

        Args:
            server: URL of the API server.
            authority: The CA of the server, as PEM.
            identity: A client certificate, a bearer token, or None for an anonymous client.
        """
        context = tls(authority, identity if isinstance(identity, KeyPair) else None)
        headers = {"authorization": f"Bearer {identity}"} if isinstance(identity, str) else {}
        limits = httpx2.Limits(
            max_connections=2 * _CONNECTIONS, max_keepalive_connections=_CONNECTIONS
        )
        self._http = httpx2.Client(
            base_url=server,
            verify=context,
            headers=headers,
            timeout=_TIMEOUT_SECONDS,
            limits=limits,
            trust_env=False,
        )
        self._plurals: dict[tuple[str, str], tuple[str, bool]] = {}

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def get(self, path: str, **query: str) -> Document:
        """Read an object or a list."""
        return self._request("GET", path, query=query)

    def text(self, path: str) -> str:
        """Read a path with a plain text answer, such as `/readyz` or `/metrics`."""
        return self._send("GET", path, None, {}, {}).text

    def create(self, path: str, document: Mapping[str, Any], **query: str) -> Document:
        """Create an object in the collection at `path`. `query`: parameters of the request, such as `dryRun`."""
        return self._request("POST", path, document, query=query)

    def send(self, method: str, path: str, text: str, content_type: str = JSON) -> None:
        """Write an object whose JSON is too deeply nested for the encoder and the decoder of Python. The answer is not decoded."""
        self._send(method, path, text, {"content-type": content_type}, {})

    def patch(self, path: str, change: Mapping[str, Any]) -> Document:
        """Change an object by a JSON merge patch."""
        return self._request("PATCH", path, change, content_type=MERGE_PATCH)

    def delete(self, path: str, *, missing_ok: bool = False, **options: Any) -> None:
        """Delete an object.

        Args:
            path: The object.
            missing_ok: Do not fail if it does not exist.
            **options: Fields of DeleteOptions, such as `propagationPolicy="Foreground"`.
        """
        try:
            self._send("DELETE", path, options or None, {"content-type": JSON}, {})
        except ApiServerError as error:
            if not (missing_ok and error.status == 404):
                raise

    def exists(self, path: str) -> bool:
        """Whether an object exists."""
        try:
            self.get(path)
        except ApiServerError as error:
            if error.status == 404:
                return False
            raise
        return True

    def discovers(self, group: str) -> bool:
        """Whether the server's discovery has an API group. A new group is served before discovery has it."""
        answer = self._send("GET", "/apis", None, {"accept": _DISCOVERY}, {}).json()
        return any(one["metadata"]["name"] == group for one in answer["items"])

    def apply(self, *documents: Mapping[str, Any]) -> list[Document]:
        """Create or update objects by server-side apply. It overwrites the changes of other clients."""
        query = {"fieldManager": FIELD_MANAGER, "force": "true"}
        return [
            self._request("PATCH", self.path_of(one), one, "application/apply-patch+yaml", query)
            for one in documents
        ]

    def apply_file(self, path: Path) -> list[Document]:
        """Apply every document of a YAML file."""
        return self.apply(*yaml_files.objects(path))

    def path_of(self, document: Mapping[str, Any]) -> str:
        """The path of an object, from its apiVersion, kind, namespace (default `default`) and name."""
        version, kind = document["apiVersion"], document["kind"]
        if (version, kind) not in self._plurals:
            base = f"/apis/{version}" if "/" in version else f"/api/{version}"
            for resource in self.get(base)["resources"]:
                if "/" not in resource["name"]:
                    self._plurals[version, resource["kind"]] = (
                        f"{base}%s/{resource['name']}",
                        resource["namespaced"],
                    )
        try:
            template, namespaced = self._plurals[version, kind]
        except KeyError:
            raise LocalClusterError(
                f"the API server does not know kind {kind} of {version}"
            ) from None
        metadata = document["metadata"]
        scope = f"/namespaces/{metadata.get('namespace', 'default')}" if namespaced else ""
        return template % scope + f"/{metadata['name']}"

    def each(self, work: Callable[[Any], object], arguments: Iterable[Any]) -> None:
        """Do `work` for every item, several at a time. Raises the first error."""
        with ThreadPoolExecutor(_CONNECTIONS) as pool:
            for _ in pool.map(work, arguments):
                pass

    def _request(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        content_type: str = JSON,
        query: Mapping[str, str] | None = None,
    ) -> Document:
        answer = self._send(method, path, body, {"content-type": content_type}, query or {})
        document: Document = answer.json()
        return document

    def _send(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | str | None,
        headers: Mapping[str, str],
        query: Mapping[str, str],
    ) -> httpx2.Response:
        # JSON is YAML, so the content type of apply accepts it.
        content: dict[str, Any] = {"content": body} if isinstance(body, str) else {"json": body}
        try:
            answer = self._http.request(
                method, path, **content, headers=dict(headers), params=dict(query)
            )
        except httpx2.HTTPError as error:
            raise UnreachableError(f"{method} {path}: {type(error).__name__}: {error}") from error
        if answer.is_error:
            raise _refusal(method, path, answer)
        return answer


def wait_until(condition: Callable[[], bool], what: str, seconds: float) -> None:
    """Poll until `condition()` is true. A refused or unanswered request counts as false.

    Raises:
        LocalClusterError: It is not true after `seconds`; the message has `what` and the last error.
    """
    deadline = time.monotonic() + seconds
    pause, last = 0.01, ""
    while True:
        began = time.monotonic()
        try:
            if condition():
                return
        except (ApiServerError, UnreachableError) as error:
            last = f" ({error})"
        if time.monotonic() > deadline:
            raise LocalClusterError(f"{what}: not there after {seconds:.0f} s{last}")
        # A slow request (a list of thousands) takes at most half of the time.
        time.sleep(max(pause, time.monotonic() - began))
        pause = min(pause * 1.3, 0.25)


def _refusal(method: str, path: str, answer: httpx2.Response) -> ApiServerError:
    try:
        status = answer.json()
    except ValueError:
        status = {}
    message = status.get("message") or answer.text.strip()
    return ApiServerError(
        answer.status_code,
        status.get("reason", ""),
        f"{method} {path}: {answer.status_code}: {message}",
    )


def get_plain(
    url: str, params: Mapping[str, str] | None = None, *, timeout: float = 5.0
) -> httpx2.Response:
    """Read from a server of this machine without TLS.

    By default, httpx2 reads the CA certificates of the machine for each client, which takes 30 ms.

    Raises:
        httpx2.HTTPError: It does not answer.
    """
    return httpx2.get(url, params=params, timeout=timeout, trust_env=False, verify=NO_TRUSTED_CA)


class _SharedContext(ssl.SSLContext):
    """A context for new connections of several threads at a time.

    The library sets the protocols for each connection. OpenSSL frees the list while it copies the same list for a connection of another
    thread, and the API server then refuses that connection.
    """

    def set_alpn_protocols(self, alpn_protocols: Iterable[str]) -> None:
        """Set nothing: without protocols, the server speaks HTTP/1.1, as this client does."""


def tls(authority: bytes, pair: KeyPair | None) -> ssl.SSLContext:
    """A TLS context for a server of the CA `authority` (PEM), with or without a client certificate."""
    context = _SharedContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(cadata=authority.decode())
    if pair is not None:
        with _as_file(pair.certificate + pair.key) as path:
            context.load_cert_chain(path)
    return context


@contextlib.contextmanager
def _as_file(content: bytes) -> Iterator[Path]:
    """A private temporary file: OpenSSL loads client keys only from files."""
    with tempfile.TemporaryDirectory(prefix="queuectl-") as folder:
        path = Path(folder) / "client.pem"
        write_secret(path, content)
        yield path
