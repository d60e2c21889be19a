"""In which order the layers stand before the routes.

From the outside in: an id and careful headers; who asks, unless the address failed to say so too often (without authentication:
whether this machine asks); whether too often; the line in the audit log. What is refused before the last one changes nothing and leaves no line, so that nobody
unknown can fill the database. Bodies are read behind all of them, by the routes, once rights are checked.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from fastapi import FastAPI

from queuectl.api.access import Access
from queuectl.api.auth.audit import Audit
from queuectl.api.auth.authentication import SESSION_PATH, Authentication, Open
from queuectl.api.auth.limits import RateLimit, UnknownCallerLimit
from queuectl.api.auth.loopback import ThisMachine
from queuectl.api.auth.requests import Requests
from queuectl.api.auth.sessions import SessionService
from queuectl.api.kinds import PREFIX
from queuectl.api.oidc.login import OidcLogin
from queuectl.api.ports import ApiStore
from queuectl.domain.rate_limit import Buckets

WIDE: Final = (f"{PREFIX}/dryrun", f"{PREFIX}/plans")
"""Paths that take many documents at once, and change nothing."""
CHECK: Final = "/ui/config/check"
"""Where the dashboard's editor has a document checked, which changes nothing either."""


@dataclass(frozen=True, slots=True)
class AuthenticationLayer:
    """How callers are told apart.

    Attributes:
        access: who knows them and their rights.
        secure: browsers reach us by TLS.
        per_second, burst: how often one of them may ask.
        failures_per_second, failure_burst: how often one address may show credentials that are no good.
        doors: what anybody may see.
        login: logins in the browser through an OpenID Connect issuer; None = sessions begin with a token.
    """

    access: Access
    secure: bool = False
    per_second: float = 50.0
    burst: int = 500
    failures_per_second: float = 5.0
    failure_burst: int = 100
    doors: Open = Open()
    login: OidcLogin | None = None


def install(
    app: FastAPI, store: ApiStore, authenticated: AuthenticationLayer | None
) -> SessionService | None:
    """Put the layers before an application; the desk where sessions are opened, if there are any."""
    app.add_middleware(Audit, book=store.audit, harmless=(*WIDE, SESSION_PATH, CHECK))
    session_service = None
    if authenticated is None:
        app.add_middleware(ThisMachine)
    else:
        buckets = Buckets(authenticated.per_second, authenticated.burst)
        failures = Buckets(authenticated.failures_per_second, authenticated.failure_burst)
        session_service = SessionService(
            authenticated.access,
            store.sessions,
            UnknownCallerLimit(failures),
            secure=authenticated.secure,
        )
        app.add_middleware(RateLimit, buckets=buckets)
        app.add_middleware(
            Authentication, session_service=session_service, doors=authenticated.doors
        )
    app.add_middleware(Requests)
    return session_service
