"""File descriptors of the process: as many as the system allows, and some that no connection of a client uses."""

from __future__ import annotations

import resource
from typing import Final

RESERVED: Final = 512
"""For the database, the API server of the cluster, files, health and metrics."""
_MOST: Final = 65_536
"""Enough for all connections; some systems allow a billion."""
_LEAST: Final = 64
"""Connections that are allowed in any case."""


def raise_limit() -> int:
    """Raise the soft limit of open files to the hard limit. Returns the limit in force."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MOST if hard == resource.RLIM_INFINITY else min(hard, _MOST)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return _MOST if soft == resource.RLIM_INFINITY else soft
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return wanted


def connections_within(limit: int, most: int) -> int:
    """The number of connections for which the limit of open files has room, at most ``most``."""
    return min(most, max(limit - RESERVED, _LEAST))
