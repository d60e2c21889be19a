"""The order of the layers before the routes.

From the outside: request id and security headers; authentication, with the limit for invalid credentials (without
authentication: the check for loopback); rate limit; audit log. A request that is refused before the audit log changes nothing
and has no entry in it, so that callers without credentials cannot fill the database. The routes read bodies after they have
checked rights.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from fastapi import FastAPI

from queuectl.api.access import Access
from queuectl.api.auth.audit import Audit
from queuectl.api.auth.authentication import SESSION_PATH, Authentication, OpenPaths, SessionService
from queuectl.api.auth.limits import RateLimit, UnknownCallerLimit
from queuectl.api.auth.requests import Requests
from queuectl.api.auth.start import ThisMachine
from queuectl.api.oidc.browser import OidcLogin
from queuectl.db.ports import ApiStore
from queuectl.domain.pacing import Buckets
from queuectl.objects.configuration.config_kinds import PREFIX

WIDE: Final = (f"{PREFIX}/dryrun", f"{PREFIX}/plans")
"""Paths that accept many documents and change nothing."""
CHECK: Final = "/ui/config/check"
"""Path of the check in the dashboard's editor, which changes nothing."""


@dataclass(frozen=True, slots=True)
class AuthenticationLayer:
    """How callers authenticate.

    Attributes:
        access: their identities and rights.
        secure: browsers use TLS.
        per_second, burst: rate limit of one caller.
        failures_per_second, failure_burst: rate limit of invalid credentials from one address.
        open_paths: paths that need no authentication.
        note_caller: called with the name and the address of the caller of each request.
        login: logins in the browser through an OpenID Connect issuer; None = sessions begin with a token.
    """

    access: Access
    secure: bool = False
    per_second: float = 50.0
    burst: int = 500
    failures_per_second: float = 5.0
    failure_burst: int = 100
    open_paths: OpenPaths = OpenPaths()
    login: OidcLogin | None = None
    note_caller: Callable[[str, str], None] = lambda *_: None


def install(
    app: FastAPI,
    store: ApiStore,
    authenticated: AuthenticationLayer | None,
    *,
    keeps_addresses: bool,
) -> SessionService | None:
    """Add the layers to an application. Returns the service for sessions; None without authentication.

    ``keeps_addresses``: a sign-in keeps the verified mail address of its user.
    """
    app.add_middleware(Audit, audit_store=store.audit, harmless=(*WIDE, SESSION_PATH, CHECK))
    session_service = None
    if authenticated is None:
        app.add_middleware(ThisMachine)
    else:
        buckets = Buckets(authenticated.per_second, authenticated.burst)
        failures = Buckets(authenticated.failures_per_second, authenticated.failure_burst)
        session_service = SessionService(
            authenticated.access,
            store.sessions,
            store.notifications if keeps_addresses else None,
            UnknownCallerLimit(failures),
            secure=authenticated.secure,
        )
        app.add_middleware(RateLimit, buckets=buckets)
        app.add_middleware(
            Authentication,
            session_service=session_service,
            open_paths=authenticated.open_paths,
            note_caller=authenticated.note_caller,
        )
    app.add_middleware(Requests)
    return session_service
