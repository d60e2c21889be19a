"""The containers of a pod whose logs can be read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

_DEFAULT: Final = "kubectl.kubernetes.io/default-container"
_FIELDS: Final = ("containers", "initContainers", "ephemeralContainers")


@dataclass(frozen=True, slots=True)
class PodContainers:
    """The containers of one pod.

    Attributes:
        uid: of the pod.
        names: of the containers, then of the init containers, then of the ephemeral ones.
        default: the one that the pod names as its default container; None if it names none of them.
        restarted: those that ran before, so that they have a previous log.
    """

    uid: str
    names: tuple[str, ...]
    default: str | None
    restarted: frozenset[str]


def containers_of(document: Mapping[str, Any]) -> PodContainers:
    """Read a pod. A field of an unexpected form counts as absent."""
    metadata, spec = _mapping(document.get("metadata")), _mapping(document.get("spec"))
    status = _mapping(document.get("status"))
    names = tuple(container["name"] for field in _FIELDS for container in _named(spec.get(field)))
    restarted = frozenset(
        container["name"]
        for field in _FIELDS
        for container in _named(status.get(f"{field.removesuffix('s')}Statuses"))
        if _mapping(container.get("lastState")).get("terminated")
    )
    default = _mapping(metadata.get("annotations")).get(_DEFAULT)
    uid = metadata.get("uid")
    return PodContainers(
        uid=uid if isinstance(uid, str) else "",
        names=names,
        default=default if default in names else None,
        restarted=restarted,
    )


def _named(containers: Any) -> Iterator[Mapping[str, Any]]:
    for container in containers if isinstance(containers, list) else ():
        if isinstance(container, dict) and isinstance(container.get("name"), str):
            yield container


def _mapping(content: Any) -> Mapping[str, Any]:
    return content if isinstance(content, dict) else {}
