"""The connection to the API server: kubeconfig or service account, tokens that expire, proxies, sockets."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit
from weakref import WeakSet

import aiohttp

from queuectl import kubeconfig
from queuectl.cluster.library import (
    ApiClient,
    ConfigException,
    Configuration,
    load_incluster_config,
    load_kube_config,
)
from queuectl.domain.errors import BadInput

_REFRESH_SECONDS: Final = 60.0
_SPARE_CONNECTIONS: Final = 4  # so that the Lease and Events never wait for patches
_CLOSE_POLLS: Final = 1000  # of a millisecond


@dataclass(frozen=True, slots=True)
class Connection:
    """The settings of the connection.

    Attributes:
        kubeconfig: file; None = the service account of the pod, or ``$KUBECONFIG`` outside of a pod.
        context: of the kubeconfig; None = its current one.
        in_flight: ordinary requests at a time.
        timeout: seconds for one ordinary request, with the wait for a free connection.
        buffer_bytes: of a stream, after which its connection is not read until they are taken; twice as many at most.
    """

    kubeconfig: Path | None = None
    context: str | None = None
    in_flight: int = 32
    timeout: float = 15.0
    buffer_bytes: int = 1 << 21  # an object has at most 1.5 MiB


async def open_client(connection: Connection, watches: int = 0) -> ApiClient:
    """The library's client for it; no request is made yet.

    ``watches``: streams at a time. With HTTP/1.1 each needs its own connection.

    Raises:
        BadInput: the kubeconfig, or the pod's service account, cannot be used.
    """
    configuration = Configuration()
    files = str(connection.kubeconfig or _kubeconfig_from_environment())
    if files:
        context = kubeconfig.current_context(files, connection.context)
        if context is None:
            raise BadInput(
                f"kubeconfig {files}: no current context: `kubectl config use-context` sets one"
            )
        kubeconfig.check(context)
    elif not _in_pod():
        raise BadInput(
            "no kubeconfig, and no service account of a pod: set KUBECONFIG to the kubeconfig of the cluster"
        )
    source = f"kubeconfig {files}" if files else "service account of this pod"
    try:
        await _configure(configuration, connection, files)
    # The library raises whatever its parsing of an unexpected field raises.
    except Exception as error:
        raise BadInput(f"{source}: {type(error).__name__}: {error}") from error
    if files:
        _check_proxy(configuration, f"{files}, {_named(connection.context)}")
    configuration.connection_pool_maxsize = connection.in_flight + watches + _SPARE_CONNECTIONS
    # Python 3.13 rejects authorities without certain extensions, which those of many clusters lack. Go accepts them.
    configuration.disable_strict_ssl_verification = True
    try:
        client = ApiClient(configuration)
    except (OSError, ValueError) as error:  # those of the module ssl
        raise BadInput(
            f"{source}: its certificate authority, client certificate or key cannot be used: {error}"
        ) from error
    client.user_agent = "queuectl"
    _replace_session(client, connection.buffer_bytes)
    return client


class Sockets:
    """The open sockets of a client, which does not track those of canceled requests."""

    def __init__(self, client: ApiClient) -> None:
        self._open: WeakSet[socket.socket] = WeakSet()
        # The library creates the connector. Only its size and its certificates can be set.
        connector = client.rest_client.pool_manager.connector
        assert isinstance(connector, aiohttp.TCPConnector)
        connector._socket_factory = self._made

    def _made(self, address: aiohttp.AddrInfoType) -> socket.socket:
        made = socket.socket(*address[:3])
        self._open.add(made)
        return made

    async def closed(self) -> None:
        """Close the remaining sockets after the client is closed: handshakes, and TLS connections that are closing."""
        for one in self._open:
            with contextlib.suppress(OSError):  # not connected
                one.shutdown(socket.SHUT_RDWR)
        for _ in range(_CLOSE_POLLS):
            if all(one.fileno() < 0 for one in self._open):
                return
            await asyncio.sleep(0.001)


async def _configure(configuration: Configuration, connection: Connection, files: str) -> None:
    async def load() -> None:
        if not files:
            # The refresh of the library uses the clock of the machine, and waits an hour longer if that is set back by an hour.
            load_incluster_config(client_configuration=configuration, try_refresh_token=False)  # type: ignore[no-untyped-call]  # library
        else:
            await load_kube_config(
                config_file=files,
                context=connection.context,
                client_configuration=configuration,
                persist_config=False,
            )
        keys = configuration.api_key
        # A token file can end in a newline, which is invalid in a header.
        keys.update({name: key.strip() for name, key in keys.items()})

    await load()
    due = time.monotonic() + _REFRESH_SECONDS

    async def refresh(_: Configuration) -> None:
        """Token files, service accounts, exec plugins and OIDC give tokens that expire. The library reads them only once."""
        nonlocal due
        if time.monotonic() >= due:
            due = time.monotonic() + _REFRESH_SECONDS
            try:
                await load()
            # A file can be half written. The library raises whatever its parsing raises.
            except Exception as error:
                raise ConfigException(f"{type(error).__name__}: {error}") from error

    configuration.refresh_api_key_hook = refresh


def _named(context: str | None) -> str:
    return f"context {context!r}" if context is not None else "the current context"


def _check_proxy(configuration: Configuration, source: str) -> None:
    """Raise BadInput for a proxy-url that fails only with the first request otherwise. The URL can hold a password."""
    scheme = urlsplit(configuration.proxy or "http:").scheme
    if scheme not in ("http", "https"):
        raise BadInput(
            f"kubeconfig {source}: proxy-url of its cluster: the scheme is {scheme or 'missing'}, but only http and "
            "https are supported"
        )


def _kubeconfig_from_environment() -> str:
    """The value of ``$KUBECONFIG``, which can name several files; empty in a pod, which uses its service account."""
    return "" if _in_pod() else os.environ.get("KUBECONFIG", "")


def _in_pod() -> bool:
    return "KUBERNETES_SERVICE_HOST" in os.environ


def _replace_session(client: ApiClient, buffer_bytes: int) -> None:
    """Set the size of buffers. As in clients in Go, HTTPS_PROXY does not apply to a server on this machine."""
    host = urlsplit(client.configuration.host).hostname
    rest = client.rest_client
    connector = rest.pool_manager.connector
    rest.pool_manager.detach()
    rest.pool_manager = aiohttp.ClientSession(
        connector=connector,
        trust_env=host not in ("127.0.0.1", "::1", "localhost"),
        read_bufsize=buffer_bytes,
    )
