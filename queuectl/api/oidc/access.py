"""Callers by ID tokens of the issuer, in addition to those whose tokens the cluster reviews. RBAC of the cluster decides for both."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from queuectl.api.access import Access
from queuectl.api.oidc.browser import OidcLogin
from queuectl.api.oidc.issuer import Issuer
from queuectl.api.oidc.tokens import TokenRefused, TokenVerifier, Verified
from queuectl.api.problems import ApiProblem, ProblemType
from queuectl.control.oidc_settings import OidcSettings
from queuectl.domain.identity import Caller, Right

_CHALLENGE: Final = {"WWW-Authenticate": 'Bearer realm="queuectl", error="invalid_token"'}


@asynccontextmanager
async def with_issuer(
    cluster: Access, settings: OidcSettings
) -> AsyncIterator[tuple[Access, OidcLogin | None]]:
    """Callers of the cluster and of the configured issuer, and logins in the browser; without an issuer, the cluster's alone.

    Raises:
        BadInput: the file with the issuer's certificates cannot be read.
    """
    if not settings.issuer:
        yield cluster, None
        return
    async with Issuer.connect(settings) as issuer:
        verifier = TokenVerifier(settings, issuer)
        login = OidcLogin(settings, issuer, verifier) if settings.dashboard_url else None
        yield OidcAccess(cluster, verifier), login


class OidcAccess:
    """The cluster's identities and rights, with the users of an issuer.

    One authority decides about a token: the issuer about each token that names it in ``iss``, the cluster about all
    others. A token of the issuer that is refused is not sent to the API server.
    """

    def __init__(self, cluster: Access, verifier: TokenVerifier) -> None:
        self._cluster = cluster
        self._verifier = verifier

    async def who(self, token: str) -> Caller | None:
        """Whose token this is; None = the cluster does not take it.

        Raises:
            Problem: unauthenticated, with the reason for which an ID token is refused.
            ClusterUnavailable, IssuerUnavailable: the authority does not answer.
        """
        if not self._verifier.is_of_issuer(token):
            return await self._cluster.who(token)
        return (await self._verified(token)).caller

    async def verified_address(self, token: str) -> str | None:
        """The mail address in an ID token, empty if it is not verified; None for a token of the cluster. Raises as :meth:`who`."""
        if not self._verifier.is_of_issuer(token):
            return await self._cluster.verified_address(token)
        return (await self._verified(token)).address

    async def _verified(self, token: str) -> Verified:
        try:
            return await self._verifier.bearer(token)
        except TokenRefused as error:
            detail = f"the ID token is refused: {error}"
            raise ApiProblem(ProblemType.UNAUTHENTICATED, detail, _CHALLENGE) from error

    async def may(self, caller: Caller, right: Right) -> bool:
        """Whether the cluster's RBAC allows it. May raise ClusterUnavailable."""
        return await self._cluster.may(caller, right)
