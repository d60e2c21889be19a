"""How both clients use the HTTP library: its options, its errors, and its answers. Only this module imports it, and those for the API server of Kubernetes."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

import httpx2

from queuectl.client.answers import BodyReader
from queuectl.client.credentials import Login
from queuectl.client.errors import BadAnswer, CertificateRefused, NoAnswer
from queuectl.client.options import ClientOptions
from queuectl.client.requests import Request
from queuectl.client.tls import trusted

UNAUTHORIZED: Final = 401
NOT_A_STREAM: Final = 300  # the least status of a response that has no events
_STREAM: Final = "text/event-stream"
_READ_CA: Final = (
    r"kubectl -n queuectl-system get configmap queuectl-ca -o 'jsonpath={.data.ca\.crt}' > ca.crt"
)


def _arguments(options: ClientOptions, timeout: float) -> dict[str, Any]:
    """The arguments of the HTTP client. Raises InvalidOption."""
    return {
        "base_url": options.server,
        "timeout": timeout,
        "verify": trusted(options.ca_file, options.spelled("ca_file"), secure=options.secure),
        "trust_env": not options.local,  # a proxy of the environment is not for this machine
        "headers": {"Accept-Encoding": "gzip"},
    }


def sync_client(
    options: ClientOptions, timeout: float, transport: httpx2.BaseTransport | None
) -> httpx2.Client:
    """``transport``: instead of a connection. Raises InvalidOption."""
    return httpx2.Client(transport=transport, **_arguments(options, timeout))


def async_client(
    options: ClientOptions, timeout: float, transport: httpx2.AsyncBaseTransport | None
) -> httpx2.AsyncClient:
    """As :func:`sync_client`."""
    return httpx2.AsyncClient(transport=transport, **_arguments(options, timeout))


def request_arguments(
    request: Request[Any], login: Login, options: ClientOptions, read_timeout: float | None = None
) -> dict[str, Any]:
    """The arguments of one request. ``read_timeout``: seconds without a byte; None = as the request or the client has it."""
    arguments: dict[str, Any] = {
        "method": request.method,
        "url": request.target,
        "headers": {**request.headers, **login.headers()},
    }
    if request.document is not None:
        arguments["json"] = request.document
    timeout = read_timeout if read_timeout is not None else request.timeout
    if timeout is not None:
        arguments["timeout"] = timeout
    if options.tls_server_name:
        arguments["extensions"] = {"sni_hostname": options.tls_server_name}
    return arguments


def reader_of(response: httpx2.Response, began: float) -> BodyReader:
    """The reader of a body. Raises BadAnswer."""
    return BodyReader(str(response.url), response.status_code, dict(response.headers), began)


def check_stream(response: httpx2.Response) -> None:
    """Raise BadAnswer if a response without an error is not an event stream."""
    headers: Mapping[str, str] = response.headers
    if not headers.get("content-type", "").startswith(_STREAM):
        raise BadAnswer(
            f"{response.url}: the answer is not an event stream, so it is not from queuectl: check the address of the REST API"
        )


@contextmanager
def transport_errors(options: ClientOptions) -> Iterator[None]:
    """Turn an error of the HTTP library into NoAnswer or BadAnswer."""
    try:
        yield
    except (httpx2.DecodingError, httpx2.InvalidURL) as error:
        raise BadAnswer(f"{options.server}: {error}") from error
    except httpx2.RequestError as error:
        raise _no_answer(options, error) from error


_NUMBER: Final = re.compile(r"\[Errno -?\d+\] ")


def _no_answer(options: ClientOptions, error: httpx2.RequestError) -> NoAnswer:
    """The error, with what the user can do about it."""
    why, kind = _NUMBER.sub("", str(error)), NoAnswer
    if isinstance(error, httpx2.ReadTimeout):
        seconds = error.request.extensions["timeout"]["read"]
        return NoAnswer(
            f"no answer from {options.server} within {seconds:g} s: it accepts the connection and does not answer. Try again later"
        )
    if "mismatch" in why or "not valid for" in why:
        kind = CertificateRefused
        name = options.spelled("tls_server_name")
        hint = f"give the name in its certificate with {name} or QUEUECTL_TLS_SERVER_NAME"
    elif "certificate verify failed" in why:
        kind = CertificateRefused
        name = options.spelled("ca_file")
        hint = f"give the CA of its certificate with {name} or QUEUECTL_CA_FILE. If queuectl created the certificate: {_READ_CA}"
    elif isinstance(error, httpx2.RemoteProtocolError) and not options.secure:
        name = options.spelled("server")
        hint = f"if it uses TLS, give an https:// address with {name} or QUEUECTL_SERVER"
    elif isinstance(error, httpx2.ReadTimeout | httpx2.WriteTimeout):
        hint = "it accepts connections but is slow or hangs: try again, and check its log"
    else:
        name = options.spelled("server")
        hint = f"give the address of the REST API with {name} or QUEUECTL_SERVER"
    return kind(f"no answer from {options.server} ({why}): {hint}")
