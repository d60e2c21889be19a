"""The grammar of Kubernetes names."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final
from zoneinfo import ZoneInfo

NAME: Final = r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,251}[A-Za-z0-9])?"
"""Pattern of :func:`is_name`, which CEL and JSON Schema read too."""
LABEL_KEY: Final = (
    r"([a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"
)
"""Pattern of :func:`is_label_key`."""
_NAME: Final = re.compile(NAME)
_LABEL_KEY: Final = re.compile(LABEL_KEY)
_LONGEST_KEY: Final = 253 + 1 + 63
_LABEL_VALUE: Final = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?")
_DNS_LABEL: Final = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_GATE: Final = re.compile(
    r"([a-z0-9]([-a-z0-9.]*[a-z0-9])?/[A-Za-z0-9/._~%!$&'()*+;=:@-]+|[A-Za-z0-9._~%!$&'()*+;=:@-]+)"
)
LONGEST_GATE: Final = 63
"""Characters in the name of an admission gate, as in Kueue."""


def is_name(text: str) -> bool:
    """Whether it may name a configuration object: what a label may hold, as a queue is named by one.

    Wider than the API server's DNS names: configuration does not live there, and other schedulers' files name queues so.
    """
    return bool(_NAME.fullmatch(text))


def is_label_key(text: str) -> bool:
    """Whether Kubernetes takes it as a label's key."""
    return len(text) <= _LONGEST_KEY and _is_label_key(text)


@lru_cache(maxsize=4096)
def _is_label_key(text: str) -> bool:
    return bool(_LABEL_KEY.fullmatch(text))


def is_label_value(text: str) -> bool:
    """Whether Kubernetes takes it as a label's value."""
    return bool(_LABEL_VALUE.fullmatch(text))


def is_dns_label(text: str) -> bool:
    """Whether Kubernetes takes it as the name of a container or a namespace."""
    return bool(_DNS_LABEL.fullmatch(text))


def is_gate(text: str) -> bool:
    """Whether Kueue accepts it as the name of an admission gate. The domain before the slash is optional here."""
    return len(text) <= LONGEST_GATE and bool(_GATE.fullmatch(text))


def is_time_zone(text: str) -> bool:
    """Whether it is a name of the IANA time zone database."""
    try:
        ZoneInfo(text)
    except (ValueError, OSError, KeyError):  # ZoneInfoNotFoundError is a KeyError
        return False
    return True
