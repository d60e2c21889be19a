"""An issuer in memory: it signs whatever a test wants, and counts who asks it."""

from __future__ import annotations

import base64
import hashlib
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import parse_qs, urlsplit

import httpx2
from fastapi import FastAPI
from joserfc import jws
from joserfc.jwk import ECKey, RSAKey

from queuectl.api.auth.authentication import OpenPaths
from queuectl.api.oidc.access import OidcAccess
from queuectl.api.oidc.browser import OidcLogin
from queuectl.api.oidc.issuer import Issuer
from queuectl.api.oidc.tokens import TokenVerifier
from queuectl.control.oidc_settings import OidcSettings
from queuectl.notify.receivers_file import ReceiverList
from queuectl.web.app import OPEN, SIGN_IN, add_dashboard
from tests.api.signed import HOST, people, signed_app
from tests.doubles.access import MemoryAccess
from tests.doubles.store import MemoryStore

ISSUER: Final = "https://issuer.example/realms/ml"
CLIENT: Final = "queuectl"
KEY: Final = RSAKey.generate_key(2048, {"kid": "first", "use": "sig"})
ROTATED: Final = RSAKey.generate_key(2048, {"kid": "second", "use": "sig"})
ATTACKER_KEY: Final = RSAKey.generate_key(2048, {"kid": "first", "use": "sig"})
"""A key of an attacker, under the ID of the issuer's."""
CURVE: Final = ECKey.generate_key("P-256", {"kid": "curve", "use": "sig"})


def settings(**given: Any) -> OidcSettings:
    usual = {"issuer": ISSUER, "client_id": CLIENT, "dashboard_url": HOST, "username_claim": "sub"}
    return OidcSettings(**{**usual, **given})


def claims(**given: Any) -> dict[str, Any]:
    """Those of alice, changed; a claim that is None is left out."""
    now = int(time.time())
    usual = {"iss": ISSUER, "aud": CLIENT, "sub": "alice", "iat": now, "exp": now + 300}
    return {name: value for name, value in {**usual, **given}.items() if value is not None}


def signed(body: dict[str, Any], key: Any = KEY, algorithm: str = "RS256", **header: Any) -> str:
    """A token with these claims."""
    head = {"alg": algorithm, "kid": key.kid, **header}
    head = {name: value for name, value in head.items() if value is not None}
    registry = jws.JWSRegistry(algorithms=[algorithm], strict_check_header=False)
    return jws.serialize_compact(head, json.dumps(body), key, registry=registry)


@dataclass
class FakeIssuer:
    """``requests``: paths that were asked for; ``down``: it does not answer; ``discovery``: changes of its document."""

    keys: list[Any] = field(default_factory=lambda: [KEY, CURVE])
    requests: list[str] = field(default_factory=list)
    discovery: dict[str, Any] = field(default_factory=dict)
    down: bool = False
    token: dict[str, Any] = field(default_factory=dict)
    """Changes of the claims of the next ID token."""
    granted: dict[str, dict[str, str]] = field(default_factory=dict)
    """Parameters of authorization requests by the code that answers them."""
    now: float = 0.0

    async def __call__(self, request: httpx2.Request) -> httpx2.Response:
        path = request.url.path.removeprefix("/realms/ml")
        self.requests.append(path)
        if self.down:
            raise httpx2.ConnectError("connection refused", request=request)
        if path == "/.well-known/openid-configuration":
            return httpx2.Response(200, json=self.document())
        if path == "/jwks":
            return httpx2.Response(200, json={"keys": [key.as_dict() for key in self.keys]})
        return self.exchange(parse_qs(request.content.decode()))

    def document(self) -> dict[str, Any]:
        usual = {
            "issuer": ISSUER,
            "authorization_endpoint": f"{ISSUER}/auth",
            "token_endpoint": f"{ISSUER}/token",
            "jwks_uri": f"{ISSUER}/jwks",
            "code_challenge_methods_supported": ["plain", "S256"],
        }
        changed = {**usual, **self.discovery}
        return {name: value for name, value in changed.items() if value is not None}

    def authorize(self, address: str) -> dict[str, str]:
        """The parameters with which the browser of a user who signs in is sent back."""
        asked = {name: values[0] for name, values in parse_qs(urlsplit(address).query).items()}
        code = f"code-{len(self.granted)}"
        self.granted[code] = asked
        return {"code": code, "state": asked["state"]}

    def exchange(self, form: dict[str, list[str]]) -> httpx2.Response:
        asked = self.granted.pop(form["code"][0], None)
        challenge = hashlib.sha256(form["code_verifier"][0].encode()).digest()
        text = base64.urlsafe_b64encode(challenge).rstrip(b"=").decode()
        if asked is None or asked["code_challenge"] != text:
            return httpx2.Response(400, json={"error": "invalid_grant"})
        return httpx2.Response(
            200, json={"id_token": signed(claims(**{"nonce": asked["nonce"], **self.token}))}
        )

    def issuer(self, known: OidcSettings | None = None) -> Issuer:
        """A client of it whose clock is ``now``."""
        http = httpx2.AsyncClient(transport=httpx2.MockTransport(self))
        return Issuer(known or settings(), http, clock=lambda: self.now)

    def access(self, cluster: MemoryAccess | None = None, **given: Any) -> OidcAccess:
        """The identities of the issuer and of a cluster, with these settings."""
        known = settings(**given)
        return OidcAccess(cluster or people(), TokenVerifier(known, self.issuer(known)))

    def app(
        self,
        store: MemoryStore,
        access: MemoryAccess | None = None,
        failures_per_second: float = 5.0,
        receivers: ReceiverList | None = None,
        **given: Any,
    ) -> FastAPI:
        """The API and the dashboard, to which its users sign in."""
        known = settings(**given)
        issuer = self.issuer(known)
        verifier = TokenVerifier(known, issuer)
        app = signed_app(
            store,
            OidcAccess(access or people(), verifier),
            open_paths=OpenPaths(OPEN, SIGN_IN),
            login=OidcLogin(known, issuer, verifier),
            failures_per_second=failures_per_second,
            receivers=receivers,
        )
        add_dashboard(app, store, app.state.guard, signs_in=True)
        return app


@asynccontextmanager
async def browser_of(app: FastAPI) -> AsyncIterator[httpx2.AsyncClient]:
    """Keeps cookies, follows no redirect."""
    transport = httpx2.ASGITransport(app=app, raise_app_exceptions=False)
    async with httpx2.AsyncClient(transport=transport, base_url=HOST) as made:
        yield made
