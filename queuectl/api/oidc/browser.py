"""Sign-in in the browser through the issuer, by the authorization code flow with PKCE (RFC 6749, RFC 7636, RFC 9700).

One cookie binds a login to the browser that started it. It holds a random secret; state, nonce and code verifier are
derived from it. So no replica keeps anything for a login that is not complete, any replica can complete it, and the
parameters that the issuer sees do not reveal the verifier. A complete login opens a session.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
import secrets
import time
from collections.abc import Callable, Mapping
from typing import Final
from urllib.parse import quote, unquote, urlencode

import structlog
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from queuectl.api.auth.authentication import SessionService
from queuectl.api.oidc.issuer import CodeRefused, Issuer
from queuectl.api.oidc.tokens import TokenRefused, TokenVerifier, Verified
from queuectl.control.oidc_settings import OidcSettings

LOGIN_SECONDS: Final = 600.0  # in which a login must be completed
CALLBACK: Final = "/ui/signin/callback"
"""Path to which the issuer sends the browser back."""

# ---- The flow

_LONGEST_CODE: Final = 4096  # characters
_LONGEST_PAGE: Final = 1500  # characters: browsers keep cookies of 4,096 bytes
_SECRET: Final = re.compile(r"(?P<started>\d{1,12})\.[\w-]{43}\.(?P<page>[\w-]*)", re.ASCII)
_ERROR: Final = re.compile(r"[a-z_]{1,50}")


class LoginRefused(Exception):
    """A login that is not completed. The message is a sentence for the user, without a final period."""


class OidcLogin:
    """Starts and completes logins. Methods may raise IssuerUnavailable."""

    def __init__(
        self,
        settings: OidcSettings,
        issuer: Issuer,
        verifier: TokenVerifier,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """``clock``: unix seconds."""
        self._settings = settings
        self._issuer = issuer
        self._verifier = verifier
        self._clock = clock
        self._redirect_uri = settings.dashboard_url + CALLBACK

    @property
    def issuer(self) -> str:
        """URL of the issuer."""
        return self._settings.issuer

    async def start(self, page: str) -> tuple[str, str]:
        """Start a login.

        Args:
            page: path to show once it is completed.

        Returns:
            Where to send the browser, and the secret that its cookie keeps until the login is complete.
        """
        provider = await self._issuer.provider()
        kept = _text(page.encode()) if len(page) <= _LONGEST_PAGE else ""
        secret = f"{int(self._clock())}.{secrets.token_urlsafe(32)}.{kept}"
        challenge = hashlib.sha256(_derived(secret, "verifier").encode()).digest()
        query = {
            "response_type": "code",
            "client_id": self._settings.client_id,
            "redirect_uri": self._redirect_uri,
            "scope": self._settings.scope,
            "state": _derived(secret, "state"),
            "nonce": _derived(secret, "nonce"),
            "code_challenge": _text(challenge),
            "code_challenge_method": "S256",
        }
        endpoint = provider.authorization_endpoint
        return f"{endpoint}{'&' if '?' in endpoint else '?'}{urlencode(query)}", secret

    async def complete(self, answer: Mapping[str, str], secret: str) -> tuple[Verified, str]:
        """Complete a login.

        Args:
            answer: parameters with which the issuer sent the browser back.
            secret: of the browser's cookie; empty = it has none.

        Returns:
            The user, and the page to show.

        Raises:
            LoginRefused: it was not started by this browser, took too long, or the issuer or its token is refused.
            BadInput: the client secret cannot be read.
        """
        page = self._started(answer, secret)
        await self._check_issuer(answer)
        if refusal := answer.get("error"):
            shown = refusal if _ERROR.fullmatch(refusal) else "an error"
            raise LoginRefused(f"The issuer refused the sign-in: {shown}")
        code = answer.get("code", "")
        if not 0 < len(code) <= _LONGEST_CODE:
            raise LoginRefused("The issuer sent no authorization code")
        try:
            token = await self._issuer.exchange(
                code, _derived(secret, "verifier"), self._redirect_uri
            )
            return await self._verifier.of_login(token, _derived(secret, "nonce")), page
        except CodeRefused as error:
            raise LoginRefused(f"The issuer refused the authorization code: {error}") from error
        except TokenRefused as error:
            raise LoginRefused(f"The ID token is refused: {error}") from error

    def _started(self, answer: Mapping[str, str], secret: str) -> str:
        """The page to show, if this browser started the login that the issuer answers."""
        if not secret:
            raise LoginRefused("This browser did not start a sign-in, or it was completed already")
        if not hmac.compare_digest(
            answer.get("state", "").encode(), _derived(secret, "state").encode()
        ):
            raise LoginRefused("The answer of the issuer belongs to another sign-in")
        # State and nonce are derived from the whole secret: a browser that changes it completes no login with it.
        parts = _SECRET.fullmatch(secret)
        if parts is None or self._clock() - int(parts["started"]) > LOGIN_SECONDS:
            raise LoginRefused(f"The sign-in took longer than {LOGIN_SECONDS / 60:.0f} minutes")
        try:
            return base64.urlsafe_b64decode(parts["page"] + "==").decode()
        except (binascii.Error, ValueError):
            return ""

    async def _check_issuer(self, answer: Mapping[str, str]) -> None:
        """Refuse an answer of another authorization server (RFC 9207)."""
        named = answer.get("iss")
        required = (await self._issuer.provider()).names_itself
        if named != self._settings.issuer and (required or named is not None):
            raise LoginRefused("The answer is of another issuer")


def _derived(secret: str, purpose: str) -> str:
    return _text(hmac.digest(secret.encode(), purpose.encode(), "sha256"))


def _text(content: bytes) -> str:
    return base64.urlsafe_b64encode(content).rstrip(b"=").decode()


# ---- Requests and responses

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
        name, session = await self._sessions.begin(verified.caller, verified.ends, verified.address)
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
