"""The grammar of Kubernetes names."""

from __future__ import annotations

import re
from typing import Final

_LABEL: Final = r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?"
_NAME: Final = re.compile(rf"{_LABEL}(\.{_LABEL})*")
_LABEL_KEY: Final = re.compile(
    r"([a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"
)


def is_name(text: str) -> bool:
    """Whether it may name an object (an RFC 1123 subdomain)."""
    return len(text) <= 253 and bool(_NAME.fullmatch(text))


def is_label_key(text: str) -> bool:
    """Whether Kubernetes takes it as a label's key."""
    return bool(_LABEL_KEY.fullmatch(text))
