"""The names that Kueue derives from a job."""

from __future__ import annotations

from hashlib import sha1
from typing import Final

_LONGEST_NAME: Final = 253
_HASH: Final = 5


def workload_name(kind: str, group: str, name: str, uid: str) -> str:
    """The name of the Workload of a job: it ends with a hash of the job, which contains its uid."""
    text = f"{kind}\n{group}\n{name}\n{uid}"
    digest = sha1(text.encode(), usedforsecurity=False).hexdigest()[:_HASH]
    prefix = f"{kind.lower()}-{name}"[: _LONGEST_NAME - 1 - _HASH]
    return f"{prefix}-{digest}"
