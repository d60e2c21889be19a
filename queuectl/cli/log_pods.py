"""The pods whose logs are printed: of the newest start that has begun, by rank."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from queuectl.cli.errors import CommandFailed, Exit
from queuectl.domain.words import some

if TYPE_CHECKING:
    from queuectl.cli.client import Json
    from queuectl.client.types import PodJson

_WAITS: Final = "Pending"
_PREFERENCE: Final = ("Running", "Succeeded", "Failed", "Unknown", _WAITS)
"""Phases: of several pods with one rank, the log of the first is printed."""
_SHOWN: Final = 20
"""Names in one message."""


@dataclass(frozen=True, slots=True)
class RankedPod:
    """A pod, and how users name it among the pods of its gang.

    Attributes:
        label: rank, after the podset if there are several; the name if it has no rank.
        rank: None = its kind has no ranks.
        reason: why it has no log yet; empty if it has begun.
    """

    name: str
    label: str
    podset: str
    rank: int | None
    reason: str = ""


def ranked_pods(workload: Json, pods: Iterable[PodJson]) -> list[RankedPod]:
    """The pods of the newest start, one for each rank, in the order of podsets and ranks.

    Raises:
        CommandFailed: no pod has begun; the message has the reason of the gang, or of its first pod.
    """
    known = list(pods)
    attempt = max((pod["attempt"] for pod in known if pod["phase"] != _WAITS), default=None)
    if attempt is None:
        raise _not_begun(workload, known)
    members = [pod for pod in known if pod["attempt"] == attempt]
    several = len({pod["podSet"] for pod in members}) > 1
    best: dict[tuple[str, int | str], PodJson] = {}
    for pod in sorted(members, key=_preference):
        best.setdefault((pod["podSet"], _key(pod)), pod)
    ordered = sorted(best.values(), key=lambda pod: (pod["podSet"], pod["rank"] or 0, pod["name"]))
    return [_ranked(pod, several=several) for pod in ordered]


def _key(pod: PodJson) -> int | str:
    return pod["name"] if pod["rank"] is None else pod["rank"]


def _preference(pod: PodJson) -> tuple[bool, int, str]:
    phase = pod["phase"]
    place = _PREFERENCE.index(phase) if phase in _PREFERENCE else len(_PREFERENCE)
    return pod["terminating"], place, pod["name"]


def _ranked(pod: PodJson, *, several: bool) -> RankedPod:
    rank = pod["rank"]
    label = pod["name"] if rank is None else f"{pod['podSet']}/{rank}" if several else str(rank)
    reason = (pod["reason"] or "it has not started yet") if pod["phase"] == _WAITS else ""
    return RankedPod(pod["name"], label, pod["podSet"], rank, reason)


def _not_begun(workload: Json, pods: Sequence[PodJson]) -> CommandFailed:
    name, state = f"{workload['namespace']}/{workload['name']}", workload["state"]
    if state == "Finished":
        text = f"{name} has finished, and its pods are deleted with their logs"
        return CommandFailed(text, Exit.NOT_FOUND)
    waits = next((pod for pod in sorted(pods, key=lambda pod: pod["name"]) if pod["node"]), None)
    if waits is not None:
        why = waits["reason"] or "it has not started yet"
        text = f"{name} is {state}, and no pod has begun: {waits['name']} on {waits['node']}: {why}"
    else:
        text = (
            f"{name} has not started, so it has no logs: {state}: {workload['reason']['message']}"
        )
    return CommandFailed(text, Exit.CONFLICT)


def pod_of_rank(workload: Json, pods: Sequence[RankedPod], text: str) -> RankedPod:
    """The pod of a rank given as ``N`` or ``PODSET/N``.

    Raises:
        CommandFailed: no pod has the rank, or several have it; the message names the ranks.
    """
    podset, _, number = text.rpartition("/")
    name = f"{workload['namespace']}/{workload['name']}"
    if not any(pod.rank is not None for pod in pods):
        listed = some([pod.name for pod in pods], _SHOWN)
        raise CommandFailed(
            f"the pods of {name} have no ranks: use --all-ranks, or `kubectl logs POD -n {workload['namespace']}`; "
            f"its pods are {listed}",
            Exit.BAD_INPUT,
        )
    rank = int(number) if number.isascii() and number.isdecimal() and len(number) < 10 else None
    found = [pod for pod in pods if pod.rank == rank and podset in ("", pod.podset)]
    if rank is None or not found:
        raise CommandFailed(
            f"{name} has no rank {text!r}; its ranks are {_ranks(pods)}", Exit.BAD_INPUT
        )
    if len(found) > 1:
        which = " or ".join(f"--rank {pod.podset}/{rank}" for pod in found)
        raise CommandFailed(
            f"several pods of {name} have rank {rank}: give {which}", Exit.BAD_INPUT
        )
    return found[0]


def _ranks(pods: Iterable[RankedPod]) -> str:
    """The ranks of each podset, as ``0 to 7``, or ``launcher/0, worker/0 to 7``."""
    by_podset: dict[str, list[int]] = {}
    for pod in pods:
        if pod.rank is not None:
            by_podset.setdefault(pod.podset, []).append(pod.rank)
    several = len(by_podset) > 1
    runs = [
        f"{podset}/{part}" if several else part
        for podset, ranks in by_podset.items()
        for part in _runs(ranks)
    ]
    return some(runs, _SHOWN)


def _runs(ranks: Iterable[int]) -> list[str]:
    """Rising numbers, those in a row together."""
    runs: list[list[int]] = []
    for rank in sorted(ranks):
        if runs and runs[-1][1] == rank - 1:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
    return [str(first) if first == last else f"{first} to {last}" for first, last in runs]
