"""The work of the GPUs of simulated nodes, and their assignment to pods.

The profile of a pod defines the work of its GPUs: steps ``WORD[=LEVEL][ for SECONDS]``, separated by ``;``, of which the last
has no end. Profiles separated by ``|`` are for successive GPUs, and the last is for all further GPUs::

    busy=0.9                        computes
    busy=0.9 for 60; idle           computes for a minute, then is idle
    stuck                           waits in a collective: the engines are busy without a result
    held                            idle, with its memory full
    slow                            computes at half the clock
    busy | unseen                   computes on the first GPU; the exporter has no pod for the others
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import count
from math import inf
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

_INSTANCES: Final = 7  # of a GPU in MIG mode, in this simulation


@dataclass(frozen=True, slots=True)
class GpuActivity:
    """The work of one GPU, as parts of 1. ``pod_exported``: the exporter has its pod."""

    engine: float = 0.0
    tensor: float = 0.0
    memory_busy: float = 0.0
    memory_held: float = 0.01
    pod_exported: bool = True
    clock: float = 1.0


IDLE: Final = GpuActivity()
_WORDS: Final[Mapping[str, GpuActivity]] = {
    "busy": GpuActivity(0.9, 0.5, 0.4, 0.8),
    "idle": IDLE,
    "held": GpuActivity(memory_held=0.8),
    "stuck": GpuActivity(engine=1.0, memory_held=0.8),
    "slow": GpuActivity(0.9, 0.5, 0.4, 0.8, clock=0.5),
    "unseen": GpuActivity(pod_exported=False),
}


@dataclass(frozen=True, slots=True)
class ActivityStep:
    work: GpuActivity
    seconds: float = inf


def parse_profile(text: str) -> tuple[tuple[ActivityStep, ...], ...]:
    """One tuple of steps for each GPU; the last is for all further GPUs.

    Raises:
        ValueError: the profile is invalid; the message names the wrong part.
    """
    return tuple(
        tuple(_parse_step(step.strip()) for step in gpu.split(";")) for gpu in text.split("|")
    )


def _parse_step(text: str) -> ActivityStep:
    what, _, seconds = text.partition(" for ")
    word, _, level = what.strip().partition("=")
    try:
        work = _WORDS[word]
        if level:
            part = float(level) / work.engine
            work = GpuActivity(
                work.engine * part,
                work.tensor * part,
                work.memory_busy * part,
                work.memory_held,
                clock=work.clock,
            )
        return ActivityStep(work, float(seconds) if seconds else inf)
    except (KeyError, ValueError, ZeroDivisionError):
        words = ", ".join(_WORDS)
        raise ValueError(
            f"{text!r} is not a step of a GPU profile: one of {words}, =LEVEL after busy or stuck, then ' for SECONDS'"
        ) from None


@dataclass(frozen=True, slots=True)
class GpuPod:
    """A pod with GPUs of a node.

    Attributes:
        gpus: number of GPUs or instances.
        since: Unix seconds at which its profile begins.
        mig: profile of its instances; empty for whole GPUs.
        shared: its GPU is time-sliced with other such pods.
    """

    namespace: str
    pod: str
    uid: str
    node: str
    gpus: int
    profile: tuple[tuple[ActivityStep, ...], ...]
    since: float
    container: str = "main"
    mig: str = ""
    shared: bool = False

    def work(self, number: int, now: float) -> GpuActivity:
        """The work of its GPU of this number, from 0."""
        steps = self.profile[min(number, len(self.profile) - 1)]
        passed = now - self.since
        for step in steps:
            if passed < step.seconds:
                return step.work
            passed -= step.seconds
        return steps[-1].work


@dataclass(frozen=True, slots=True)
class SimulatedGpu:
    """A GPU, or an instance of a GPU."""

    node: str
    index: int
    instance: int | None = None
    slice: int | None = None

    @property
    def uuid(self) -> str:
        """The UUID of the GPU, the same for all its instances."""
        return f"GPU-{self.node}-{self.index}"


Assignments = list[tuple[SimulatedGpu, "GpuPod", int]]
"""Devices of a node, each with its pod and the number among the pod's devices."""


class SimulatedGpus:
    """The GPUs of one node and their pods. A pod gets the lowest free GPUs until it is removed."""

    def __init__(self, node: str, gpus: int) -> None:
        self._node = node
        self._gpus = gpus
        self._assignments: dict[str, Assignments] = {}

    def put(self, load: GpuPod) -> None:
        """Assign devices to a pod, unless it has them."""
        if load.uid not in self._assignments:
            self._assignments[load.uid] = [
                (device, load, number) for number, device in enumerate(self._choose(load))
            ]

    def take(self, uid: str) -> None:
        self._assignments.pop(uid, None)

    @property
    def assignments(self) -> Assignments:
        """The assigned devices, in the order of assignment."""
        return [
            assignment for assignments in self._assignments.values() for assignment in assignments
        ]

    @property
    def free_devices(self) -> list[SimulatedGpu]:
        """The free GPUs."""
        used = {device.index for device, _, _ in self.assignments}
        return [SimulatedGpu(self._node, index) for index in range(self._gpus) if index not in used]

    def _choose(self, load: GpuPod) -> list[SimulatedGpu]:
        in_use = [(device, other) for device, other, _ in self.assignments]
        used = {device.index for device, _ in in_use}
        free = (index for index in count() if index not in used)
        if load.shared:
            sliced = [device for device, other in in_use if other.shared]
            index = sliced[0].index if sliced else next(free)
            return [
                SimulatedGpu(self._node, index, slice=len(sliced) + n) for n in range(load.gpus)
            ]
        if not load.mig:
            return [SimulatedGpu(self._node, next(free)) for _ in range(load.gpus)]
        parted = [device for device, other in in_use if other.mig]
        index = parted[-1].index if parted else next(free)
        begun = sum(device.index == index for device in parted)
        if begun + load.gpus > _INSTANCES:
            index, begun = next(free), 0
        return [SimulatedGpu(self._node, index, instance=begun + n) for n in range(load.gpus)]
