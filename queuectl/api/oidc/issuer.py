"""An OpenID Connect issuer as its client sees it: discovery document, signing keys and token endpoint.

Discovery document and keys are read together and kept. They are read again after ten minutes, and when a token names a key
that is not known, as after a rotation. However many such tokens arrive, the issuer is asked once in ten seconds.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from base64 import b64encode
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final, Self
from urllib.parse import quote_plus

import httpx2
import orjson
import structlog
from joserfc.errors import JoseError
from joserfc.jwk import JWKRegistry, Key
from joserfc.util import to_bytes, urlsafe_b64decode

from queuectl.control.oidc_settings import OidcSettings, encrypted_or_local
from queuectl.domain.errors import BadInput, IssuerUnavailable

FRESH_SECONDS: Final = 600.0  # after which keys are read again, so that one that is withdrawn ends
KEPT_SECONDS: Final = 3600.0  # for which known keys count while the issuer does not answer
AGAIN_SECONDS: Final = 10.0  # between two attempts to read them
_SECONDS: Final = 5.0  # for one request
_LARGEST: Final = 1 << 20  # bytes of one answer
_SMALLEST_RSA: Final = 2048 // 8  # bytes of the modulus
_KINDS: Final = ("RSA", "EC")
_S256: Final = "S256"

_log = structlog.get_logger(source="queuectl.api")


class CodeRefused(Exception):
    """The token endpoint refuses an authorization code; the message is its error code."""


@dataclass(frozen=True, slots=True)
class Provider:
    """The description of an issuer and its keys.

    Attributes:
        authorization_endpoint, token_endpoint: URLs.
        posts_secret: the token endpoint takes the client secret in the body only.
        names_itself: authorization responses carry the issuer (RFC 9207).
        keys: for signatures.
        read_at: monotonic seconds.
    """

    authorization_endpoint: str
    token_endpoint: str
    posts_secret: bool
    names_itself: bool
    keys: tuple[Key, ...]
    read_at: float

    def key(self, kid: str | None, algorithm: str) -> Key | None:
        """The key of this ID that may make such signatures; without an ID, the only one that may."""
        fitting = [key for key in self.keys if key.get("alg") in (None, algorithm)]
        if kid is not None:
            return next((key for key in fitting if key.kid == kid), None)
        return fitting[0] if len(fitting) == 1 else None


class Issuer:
    """The configured issuer. Methods may raise IssuerUnavailable."""

    def __init__(
        self,
        settings: OidcSettings,
        http: httpx2.AsyncClient,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``http``: closed by its owner. ``clock``: monotonic seconds."""
        self._settings = settings
        self._http = http
        self._clock = clock
        self._provider: Provider | None = None
        self._reading = asyncio.Lock()
        self._again_at = float("-inf")
        self._failure = "it was not asked yet"

    @classmethod
    @asynccontextmanager
    async def connect(cls, settings: OidcSettings) -> AsyncIterator[Self]:
        """An issuer whose connections end with the block. Nothing is sent yet.

        Raises:
            BadInput: the file with certificates cannot be read.
        """
        try:
            trusted = ssl.create_default_context(cafile=settings.ca_file)
        except OSError as error:
            raise BadInput(
                f"QUEUECTL_OIDC__CA_FILE {settings.ca_file}: {error.strerror or error}"
            ) from error
        async with httpx2.AsyncClient(verify=trusted, timeout=_SECONDS, trust_env=False) as http:
            yield cls(settings, http)

    async def provider(self) -> Provider:
        """The description of the issuer, at most :data:`FRESH_SECONDS` old while it answers."""
        known = self._provider
        if known is None or self._clock() - known.read_at >= FRESH_SECONDS:
            known = await self._read_after(known)
        if known is None or self._clock() - known.read_at >= KEPT_SECONDS:
            raise IssuerUnavailable(f"issuer {self._settings.issuer}: {self._failure}")
        return known

    async def key(self, kid: str | None, algorithm: str) -> Key | None:
        """The key that a token names; None = the issuer publishes no such key."""
        known = await self.provider()
        found = known.key(kid, algorithm)
        if found is None:
            newer = await self._read_after(known)
            found = newer.key(kid, algorithm) if newer is not None else None
        return found

    async def exchange(self, code: str, verifier: str, redirect_uri: str) -> str:
        """The ID token for an authorization code.

        Args:
            code: of the authorization response.
            verifier: of PKCE (RFC 7636).
            redirect_uri: of the authorization request.

        Raises:
            CodeRefused: the issuer refuses the code, the verifier or the client.
            BadInput: the client secret cannot be read.
        """
        provider = await self.provider()
        form = {
            "grant_type": "authorization_code",
            "code": code,
            "code_verifier": verifier,
            "redirect_uri": redirect_uri,
        }
        headers = self._authenticate(form, posts=provider.posts_secret)
        status, answer = await self._ask("POST", provider.token_endpoint, headers, form)
        if status in (400, 401, 403):
            error = str(answer.get("error", ""))
            raise CodeRefused(error if error.isidentifier() and len(error) < 50 else str(status))
        token = answer.get("id_token")
        if status != httpx2.codes.OK or not isinstance(token, str):
            raise self._unusable(provider.token_endpoint, f"no ID token (status {status})")
        return token

    def _authenticate(self, form: dict[str, str], *, posts: bool) -> dict[str, str]:
        """Headers that prove the client (RFC 6749, section 2.3); a public client gives its ID alone."""
        path, client = self._settings.client_secret_file, self._settings.client_id
        if path is None:
            form["client_id"] = client
            return {}
        try:
            secret = path.read_text().strip()
        except (OSError, ValueError) as error:
            raise BadInput(f"QUEUECTL_OIDC__CLIENT_SECRET_FILE {path}: cannot be read") from error
        if posts:
            form |= {"client_id": client, "client_secret": secret}
            return {}
        pair = f"{quote_plus(client)}:{quote_plus(secret)}"
        return {"Authorization": f"Basic {b64encode(pair.encode()).decode()}"}

    async def _read_after(self, last: Provider | None) -> Provider | None:
        """The newest description; read again unless it is newer than ``last`` or was tried a moment ago."""
        async with self._reading:
            now = self._clock()
            if self._provider is last and now >= self._again_at:
                self._again_at = now + AGAIN_SECONDS
                try:
                    self._provider = await self._read(now)
                except IssuerUnavailable as error:
                    self._failure = str(error)
                    _log.warning(
                        "issuer_unavailable", issuer=self._settings.issuer, error=str(error)
                    )
            return self._provider

    async def _read(self, now: float) -> Provider:
        url = self._settings.discovery_url
        document = await self._document(url)
        if document.get("issuer") != self._settings.issuer:
            raise self._unusable(url, f"the document is of the issuer {document.get('issuer')!r}")
        methods = document.get("code_challenge_methods_supported")
        if methods is not None and _S256 not in methods:
            raise self._unusable(url, f"the issuer does not support PKCE with {_S256}")
        authorization, token, jwks = (
            self._endpoint(document, name)
            for name in ("authorization_endpoint", "token_endpoint", "jwks_uri")
        )
        proofs = document.get("token_endpoint_auth_methods_supported") or ["client_secret_basic"]
        return Provider(
            authorization,
            token,
            posts_secret="client_secret_basic" not in proofs,
            names_itself=document.get("authorization_response_iss_parameter_supported") is True,
            keys=_keys(await self._document(jwks)),
            read_at=now,
        )

    def _endpoint(self, document: Mapping[str, Any], name: str) -> str:
        url = document.get(name)
        if not isinstance(url, str) or not encrypted_or_local(url):
            raise self._unusable(self._settings.discovery_url, f"{name} is not an https:// URL")
        return url

    async def _document(self, url: str) -> Mapping[str, Any]:
        status, answer = await self._ask("GET", url)
        if status != httpx2.codes.OK:
            raise self._unusable(url, f"status {status}")
        return answer

    async def _ask(
        self,
        method: str,
        url: str,
        headers: Mapping[str, str] | None = None,
        form: Mapping[str, str] | None = None,
    ) -> tuple[int, Mapping[str, Any]]:
        """Status and JSON object of an answer. Redirects are not followed: they could lead anywhere."""
        body = bytearray()
        try:
            async with self._http.stream(method, url, headers=headers, data=form) as answer:
                async for chunk in answer.aiter_bytes():
                    body += chunk
                    if len(body) > _LARGEST:
                        raise self._unusable(url, f"an answer of more than {_LARGEST} bytes")
        except (httpx2.HTTPError, httpx2.InvalidURL) as error:
            raise self._unusable(url, str(error) or type(error).__name__) from error
        try:
            read = orjson.loads(bytes(body))
        except ValueError:
            read = None
        if isinstance(read, dict):
            return answer.status_code, read
        if answer.status_code == httpx2.codes.OK:
            raise self._unusable(url, "the answer is not a JSON object")
        return answer.status_code, {}

    def _unusable(self, url: str, what: str) -> IssuerUnavailable:
        return IssuerUnavailable(f"{url}: {what}")


def _keys(document: Mapping[str, Any]) -> tuple[Key, ...]:
    """Those for signatures; others, and those that are too weak or not readable, are left out."""
    usable = []
    listed = document.get("keys")
    for each in listed if isinstance(listed, list) else ():
        if not isinstance(each, dict) or each.get("kty") not in _KINDS:
            continue
        if each.get("use", "sig") != "sig":
            continue
        try:
            if each["kty"] == "EC" or len(urlsafe_b64decode(to_bytes(each["n"]))) >= _SMALLEST_RSA:
                usable.append(JWKRegistry.import_key(each))
        except (JoseError, LookupError, ValueError, TypeError):
            continue
    return tuple(usable)
