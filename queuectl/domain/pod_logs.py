"""Which part of the log of a pod is read."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PodIdentity:
    """One pod. Another one can have its name later."""

    namespace: str
    name: str
    uid: str


@dataclass(frozen=True, slots=True)
class LogRequest:
    """The log of one container.

    Attributes:
        previous: of the container before its last restart.
        follow: until the container ends; otherwise the lines of now.
        tail: number of its last lines with which it begins.
    """

    pod: PodIdentity
    container: str
    previous: bool
    follow: bool
    tail: int
