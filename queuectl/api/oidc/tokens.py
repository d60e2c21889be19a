"""Callers by ID tokens of the issuer: signature and claims (OpenID Connect Core 1.0, section 3.1.3.7), and the name that the claims give.

The name follows the rules of kube-apiserver's OIDC authentication. Kubernetes keeps names that begin with ``system:`` for itself: an
issuer that gives one to a user could make that user a node or a cluster admin. A token with such a name is refused, before its prefix
is added and after it.
"""

from __future__ import annotations

import hmac
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final

from joserfc import jws, jwt
from joserfc.errors import ExpiredTokenError, InvalidClaimError, JoseError, MissingClaimError
from joserfc.jwt import JWTClaimsRegistry

from queuectl.api.auth.authentication import unverified_claims
from queuectl.api.oidc.issuer import Issuer
from queuectl.control.oidc_settings import NO_PREFIX, RESERVED, OidcSettings
from queuectl.domain.identity import Caller
from queuectl.domain.mail_addresses import verified_address

# ---- Tokens

_ALGORITHMS: Final = (
    "RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512",
)  # fmt: skip
"""The algorithms that kube-apiserver accepts. With a key that is public, HMAC would let each reader of it sign."""
_LEEWAY_SECONDS: Final = 10
"""Largest difference between the clocks of the issuer and of this machine."""
_WRONG: Final = {
    "iss": "it is of another issuer",
    "aud": "it is for another audience",
    "nbf": "it is not valid yet",
    "iat": "it was issued in the future",
}


@dataclass(frozen=True, slots=True)
class Verified:
    """An ID token that is accepted.

    Attributes:
        caller: the user.
        ends: unix seconds.
        address: mail address that the issuer has verified; empty without one.
    """

    caller: Caller
    ends: float
    address: str = ""


class _Registry(jws.JWSRegistry):
    max_header_length = 4096  # bytes: some issuers put certificates there


class TokenVerifier:
    """Verifies ID tokens."""

    def __init__(
        self,
        settings: OidcSettings,
        issuer: Issuer,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """``clock``: unix seconds."""
        self._settings = settings
        self._issuer = issuer
        self._clock = clock
        self._registry = _Registry(algorithms=_ALGORITHMS, strict_check_header=False)

    def is_of_issuer(self, token: str) -> bool:
        """Whether a token names the configured issuer. Its signature is not verified for this."""
        return unverified_claims(token).get("iss") == self._settings.issuer

    async def bearer(self, token: str) -> Verified:
        """Verify a token that a client of the REST API sends.

        Raises:
            TokenRefused: it is not accepted.
            IssuerUnavailable: the keys of the issuer are not known.
        """
        return await self._verify(token, self._settings.accepted_audiences, None)

    async def of_login(self, token: str, nonce: str) -> Verified:
        """Verify the token of a login in the browser; it is for queuectl itself and has this nonce. Raises as :meth:`bearer`."""
        return await self._verify(token, {self._settings.client_id}, nonce)

    async def _verify(self, token: str, audiences: Collection[str], nonce: str | None) -> Verified:
        claims = await self._signed(token)
        self._check(claims, audiences)
        if nonce is not None:
            given = claims.get("nonce")
            if not isinstance(given, str) or not hmac.compare_digest(
                given.encode(), nonce.encode()
            ):
                raise TokenRefused("its nonce is not the one of this sign-in")
        caller = caller_from(claims, self._settings)
        return Verified(caller, claims["exp"], verified_address(claims))

    async def _signed(self, token: str) -> Mapping[str, Any]:
        """The claims, once the signature is verified."""
        try:
            header = jws.extract_compact(token.encode(), registry=self._registry).headers()
        except (JoseError, ValueError, RecursionError) as error:
            raise TokenRefused("it is not a signed JSON Web Token") from error
        algorithm, kid = header.get("alg"), header.get("kid")
        if algorithm not in _ALGORITHMS:
            raise TokenRefused(f"its algorithm is not one of {', '.join(_ALGORITHMS)}")
        key = await self._issuer.key(kid if isinstance(kid, str) else None, algorithm)
        if key is None:
            raise TokenRefused("the issuer publishes no key of its key ID")
        try:
            return jwt.decode(token, key, registry=self._registry).claims
        except (JoseError, ValueError) as error:
            raise TokenRefused("its signature is wrong") from error

    def _check(self, claims: Mapping[str, Any], audiences: Collection[str]) -> None:
        registry = JWTClaimsRegistry(
            now=int(self._clock()),
            leeway=_LEEWAY_SECONDS,
            iss={"essential": True, "value": self._settings.issuer},
            aud={"essential": True, "values": list(audiences)},
            exp={"essential": True},
            iat={"essential": True},
        )
        try:
            registry.validate(dict(claims))
        except ExpiredTokenError as error:
            raise TokenRefused("it has expired") from error
        except MissingClaimError as error:
            missing = [name for name in registry.essential_keys if claims.get(name) is None]
            raise TokenRefused(f"it has no claim {', '.join(sorted(missing))}") from error
        except InvalidClaimError as error:
            why = _WRONG.get(error.claim, f"its claim {error.claim} is not valid")
            raise TokenRefused(why) from error
        party, audience = claims.get("azp"), claims["aud"]
        several = isinstance(audience, list) and len(audience) > 1
        if (several or party is not None) and party not in audiences:
            raise TokenRefused("its authorized party (azp) is another client")


# ---- Claims

_AUTHENTICATED: Final = "system:authenticated"
"""Group that the API server adds to each user that it knows; RBAC can bind it."""
_EMAIL: Final = "email"


class TokenRefused(Exception):
    """An ID token that is not accepted. The message is a clause about the token and quotes no part of its secret."""


def caller_from(claims: Mapping[str, Any], settings: OidcSettings) -> Caller:
    """The caller that verified claims name.

    Raises:
        TokenRefused: a claim is missing, is not text, or names a user or group that Kubernetes reserves.
    """
    claim = settings.username_claim
    if claim not in claims:
        raise TokenRefused(f"it has no claim {claim}, which holds the user name")
    if claim == _EMAIL and claims.get("email_verified", True) is not True:
        raise TokenRefused("its claim email_verified is not true")
    name = _name(claim, claims[claim], settings.username_prefix)
    groups = [
        _name(settings.groups_claim, group, settings.groups_prefix)
        for group in _listed(settings.groups_claim, claims.get(settings.groups_claim))
    ]
    return Caller(name, tuple(dict.fromkeys([*groups, _AUTHENTICATED])))


def _listed(claim: str, content: object) -> list[object]:
    """Groups: a list, one group as text, or none."""
    if content is None:
        return []
    if isinstance(content, str):
        return [content]
    if isinstance(content, list):
        return content
    raise TokenRefused(f"its claim {claim} is neither text nor a list")


def _name(claim: str, content: object, prefix: str) -> str:
    if not isinstance(content, str) or not content or not content.isprintable():
        raise TokenRefused(f"its claim {claim} holds a value that is not printable text")
    name = content if prefix == NO_PREFIX else prefix + content
    if content.startswith(RESERVED) or name.startswith(RESERVED):
        raise TokenRefused(
            f"its claim {claim} gives the name {name!r}; Kubernetes reserves names that begin with {RESERVED}"
        )
    return name
