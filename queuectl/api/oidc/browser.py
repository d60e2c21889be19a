"""Logins through the issuer as requests and responses: cookies, redirects, and the session that a login opens."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import structlog
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from queuectl.api.auth.sessions import SessionService
from queuectl.api.oidc.login import LOGIN_SECONDS, OidcLogin

_NOT_KEPT: Final = {"Cache-Control": "no-store"}
_log = structlog.get_logger(source="queuectl.api")


class BrowserLogins:
    """Starts and completes logins of browsers. Methods may raise IssuerUnavailable and StoreUnavailable."""

    def __init__(self, login: OidcLogin, sessions: SessionService) -> None:
        self._login = login
        self._sessions = sessions
        self._cookie = f"{sessions.cookie}-login"

    @property
    def issuer(self) -> str:
        """URL of the issuer."""
        return self._login.issuer

    async def start(self, page: str) -> Response:
        """Send the browser to the issuer. ``page``: path to show after the login."""
        address, secret = await self._login.start(page)
        response = RedirectResponse(address, 303, _NOT_KEPT)
        response.set_cookie(
            self._cookie,
            secret,
            max_age=int(LOGIN_SECONDS),
            path="/",
            secure=self._sessions.secure,
            httponly=True,
            # With Strict, browsers leave it out of the request with which the issuer sends them back.
            samesite="lax",
        )
        return response

    async def complete(self, request: Request, address_of: Callable[[str], str]) -> Response:
        """Open the session of a login that the issuer answers, and send the browser on.

        Args:
            request: with the issuer's parameters.
            address_of: the address to send the browser to, for the page that the login was started on.

        Raises:
            LoginRefused: the login is not accepted.
            Problem: too-many-requests.
        """
        secret = request.cookies.get(self._cookie, "")
        completed = await self._sessions.look_up(
            request, lambda: self._login.complete(request.query_params, secret)
        )
        assert completed is not None  # it raises where it completes nothing
        verified, page = completed
        name, session = await self._sessions.begin(verified.caller, verified.ends)
        _log.info("signed_in", caller=session.caller.name, issuer=self.issuer)
        response = RedirectResponse(address_of(page), 303, _NOT_KEPT)
        self._sessions.give(response, name, session)
        self.forget(response)
        return response

    def forget(self, response: Response) -> None:
        """Take back the cookie of a login: its state counts once."""
        response.delete_cookie(
            self._cookie, path="/", secure=self._sessions.secure, httponly=True, samesite="lax"
        )
