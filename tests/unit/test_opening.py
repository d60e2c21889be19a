"""A controller whose database does not answer at the start tries again before it ends."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from queuectl.control import composition
from queuectl.control.composition import _TRIES, controller
from queuectl.control.settings import Settings
from queuectl.domain.errors import StoreError, StoreUnavailable, UnusableSchema


@pytest.mark.parametrize(
    ("failures", "error", "tries"),
    [
        (0, StoreUnavailable, 1),
        (_TRIES - 1, StoreUnavailable, _TRIES),
        (_TRIES, StoreUnavailable, _TRIES),  # it ends with the error
        (1, UnusableSchema, 1),  # a schema that this release cannot use: another try does not help
    ],
)
async def test_connections_are_opened_again_after_a_lost_one(
    failures: int, error: type[StoreError], tries: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []

    @asynccontextmanager
    async def connected(_: Settings) -> AsyncIterator[Any]:
        opened.append("try")
        if len(opened) <= failures:
            raise error("migrating the database: the connection was closed")
        yield "parts"
        opened.append("closed")

    monkeypatch.setattr(composition, "_connected", connected)
    monkeypatch.setattr(composition, "_FIRST_PAUSE", 0.0)
    if failures >= tries:
        with pytest.raises(error):
            async with controller(Settings()):
                pass
        assert opened == ["try"] * tries
        return
    async with controller(Settings()):
        assert opened == ["try"] * tries
    assert opened == [*["try"] * tries, "closed"]
