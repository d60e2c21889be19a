"""The properties by which gangs are similar, and how long gangs ran."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Work:
    """The properties by which gangs are similar. An empty text or 0 = not known.

    Attributes:
        cluster_queue: the ClusterQueue that the gang is charged to.
        namespace: of the gang and its LocalQueue.
        queue: its LocalQueue.
        user: its user.
        name: of its object.
        pods: of all podsets.
        gpus: of all pods.
    """

    cluster_queue: str = ""
    namespace: str = ""
    queue: str = ""
    user: str = ""
    name: str = ""
    pods: int = 0
    gpus: int = 0


@dataclass(frozen=True, slots=True)
class Run:
    """A finished gang, and the seconds for which it held its nodes, all attempts together."""

    work: Work
    seconds: float
