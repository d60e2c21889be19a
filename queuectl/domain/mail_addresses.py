"""Mail addresses of users: only plain ones, so that no address is more than one address, a header or a command."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

LONGEST: Final = 254  # characters (RFC 5321, section 4.5.3.1.3, without the angle brackets)
_LONGEST_LOCAL: Final = 64
_ATOM: Final = r"[A-Za-z0-9!#$&'*+/=?^_`{|}~-]+"
_LABEL: Final = r"[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
_PLAIN: Final = re.compile(rf"({_ATOM}(?:\.{_ATOM})*)@({_LABEL}(?:\.{_LABEL})*)", re.ASCII)


def plain_address(text: object) -> str | None:
    """The address with its domain in lower case; None for anything else than one address without quotes, comments and routes.

    The part before the ``@`` keeps its case, because only the mail server of the domain may ignore it.
    """
    if not isinstance(text, str) or len(text) > LONGEST:
        return None
    match = _PLAIN.fullmatch(text)
    if match is None or len(match[1]) > _LONGEST_LOCAL:
        return None
    domain = match[2].lower()
    if domain.rpartition(".")[2].isdecimal():  # an IP address
        return None
    return f"{match[1]}@{domain}"


def verified_address(claims: Mapping[str, Any]) -> str:
    """The address in the claims of an ID token (OpenID Connect Core 1.0, section 5.1); empty unless ``email_verified`` is true."""
    if claims.get("email_verified") is not True:
        return ""
    return plain_address(claims.get("email")) or ""
