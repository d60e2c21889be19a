"""Identities and rights of the real API server, and of the double that follows it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from queuectl.cluster.access import KubernetesAccess
from queuectl.cluster.apply import apply
from queuectl.cluster.client import Api, Forbidden
from queuectl.domain.errors import ClusterUnavailable
from queuectl.domain.identity import API_GROUP, Caller, Right
from tests.cluster.access_conformance import EVERYWHERE, GRANTED, OTHER, OWN, AccessConformance
from tests.doubles.access import MemoryAccess
from tests.support.controlplane import ControlPlane
from tests.support.people import account, binding, namespace, role, token_of

TRAINER = account(OWN, "trainer")


def rules(*rights: Right) -> list[dict[str, Any]]:
    return [
        {"apiGroups": [API_GROUP], "resources": [right.resource], "verbs": [right.verb]}
        for right in rights
    ]


class RealWorld:
    def __init__(self, plane: ControlPlane, access: KubernetesAccess) -> None:
        self._plane = plane
        self.access = access

    async def token(self) -> str:
        return await token_of(self._plane, TRAINER)


class DoubleWorld:
    def __init__(self) -> None:
        self.access = MemoryAccess()
        self.access.know("of-the-trainer", "trainer", *GRANTED, *EVERYWHERE)

    async def token(self) -> str:
        return "of-the-trainer"


class TestDouble(AccessConformance):
    @pytest.fixture
    def world(self) -> DoubleWorld:
        return DoubleWorld()


@pytest.fixture
async def real(control_plane: ControlPlane, admin: Api) -> AsyncIterator[KubernetesAccess]:
    documents = [
        namespace(OWN),
        namespace(OTHER),
        TRAINER,
        role("access-test", rules(*GRANTED)),
        role("access-test-nodes", rules(*EVERYWHERE)),
        binding("access-test", "access-test", TRAINER, OWN),
        binding("access-test-nodes", "access-test-nodes", TRAINER),
    ]
    await apply(admin, documents)
    access = await KubernetesAccess.connect(control_plane.kubeconfig)
    yield access
    await access.close()


@pytest.mark.system
class TestKubernetes(AccessConformance):
    @pytest.fixture
    def world(self, control_plane: ControlPlane, real: KubernetesAccess) -> RealWorld:
        return RealWorld(control_plane, real)


@pytest.mark.system
async def test_a_token_for_another_audience_identifies_no_caller(
    control_plane: ControlPlane, real: KubernetesAccess
) -> None:
    token = await token_of(control_plane, TRAINER, "vault")
    assert await real.who(token) is None


async def test_without_an_api_server_a_review_is_unavailable() -> None:
    api = KubernetesAccess(Silence())  # type: ignore[arg-type]  # of all an Api does only this is used
    for _ in range(2):
        with pytest.raises(ClusterUnavailable):
            await api.who("a-token")
        with pytest.raises(ClusterUnavailable):
            await api.may(Caller("alice"), Right("get", "workloads"))


class Silence:
    async def request(self, *_: object, **__: object) -> bytes:
        raise ClusterUnavailable("connection refused")


class Refusal:
    async def request(self, *_: object, **__: object) -> bytes:
        raise Forbidden("403: queuectl cannot create resource tokenreviews")


async def test_without_the_right_to_create_reviews_the_log_names_the_missing_right() -> None:
    access = KubernetesAccess(Refusal())  # type: ignore[arg-type]  # as above
    with pytest.raises(ClusterUnavailable, match=r"deploy/base/identity\.yaml"):
        await access.who("a-token")


@pytest.mark.system
async def test_a_known_result_is_not_requested_again(
    control_plane: ControlPlane, real: KubernetesAccess, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = await token_of(control_plane, TRAINER)
    callers = await asyncio.gather(*(real.who(token) for _ in range(10)))
    assert len({caller.name for caller in callers if caller}) == 1
    asked: list[str] = []

    async def counted(self: Api, method: str, path: str, **more: Any) -> bytes:
        asked.append(path)
        raise ClusterUnavailable("the API server is down")

    monkeypatch.setattr(Api, "request", counted)
    assert await real.who(token) == callers[0]
    assert not asked
