"""Callers from the claims of an ID token, by the rules of kube-apiserver's OIDC authentication.

Kubernetes keeps names that begin with ``system:`` for itself: an issuer that gives one to a user could make that user a
node or a cluster admin. A token with such a name is refused, before its prefix is added and after it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from queuectl.control.oidc_settings import NO_PREFIX, RESERVED, OidcSettings
from queuectl.domain.identity import Caller

AUTHENTICATED: Final = "system:authenticated"
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
    return Caller(name, tuple(dict.fromkeys([*groups, AUTHENTICATED])))


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
