"""Help for tests on a real control plane: a cluster without fsync, and waiting for what shall become true."""

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
    """A cluster for as long as the block runs, etcd without fsync; build steps are told on standard error.

    Args:
        **spec: Fields of `ClusterSpec`.
    """
    with LocalCluster.start(
        ClusterSpec(**{"fsync": False} | spec), progress=LineProgress()
    ) as cluster:
        yield cluster
