"""Access of one request: the rights that it needs, and the names that its answer shows.

Every route names its rights: by :meth:`Guard.needs` if the path contains namespace and name, and by :meth:`Guard.require` if
the namespace is known only after the object is read. The middleware has determined the caller from token or session; a route
reads neither. :mod:`queuectl.domain.redaction` leaves out the names of gangs that the caller is not allowed to see.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable
from dataclasses import replace
from typing import Any, Final, Protocol

from fastapi import Depends, Request

from queuectl.api.problems import ApiProblem, ProblemType
from queuectl.control.questions.throttle import asking
from queuectl.db.ports import WorkloadFacts
from queuectl.domain.identity import Caller, Right
from queuectl.domain.redaction import Explanation, Redactor, namespaces_in
from queuectl.objects.configuration.config_kinds import CONFIG_KINDS

ANONYMOUS: Final = Caller("unauthenticated caller")
"""The caller of each request without authentication, on loopback."""

# ---- Rights

_KEY: Final = "queuectl.caller"
_KNOWN: Final = "queuectl.known"
_AT_ONCE: Final = 8  # namespaces that one request checks at once: others wait too
MOST_REVIEWS: Final = 500
"""Questions about rights for one request: one for each namespace, or each object, that it names."""
_TOO_MANY: Final = f"these documents need more than {MOST_REVIEWS} access reviews: send fewer at once, or have the right to all of a kind"
Visible = Collection[str] | None
"""Namespaces whose workloads a caller may list; None = all."""


class Identities(Protocol):
    """Authentication of tokens, by the cluster and by an OpenID Connect issuer."""

    async def who(self, token: str) -> Caller | None:
        """The caller of a token; None = the token is not valid.

        Raises:
            Problem: unauthenticated, where the reason of a refusal is known.
            ClusterUnavailable, IssuerUnavailable: the authority does not answer.
        """

    async def verified_address(self, token: str) -> str | None:
        """The verified mail address in a valid token, empty if it has none; None if its authority states no addresses.

        Raises as :meth:`who`.
        """


class Rights(Protocol):
    """Authorization of callers by the cluster's RBAC."""

    async def may(self, caller: Caller, right: Right) -> bool:
        """Whether the caller has the right. Can raise ClusterUnavailable."""


class Access(Identities, Rights, Protocol):
    """Authentication and authorization."""


def caller_of(request: Request) -> Caller:
    """The caller of a request."""
    caller: Caller = request.scope.get(_KEY, ANONYMOUS)
    return caller


def set_caller(scope: Any, caller: Caller) -> None:
    """Keep the caller for the rest of this request, also for the limits of each caller on work with the planner."""
    scope[_KEY] = caller
    if caller is not ANONYMOUS:
        asking.set(caller.name)


def set_credential_check(scope: Any, check: Callable[[], Awaitable[bool]]) -> None:
    """Keep a check of the caller's credentials, for answers that last long."""
    scope[_KNOWN] = check


async def still_valid(request: Request) -> bool:
    """Whether the credentials of a request are still valid. Can raise each error of an outage."""
    known: Callable[[], Awaitable[bool]] | None = request.scope.get(_KNOWN)
    return known is None or await known()


class RecentCredentials:
    """The credentials of a request whose answer lasts long, checked again after a few seconds. Create it during that request."""

    def __init__(self, request: Request, seconds: float) -> None:
        self._request = request
        self._seconds = seconds
        self._until = asyncio.get_running_loop().time() + seconds

    async def valid(self) -> bool:
        """Whether they were valid at most so many seconds ago. Can raise each error of an outage."""
        now = asyncio.get_running_loop().time()
        if now >= self._until:
            if not await still_valid(self._request):
                return False
            self._until = now + self._seconds
        return True


class Guard:
    """Checks rights of requests; raises ApiProblem if one is missing."""

    def __init__(self, rights: Rights | None = None) -> None:
        """``rights``: None = each caller has all rights."""
        self._rights = rights

    async def require(self, request: Request, right: Right) -> None:
        """Raise a FORBIDDEN problem unless the caller has this right."""
        if not await self.may(request, right):
            detail = f"{caller_of(request).name} may not {right}"
            raise ApiProblem(ProblemType.FORBIDDEN, detail)

    async def require_all(self, request: Request, rights: Collection[Right]) -> None:
        """The same of many rights. One to all objects of a kind, or to all of a namespace, settles many of them.

        Raises:
            Problem: forbidden, also where more than :data:`MOST_REVIEWS` questions would be needed.
        """
        answers: dict[Right, bool] = {}
        # As tuples: thousands of rights that one wider right settles need no objects for the lookup.
        settled: set[tuple[str, ...]] = set()
        for right in rights:
            kind = (right.verb, right.resource)
            home = (*kind, right.namespace)
            if kind in settled or home in settled:
                continue
            for wider, wide in (
                (Right(*kind), kind),
                (replace(right, name=""), home),
                (right, (*home, right.name)),
            ):
                if wider not in answers:
                    if len(answers) == MOST_REVIEWS:
                        raise ApiProblem(ProblemType.FORBIDDEN, _TOO_MANY)
                    answers[wider] = await self.may(request, wider)
                if answers[wider]:
                    settled.add(wide)
                    break
            else:
                await self.require(request, right)

    def needs(self, verb: str, resource: str) -> Any:
        """A dependency of a route: this right, in the namespace and on the name of its path, if it has them."""

        async def check(request: Request) -> None:
            path = request.path_params
            right = Right(verb, resource, path.get("namespace", ""), path.get("name", ""))
            await self.require(request, right)

        return Depends(check)

    async def visible(
        self,
        request: Request,
        verb: str,
        resource: str,
        namespaces: Callable[[], Awaitable[Iterable[str]]],
    ) -> frozenset[str] | None:
        """The namespaces in which the caller has the right; None = all. ``namespaces`` is called only if needed."""
        if await self.may(request, Right(verb, resource)):
            return None
        there = await namespaces()
        return frozenset([one async for one in self._in(request, verb, resource, there)])

    async def somewhere(
        self,
        request: Request,
        verb: str,
        resource: str,
        namespaces: Callable[[], Awaitable[Iterable[str]]],
    ) -> bool:
        """Whether the caller has the right in any of these namespaces, or in all."""
        if await self.may(request, Right(verb, resource)):
            return True
        there = await namespaces()
        async for _ in self._in(request, verb, resource, there):
            return True
        return False

    async def _in(
        self, request: Request, verb: str, resource: str, namespaces: Iterable[str]
    ) -> AsyncIterator[str]:
        """The namespaces in which the caller has the right; a few are checked at a time."""
        rights = [Right(verb, resource, namespace) for namespace in namespaces]
        for start in range(0, len(rights), _AT_ONCE):
            some = rights[start : start + _AT_ONCE]
            allowed = await asyncio.gather(*(self.may(request, right) for right in some))
            for right, may in zip(some, allowed, strict=True):
                if may:
                    yield right.namespace

    async def writes_some(
        self, request: Request, namespaces: Callable[[], Awaitable[Iterable[str]]]
    ) -> None:
        """Raise a FORBIDDEN problem unless the caller may write some kind of configuration somewhere.

        For documents that name themselves: none is read for a caller who may write none.
        """
        for kind in CONFIG_KINDS:
            if await self.may(request, Right("update", kind.plural)):
                return
        for kind in CONFIG_KINDS:
            if kind.namespaced and await self.somewhere(request, "update", kind.plural, namespaces):
                return
        await self.require(request, Right("update", CONFIG_KINDS[0].plural))

    async def may(self, request: Request, right: Right) -> bool:
        """Whether the caller has this right."""
        return self._rights is None or await self._rights.may(caller_of(request), right)


# ---- Names of gangs


def redactor_for(
    namespaces: Iterable[str], visible: Visible, own: Collection[str] = ()
) -> Redactor:
    """The redactor for a caller that can see the gangs of some of the ``namespaces`` namespaces. ``own``: see :class:`Redactor`."""
    if visible is None:
        return Redactor()
    return Redactor(frozenset(namespaces) - frozenset(visible), drawn=True, own=own)


async def redactor_of(
    guard: Guard, request: Request, store: WorkloadFacts, texts: Iterable[Explanation | str]
) -> Redactor:
    """The redactor for the caller of a request. Can raise ClusterUnavailable and StoreUnavailable.

    Names of gangs in a namespace without a LocalQueue and without a workload are not redacted.
    """
    known: set[str] = set()

    async def there() -> Iterable[str]:
        named = frozenset[str]().union(*map(namespaces_in, texts))
        if named:  # only known namespaces count: a text of this form can also be an image
            known.update(named & await store.namespaces())
        return known

    return redactor_for(known, await guard.visible(request, "list", "workloads", there))
