"""Sign-in: through an OpenID Connect issuer where one is configured, or with a pasted token. Both open a session."""

from __future__ import annotations

from typing import Final
from urllib.parse import quote, urlsplit

import structlog
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from queuectl.api.oidc.browser import CALLBACK, BrowserLogins, LoginRefused
from queuectl.api.problems import ApiProblem
from queuectl.domain.errors import BadInput, IssuerUnavailable, StoreUnavailable
from queuectl.web.site import PREFIX, Site

_log = structlog.get_logger(source="queuectl.web")
_SIGN_IN: Final = "/signin"
_DONE: Final = "/signin/done"
_REFUSALS: Final = (LoginRefused, IssuerUnavailable, StoreUnavailable, ApiProblem)


def routes(site: Site, logins: BrowserLogins | None) -> list[Route]:
    """The pages of sign-in, which need no session. ``logins``: None where users sign in with a token only."""

    async def sign_in(request: Request) -> Response:
        response = site.page(
            request,
            "signin.html",
            next=_own_page(request.query_params.get("next")),
            issuer=urlsplit(logins.issuer).netloc if logins is not None else "",
            failure=logins.refusal(request) if logins is not None else "",
        )
        if logins is not None:
            logins.shown(response)
        return response

    pages = [Route(_SIGN_IN, sign_in)]
    if logins is None:
        return pages

    async def start(request: Request) -> Response:
        try:
            return await logins.start(_own_page(request.query_params.get("next")))
        except IssuerUnavailable as error:
            return logins.refuse(_why(error), f"{PREFIX}{_SIGN_IN}")

    async def callback(request: Request) -> Response:
        try:
            return await logins.complete(
                request, lambda page: f"{PREFIX}{_DONE}?next={quote(_own_page(page), safe='')}"
            )
        except BadInput as error:
            _log.error("login_failed", error=str(error))
            return logins.refuse(_why(error), f"{PREFIX}{_SIGN_IN}")
        except _REFUSALS as error:
            _log.info("login_refused", error=str(error))
            return logins.refuse(_why(error), f"{PREFIX}{_SIGN_IN}")

    async def done(request: Request) -> Response:
        """Lead on to the wanted page by a request of our own page: browsers send a Strict cookie with no other."""
        return site.page(request, "signedin.html", next=_own_page(request.query_params.get("next")))

    return [
        *pages,
        Route("/signin/oidc", start),
        Route(CALLBACK.removeprefix(PREFIX), callback),
        Route(_DONE, done),
    ]


def _why(error: Exception) -> str:
    """Why a login is refused, for the user."""
    if isinstance(error, LoginRefused):
        return f"{error}. Sign in again."
    if isinstance(error, IssuerUnavailable):
        return f"The issuer does not answer ({error}). Try again later."
    if isinstance(error, StoreUnavailable):
        return "The database does not answer. Try again later."
    if isinstance(error, BadInput):
        return "The client secret of queuectl cannot be read."
    return f"The sign-in was refused: {error}."


def _own_page(address: str | None) -> str:
    """The page to show after sign-in: one of the dashboard, so that no link leads to another site. By default the first page."""
    text = address or ""
    plain = text.startswith(f"{PREFIX}/") and "\\" not in text and text.isprintable()
    own = plain and text != f"{PREFIX}/" and "//" not in text.partition("?")[0]
    return text if own else f"{PREFIX}/home"
