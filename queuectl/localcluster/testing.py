"""Helpers for tests on a real control plane: a cluster without fsync, and a wait for a condition."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from queuectl.localcluster.client import wait_until
from queuectl.localcluster.cluster import LocalCluster
from queuectl.localcluster.progress import LineProgress
from queuectl.localcluster.spec import ClusterSpec

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["local_cluster", "wait_until"]


@contextlib.contextmanager
def local_cluster(**spec: Any) -> Iterator[LocalCluster]:
    """A cluster without fsync, while the block runs. Build steps are printed on standard error.

    Args:
        **spec: Fields of `ClusterSpec`.
    """
    with LocalCluster.start(
        ClusterSpec(**{"fsync": False} | spec), progress=LineProgress()
    ) as cluster:
        yield cluster
