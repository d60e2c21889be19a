"""The Python client of the REST API: :class:`Client` and :class:`AsyncClient`.

Requests, decoders, retries and streams are written once and do no I/O. The two clients differ only in how they send and wait.
An answer is the JSON object that the server sent. :mod:`queuectl.client.types` has its types. Fields that a newer server adds are kept.
The package imports no server, no planner, and an HTTP library only when a client is created.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from queuectl.client.async_client import AsyncClient
    from queuectl.client.client import Client
    from queuectl.client.errors import (
        BadAnswer,
        CertificateRefused,
        ClientError,
        ConflictingState,
        InvalidOption,
        InvalidRequest,
        NoAnswer,
        NoCredentials,
        NotPermitted,
        ObjectNotFound,
        ProxyAnswer,
        RequestRefused,
        ServerFault,
        ServerUnavailable,
        TokenNotIssued,
        Unauthenticated,
        WaitTimeout,
        WorkloadEnded,
    )
    from queuectl.client.options import ClientOptions
    from queuectl.client.stream import StreamEvent

__all__ = [
    "AsyncClient",
    "BadAnswer",
    "CertificateRefused",
    "Client",
    "ClientError",
    "ClientOptions",
    "ConflictingState",
    "InvalidOption",
    "InvalidRequest",
    "NoAnswer",
    "NoCredentials",
    "NotPermitted",
    "ObjectNotFound",
    "ProxyAnswer",
    "RequestRefused",
    "ServerFault",
    "ServerUnavailable",
    "StreamEvent",
    "TokenNotIssued",
    "Unauthenticated",
    "WaitTimeout",
    "WorkloadEnded",
]

_MODULES: Final = {
    "AsyncClient": "async_client",
    "Client": "client",
    "ClientOptions": "options",
    "StreamEvent": "stream",
}
"""The modules of what is not in ``errors``."""


def __getattr__(name: str) -> Any:
    """Import a module only when a name of it is used: a program that does not send a request starts faster."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES.get(name, 'errors')}"), name)
