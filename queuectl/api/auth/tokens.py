"""Claims of bearer tokens before anything is verified."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping
from typing import Any

from queuectl.domain.identity import LONGEST_TOKEN


def unverified_claims(token: str) -> Mapping[str, Any]:
    """The claims of a JSON Web Token; empty for any other text. A client can write any: they decide no right."""
    parts = token.split(".")
    if len(parts) != 3 or len(token) > LONGEST_TOKEN:
        return {}
    try:
        claims = json.loads(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
    except (binascii.Error, ValueError, RecursionError):
        return {}
    return claims if isinstance(claims, dict) else {}


def expiry(token: str) -> float | None:
    """When a token ends, in unix seconds; None if it has no such claim."""
    ends = unverified_claims(token).get("exp")
    try:
        return float(ends) if isinstance(ends, int | float) else None
    except OverflowError:
        return None
