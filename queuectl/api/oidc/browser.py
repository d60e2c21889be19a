"""Logins through the issuer as requests and responses: cookies, redirects, and the session that a login opens."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final
from urllib.parse import quote, unquote

import structlog
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from queuectl.api.auth.authentication import SessionService
from queuectl.api.oidc.login import LOGIN_SECONDS, OidcLogin

_REASON_SECONDS: Final = 60
_LONGEST_REASON: Final = 300  # characters: browsers keep cookies of 4,096 bytes
_NOT_KEPT: Final = {"Cache-Control": "no-store"}
_log = structlog.get_logger(source="queuectl.api")


class BrowserLogins:
    """Starts and completes logins of browsers. Methods may raise IssuerUnavailable and StoreUnavailable."""

    def __init__(self, login: OidcLogin, sessions: SessionService) -> None:
        self._login = login
        self._sessions = sessions
        self._cookie = f"{sessions.cookie}-login"
        self._reason = f"{sessions.cookie}-refusal"

    @property
    def issuer(self) -> str:
        """URL of the issuer."""
        return self._login.issuer

    async def start(self, page: str) -> Response:
        """Send the browser to the issuer. ``page``: path to show after the login."""
        address, secret = await self._login.start(page)
        response = RedirectResponse(address, 303, _NOT_KEPT)
        self._keep(response, self._cookie, secret, int(LOGIN_SECONDS))
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
            request, secret, lambda: self._login.complete(request.query_params, secret)
        )
        assert completed is not None  # it raises where it completes nothing
        verified, page = completed
        name, session = await self._sessions.begin(verified.caller, verified.ends)
        _log.info("signed_in", caller=session.caller.name, issuer=self.issuer)
        response = RedirectResponse(address_of(page), 303, _NOT_KEPT)
        self._sessions.give(response, name, session)
        self._forget(response, self._cookie)
        return response

    def refuse(self, why: str, sign_in: str) -> Response:
        """Send the browser to the sign-in page. A cookie holds the reason, so that no address shows a code.

        Args:
            why: sentences for the user.
            sign_in: address of the page.
        """
        response = RedirectResponse(sign_in, 303, _NOT_KEPT)
        self._forget(response, self._cookie)  # its state counts once
        self._keep(response, self._reason, quote(why[:_LONGEST_REASON], safe=""), _REASON_SECONDS)
        return response

    def refusal(self, request: Request) -> str:
        """The reason of the refusal after which a browser opens the sign-in page; empty if there was none."""
        return unquote(request.cookies.get(self._reason, ""))

    def shown(self, response: Response) -> None:
        """Forget the reason of a refusal, which the sign-in page shows once."""
        self._forget(response, self._reason)

    def _keep(self, response: Response, name: str, cookie: str, seconds: int) -> None:
        # With Strict, browsers leave a cookie out of the requests with which the issuer sends them back.
        response.set_cookie(
            name,
            cookie,
            max_age=seconds,
            path="/",
            secure=self._sessions.secure,
            httponly=True,
            samesite="lax",
        )

    def _forget(self, response: Response, name: str) -> None:
        response.delete_cookie(
            name, path="/", secure=self._sessions.secure, httponly=True, samesite="lax"
        )
