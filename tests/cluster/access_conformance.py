"""What every :class:`queuectl.api.access.Access` keeps to: the API server's own, and the double of the tests."""

from __future__ import annotations

from dataclasses import replace
from typing import Protocol

import pytest

from queuectl.api.access import Access
from queuectl.domain.identity import Right

OWN, OTHER = "access-own", "access-other"


class AccessWorld(Protocol):
    """Somebody with rights to try."""

    access: Access

    async def token(self) -> str:
        """Of a caller who may do what :data:`GRANTED` says in namespace :data:`OWN`, and see nodes everywhere."""


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
    async def test_a_token_is_somebodys(self, world: AccessWorld) -> None:
        caller = await world.access.who(await world.token())
        assert caller is not None
        assert caller.name
        assert "system:authenticated" in caller.groups

    @pytest.mark.parametrize(
        "token", ["", "nobody", "a.b.c", "x" * 100_000, "caf\xe9", "\udcff"], ids=lambda t: t[:8]
    )
    async def test_what_is_no_token_is_nobodys(self, world: AccessWorld, token: str) -> None:
        assert await world.access.who(token) is None

    @pytest.mark.parametrize(
        ("right", "expected"), QUESTIONS, ids=[repr(str(q[0]))[:70] for q in QUESTIONS]
    )
    async def test_a_right_is_to_verb_resource_and_namespace(
        self, world: AccessWorld, right: Right, expected: bool
    ) -> None:
        caller = await world.access.who(await world.token())
        assert caller is not None
        assert await world.access.may(caller, right) is expected

    async def test_another_has_none_of_them(self, world: AccessWorld) -> None:
        caller = await world.access.who(await world.token())
        assert caller is not None
        stranger = replace(caller, name="stranger")
        assert not any([await world.access.may(stranger, right) for right, _ in QUESTIONS])
