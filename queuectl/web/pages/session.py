"""Sign-in: through an OpenID Connect issuer where one is configured, or with a pasted token. Both open a session."""

from __future__ import annotations

from typing import Final
from urllib.parse import quote, urlsplit

import structlog
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from queuectl.api.oidc.browser import BrowserLogins
from queuectl.api.oidc.login import CALLBACK, LoginRefused
from queuectl.domain.errors import BadInput, IssuerUnavailable
from queuectl.web.site import PREFIX, Site

_log = structlog.get_logger(source="queuectl.web")
_DONE: Final = "/signin/done"


def routes(site: Site, logins: BrowserLogins | None) -> list[Route]:
    """The pages of sign-in, which need no session. ``logins``: None where users sign in with a token only."""

    def form(request: Request, failure: str = "", status: int = 200) -> Response:
        return site.page(
            request,
            "signin.html",
            next=_own_page(request.query_params.get("next")),
            issuer=urlsplit(logins.issuer).netloc if logins is not None else "",
            failure=failure,
            status=status,
        )

    async def sign_in(request: Request) -> Response:
        return form(request)

    found = [Route("/signin", sign_in)]
    if logins is None:
        return found

    async def start(request: Request) -> Response:
        try:
            return await logins.start(_own_page(request.query_params.get("next")))
        except IssuerUnavailable as error:
            return form(request, f"The issuer does not answer ({error}). Try again later.", 503)

    async def callback(request: Request) -> Response:
        try:
            return await logins.complete(
                request, lambda page: f"{PREFIX}{_DONE}?next={quote(_own_page(page), safe='')}"
            )
        except LoginRefused as error:
            _log.info("login_refused", error=str(error))
            response = form(request, f"{error}. Sign in again.", 401)
        except IssuerUnavailable as error:
            response = form(request, f"The issuer does not answer ({error}). Sign in again.", 503)
        except BadInput as error:
            _log.error("login_failed", error=str(error))
            response = form(request, "The client secret of queuectl cannot be read.", 503)
        logins.forget(response)
        return response

    async def done(request: Request) -> Response:
        """Lead on to the wanted page by a request of our own page: browsers send a Strict cookie with no other."""
        return site.page(request, "signedin.html", next=_own_page(request.query_params.get("next")))

    return [
        *found,
        Route("/signin/oidc", start),
        Route(CALLBACK.removeprefix(PREFIX), callback),
        Route(_DONE, done),
    ]


def _own_page(wanted: str | None) -> str:
    """The page to show after sign-in: one of the dashboard, so that no link leads to another site. By default the first page."""
    text = wanted or ""
    plain = text.startswith(f"{PREFIX}/") and "\\" not in text and text.isprintable()
    own = plain and text != f"{PREFIX}/" and "//" not in text.partition("?")[0]
    return text if own else f"{PREFIX}/home"
