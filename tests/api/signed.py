"""The API with authentication."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx2
from fastapi import FastAPI

from queuectl.api.access import Access
from queuectl.api.app import create_app
from queuectl.api.auth.authentication import OpenPaths
from queuectl.api.auth.layers import AuthenticationLayer
from queuectl.api.routes.events import StreamLimit
from queuectl.notify.receivers_file import ReceiverList
from queuectl.telemetry.metrics import MetricsRecorder
from tests.api.support import FixedDiagnoser, FixedHealth
from tests.doubles.access import MemoryAccess

HOST = "https://queuectl.example"
ADMIN, NO_RIGHTS = "of-the-admin", "without-rights-token"
SELDOM = 1e-6
"""A rate per second, so low that the duration of a test has no effect."""


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


def people() -> MemoryAccess:
    """An admin with every right, and a caller without any right."""
    access = MemoryAccess()
    access.know(ADMIN, "admin", master=True)
    access.know(NO_RIGHTS, "without-rights")
    return access


def signed_app(
    store: Any, access: Access, diagnoser: FixedDiagnoser | None = None, **how: Any
) -> FastAPI:
    """``how``: attributes of the layer, ``streams``: the limit of event streams, and ``receivers``: of events."""
    streams: StreamLimit | None = how.pop("streams", None)
    receivers: ReceiverList | None = how.pop("receivers", None)
    known = AuthenticationLayer(access, **{"secure": True, "open_paths": OpenPaths(), **how})
    health, registry = FixedHealth(), MetricsRecorder().registry
    diagnoser = diagnoser or FixedDiagnoser()
    return create_app(
        store,
        health,
        registry,
        diagnoser,
        authenticated=known,
        streams=streams,
        receivers=receivers,
    )


@asynccontextmanager
async def asking(app: FastAPI, token: str | None = None) -> AsyncIterator[httpx2.AsyncClient]:
    """A client that sends this token with every request."""
    transport = httpx2.ASGITransport(app=app, raise_app_exceptions=False)
    headers = bearer(token) if token else {}
    async with httpx2.AsyncClient(transport=transport, base_url=HOST, headers=headers) as client:
        yield client
