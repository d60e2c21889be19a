"""Authentication and authorization by the API server: TokenReview and SubjectAccessReview, with a cache of the answers.

Tokens of ``kubectl create token`` and of each sign-in method of the cluster are credentials for queuectl, and the RBAC of the cluster
grants the permissions. They are for resources of the group ``queuectl.dev``, which exist in RBAC only. With the cache, a busy client
costs the API server one request a minute.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Awaitable, Callable, Hashable, Mapping
from pathlib import Path
from typing import Any, Final, Generic, Self, TypeVar

import msgspec

from queuectl.cluster.client import Api, Forbidden, Method, ReadOnlyApi
from queuectl.cluster.connection import Connection
from queuectl.domain.bounded import RecentlyUsed
from queuectl.domain.errors import ClusterUnavailable, TooManyReviews
from queuectl.domain.identity import LONGEST_TOKEN, Caller, Right
from queuectl.domain.pacing import Buckets

# ---- Reviews

_TOKEN_SECONDS: Final = 60.0  # for which a revoked token is still accepted
_RIGHT_SECONDS: Final = 30.0  # for which a revoked permission is still accepted
_REFUSAL_SECONDS: Final = 3.0  # short, because users retry directly after a grant
# A list asks for each namespace, and most are denied: after each equal denial, it is kept twice as long.
_LIST_REFUSAL_SECONDS: Final = 30.0
_LONGEST_REFUSAL_SECONDS: Final = 300.0
REVIEWS_PER_SECOND: Final = 100.0  # SubjectAccessReviews for one caller, in the long run
REVIEW_BURST: Final = 3000  # in a burst
_MOST_TOKENS: Final = 10_000
_MOST_RIGHTS: Final = 100_000
_AT_ONCE: Final = 16  # reviews in progress
_SECONDS: Final = 5.0  # for one review, because a user waits for it
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
    """The identities and permissions of the cluster. Methods can raise ClusterUnavailable."""

    def __init__(self, api: Api, clock: Callable[[], float] = time.monotonic) -> None:
        """``api``: under queuectl's own identity; closed by :meth:`close`. ``clock``: monotonic seconds."""
        self._api = api
        self._reviews = asyncio.Semaphore(_AT_ONCE)
        self._callers: Remembered[bytes, Caller | None] = Remembered(
            lambda _, caller, __: _REFUSAL_SECONDS if caller is None else _TOKEN_SECONDS,
            most=_MOST_TOKENS,
            clock=clock,
        )
        self._rights: Remembered[_Key, bool] = Remembered(_good_for, most=_MOST_RIGHTS, clock=clock)
        self._budget = Buckets(REVIEWS_PER_SECOND, REVIEW_BURST, clock)

    @classmethod
    async def connect(cls, kubeconfig: Path | None) -> Self:
        """Use separate connections: thousands of invalid tokens must not block those of the controller.

        Raises:
            BadInput: the kubeconfig, or the pod's service account, cannot be used.
        """
        connection = Connection(kubeconfig=kubeconfig, in_flight=_AT_ONCE, timeout=_SECONDS)
        return cls(await ReadOnlyApi.open(connection, _is_review))

    async def close(self) -> None:
        """Give back all connections."""
        await self._api.close()

    async def who(self, token: str) -> Caller | None:
        """The user of this token; None if the token is invalid or has expired."""
        if not token or len(token) > LONGEST_TOKEN:
            return None
        # The key is the hash: a copy of the memory, for example a core dump, must not contain valid tokens.
        key = hashlib.sha256(token.encode(errors="surrogateescape")).digest()
        return await self._callers.get(key, lambda: self._review(token))

    async def verified_address(self, token: str) -> str | None:  # noqa: ARG002 - of the Protocol
        """None: a TokenReview states no address."""
        return None

    async def may(self, caller: Caller, right: Right) -> bool:
        """Whether the cluster's authorizers allow it. Can raise TooManyReviews."""
        if not right.nameable:
            return False
        extra = tuple(sorted(caller.extra.items()))
        key = (caller.name, caller.groups, caller.uid, extra, right)
        return await self._rights.get(key, lambda: self._ask(caller, right))

    async def _review(self, token: str) -> Caller | None:
        # No audiences: those of the API server, so that each token for kubectl is valid here.
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
            except Forbidden as error:  # queuectl lacks the permission, not the caller
                text = f"queuectl lacks a permission ({error}); deploy/base/identity.yaml lists the permissions that it needs"
                raise ClusterUnavailable(text) from error


def _is_review(method: Method, path: str) -> bool:
    return method == "POST" and path in (_TOKENS, _RIGHTS)


def _good_for(key: _Key, allowed: bool, last: float) -> float:
    """Seconds for which a denial is kept. ``last``: of the equal denial before; 0 without one."""
    if allowed:
        return _RIGHT_SECONDS
    right = key[-1]
    if right.name or not right.namespace:
        return _REFUSAL_SECONDS
    return min(_LONGEST_REFUSAL_SECONDS, 2.0 * last) if last else _LIST_REFUSAL_SECONDS


def _attributes(right: Right) -> dict[str, str]:
    resource, _, subresource = right.resource.partition("/")
    return {
        "group": right.group,
        "version": "v1",
        "resource": resource,
        "subresource": subresource,
        "verb": right.verb,
        "namespace": right.namespace,
        "name": right.name,
    }


# ---- The cache

_CacheKey = TypeVar("_CacheKey", bound=Hashable)
_Answer = TypeVar("_Answer")


class Remembered(Generic[_CacheKey, _Answer]):
    """A cache with a maximal number of answers, each for its validity. The least recently used are dropped first.

    A call for a key that is being requested waits for that answer. Failures are not cached.
    """

    def __init__(
        self,
        good_for: Callable[[_CacheKey, _Answer, float], float],
        *,
        most: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Start empty.

        Args:
            good_for: the validity of an answer in seconds, from the validity of the equal answer before it; 0 without one.
            most: the maximal number of answers.
            clock: monotonic seconds.
        """
        self._good_for = good_for
        self._clock = clock
        self._known: RecentlyUsed[_CacheKey, tuple[float, float, _Answer]] = RecentlyUsed(most)
        self._asked: dict[_CacheKey, asyncio.Task[_Answer]] = {}

    def __len__(self) -> int:
        return len(self._known)

    async def get(self, key: _CacheKey, ask: Callable[[], Awaitable[_Answer]]) -> _Answer:
        """The answer to ``key``. Raises the errors of ``ask``."""
        known = self._known.get(key)
        if known is not None and self._clock() < known[0]:
            self._known.move_to_end(key)
            return known[2]
        asking = self._asked.get(key)
        if asking is None:
            asking = asyncio.create_task(self._ask(key, ask), name="ask the API server")
            asking.add_done_callback(_heard)
            self._asked[key] = asking
        return await asyncio.shield(asking)  # other calls can wait for it when this one is canceled

    async def _ask(self, key: _CacheKey, ask: Callable[[], Awaitable[_Answer]]) -> _Answer:
        try:
            answer = await ask()
        finally:
            del self._asked[key]
        before = self._known.get(key)
        last = before[1] if before is not None and before[2] == answer else 0.0
        seconds = self._good_for(key, answer, last)
        self._known.put(key, (self._clock() + seconds, seconds, answer))
        return answer


def _heard(asking: asyncio.Task[_Answer]) -> None:
    """Retrieve the exception, in case all calls that waited were canceled."""
    if not asking.cancelled():
        asking.exception()
