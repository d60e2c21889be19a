"""The contract of every :class:`queuectl.api.access.Access`: that of the API server, and the double of the tests."""

from __future__ import annotations

from dataclasses import replace
from typing import Protocol

import pytest

from queuectl.api.access import Access
from queuectl.domain.identity import Right

OWN, OTHER = "access-own", "access-other"


class AccessWorld(Protocol):
    """A caller with some rights."""

    access: Access

    async def token(self) -> str:
        """The token of a caller with the rights :data:`GRANTED` in namespace :data:`OWN`, and the right to see nodes."""


GRANTED = (Right("get", "workloads", OWN), Right("create", "workloads/hold", OWN))
EVERYWHERE = (Right("list", "nodes"),)
QUESTIONS = [
    (Right("get", "workloads", OWN), True),
    (Right("get", "workloads", OWN, "train"), True),
    (Right("get", "workloads", OTHER), False),
    (Right("get", "workloads"), False),
    (Right("list", "workloads", OWN), False),
    (Right("create", "workloads/hold", OWN, "train"), True),
    (Right("create", "workloads", OWN), False),
    (Right("create", "workloads/release", OWN), False),
    (Right("list", "nodes"), True),
    (Right("list", "nodes", OWN), True),
    (Right("get", "nodes", "", "node-1"), False),
    (Right("get", "clusterqueues"), False),
    (Right("get", "workloads", "'; DROP TABLE"), False),
    (Right("get", "workloads", OTHER, "\x00\r\n\u00fc"), False),
    (Right("get", "workloads", OWN, "x" * 254), False),
    (Right("get", "workloads", OWN, "x" * 60_000), False),
]


class AccessConformance:
    async def test_a_token_identifies_its_caller(self, world: AccessWorld) -> None:
        caller = await world.access.who(await world.token())
        assert caller is not None
        assert caller.name
        assert "system:authenticated" in caller.groups

    @pytest.mark.parametrize(
        "token", ["", "nobody", "a.b.c", "x" * 100_000, "caf\xe9", "\udcff"], ids=lambda t: t[:8]
    )
    async def test_an_invalid_token_identifies_no_caller(
        self, world: AccessWorld, token: str
    ) -> None:
        assert await world.access.who(token) is None

    @pytest.mark.parametrize(
        ("right", "expected"), QUESTIONS, ids=[repr(str(q[0]))[:70] for q in QUESTIONS]
    )
    async def test_a_right_is_for_a_verb_a_resource_and_a_namespace(
        self, world: AccessWorld, right: Right, expected: bool
    ) -> None:
        caller = await world.access.who(await world.token())
        assert caller is not None
        assert await world.access.may(caller, right) is expected

    async def test_another_caller_has_none_of_the_rights(self, world: AccessWorld) -> None:
        caller = await world.access.who(await world.token())
        assert caller is not None
        unknown_user = replace(caller, name="stranger")
        assert not any([await world.access.may(unknown_user, right) for right, _ in QUESTIONS])
