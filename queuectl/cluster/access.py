"""Who somebody is and what he may do, as the API server says: TokenReview and SubjectAccessReview.

So ``kubectl create token`` makes credentials for queuectl, every way to sign in that the cluster has works here too, and
its RBAC rules what may be done. Rights are to resources of the group ``queuectl.dev`` that exist in RBAC alone.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, Self

import msgspec

from queuectl.cluster.client import Api, Forbidden
from queuectl.cluster.connection import Connection
from queuectl.cluster.remembered import Remembered
from queuectl.domain.errors import ClusterUnavailable, TooManyReviews
from queuectl.domain.identity import API_GROUP, LONGEST_TOKEN, Caller, Right
from queuectl.domain.rate_limit import Buckets

TOKEN_SECONDS: Final = 60.0  # for which a token that was withdrawn may still be taken
RIGHT_SECONDS: Final = 30.0  # the same for a right
REFUSAL_SECONDS: Final = 3.0  # soon over: whoever was just granted something tries again at once
# A list asks this of every namespace there is, and most say no: each time the same is refused again, it is kept twice as long.
LIST_REFUSAL_SECONDS: Final = 30.0
LONGEST_REFUSAL_SECONDS: Final = 300.0
REVIEWS_PER_SECOND: Final = 100.0  # SubjectAccessReviews for one caller, in the long run
REVIEW_BURST: Final = 3000  # and at once
_MOST_TOKENS: Final = 10_000
_MOST_RIGHTS: Final = 100_000
_AT_ONCE: Final = 16  # reviews under way
_SECONDS: Final = 5.0  # for one of them: somebody waits for his answer
_TOKENS: Final = "/apis/authentication.k8s.io/v1/tokenreviews"
_RIGHTS: Final = "/apis/authorization.k8s.io/v1/subjectaccessreviews"

_Extra = tuple[tuple[str, tuple[str, ...]], ...]
_Key = tuple[str, tuple[str, ...], str, _Extra, Right]


class _User(msgspec.Struct):
    username: str = ""
    uid: str = ""
    groups: tuple[str, ...] = ()
    extra: dict[str, tuple[str, ...]] = msgspec.field(default_factory=dict)


class _TokenStatus(msgspec.Struct):
    authenticated: bool = False
    user: _User = msgspec.field(default_factory=_User)


class _TokenReview(msgspec.Struct):
    status: _TokenStatus


class _AccessStatus(msgspec.Struct):
    allowed: bool = False


class _AccessReview(msgspec.Struct):
    status: _AccessStatus


_read_token_review = msgspec.json.Decoder(_TokenReview).decode
_read_access_review = msgspec.json.Decoder(_AccessReview).decode


class KubernetesAccess:
    """The cluster's own identities and rights. Methods may raise ClusterUnavailable."""

    def __init__(self, api: Api, clock: Callable[[], float] = time.monotonic) -> None:
        """``api``: under queuectl's own identity; closed by :meth:`close`. ``clock``: monotonic seconds."""
        self._api = api
        self._reviews = asyncio.Semaphore(_AT_ONCE)
        self._callers: Remembered[bytes, Caller | None] = Remembered(
            lambda _, caller, __: REFUSAL_SECONDS if caller is None else TOKEN_SECONDS,
            most=_MOST_TOKENS,
            clock=clock,
        )
        self._rights: Remembered[_Key, bool] = Remembered(_good_for, most=_MOST_RIGHTS, clock=clock)
        self._budget = Buckets(REVIEWS_PER_SECOND, REVIEW_BURST, clock)

    @classmethod
    async def connect(cls, kubeconfig: Path | None) -> Self:
        """Over connections of its own: made-up tokens by the thousand must not take those of the controller.

        Raises:
            BadInput: the kubeconfig, or the pod's service account, cannot be used.
        """
        connection = Connection(
            kubeconfig=kubeconfig, in_flight=_AT_ONCE, watches=0, timeout=_SECONDS
        )
        return cls(await Api.connect(connection))

    async def close(self) -> None:
        """Give back all connections."""
        await self._api.close()

    async def who(self, token: str) -> Caller | None:
        """Whose token this is; None = nobody's, or no longer good."""
        if not token or len(token) > LONGEST_TOKEN:
            return None
        # Kept by its hash: what lies in memory for a minute, and in core dumps, opens no door.
        key = hashlib.sha256(token.encode(errors="surrogateescape")).digest()
        return await self._callers.get(key, lambda: self._review(token))

    async def may(self, caller: Caller, right: Right) -> bool:
        """Whether the cluster's authorizers let him. May raise TooManyReviews."""
        if not right.nameable:
            return False
        extra = tuple(sorted(caller.extra.items()))
        key = (caller.name, caller.groups, caller.uid, extra, right)
        return await self._rights.get(key, lambda: self._ask(caller, right))

    async def _review(self, token: str) -> Caller | None:
        # No audiences: those of the API server itself, so that what opens kubectl's door opens ours.
        body = {"spec": {"token": token}}
        status = _read_token_review(await self._post(_TOKENS, body)).status
        user = status.user
        if not status.authenticated or not user.username:
            return None
        return Caller(user.username, user.groups, user.uid, user.extra)

    async def _ask(self, caller: Caller, right: Right) -> bool:
        if wait := self._budget.take(caller.name):
            text = f"what {caller.name} may do needs too many access reviews"
            raise TooManyReviews(text, wait)
        spec: dict[str, Any] = {
            "user": caller.name,
            "groups": caller.groups,
            "uid": caller.uid,
            "extra": caller.extra,
            "resourceAttributes": _attributes(right),
        }
        answer = await self._post(_RIGHTS, {"spec": spec})
        return _read_access_review(answer).status.allowed

    async def _post(self, path: str, review: Mapping[str, Any]) -> bytes:
        kind = "TokenReview" if path is _TOKENS else "SubjectAccessReview"
        version = path.removeprefix("/apis/").rpartition("/")[0]
        body = {"apiVersion": version, "kind": kind, **review}
        async with self._reviews:
            try:
                return await self._api.request("POST", path, body=body)
            except Forbidden as error:  # of us, not of the caller
                text = f"queuectl may not ask ({error}); deploy/10-identity.yaml says what it needs"
                raise ClusterUnavailable(text) from error


def _good_for(key: _Key, allowed: bool, last: float) -> float:
    """Seconds. ``last``: of the same answer before; 0 = there was none."""
    if allowed:
        return RIGHT_SECONDS
    right = key[-1]
    if right.name or not right.namespace:
        return REFUSAL_SECONDS
    return min(LONGEST_REFUSAL_SECONDS, 2.0 * last) if last else LIST_REFUSAL_SECONDS


def _attributes(right: Right) -> dict[str, str]:
    resource, _, subresource = right.resource.partition("/")
    return {
        "group": API_GROUP,
        "version": "v1",
        "resource": resource,
        "subresource": subresource,
        "verb": right.verb,
        "namespace": right.namespace,
        "name": right.name,
    }
