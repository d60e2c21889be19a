"""Parses slices of a podset: one level with a size, or up to three nested layers as JSON.

Checks that need a Topology (the existence and the order of levels) happen when flavors are chosen.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from queuectl.domain.fleet import HOSTNAME
from queuectl.domain.workload import Slice
from queuectl.objects import keys
from queuectl.objects.errors import RequestError, explain
from queuectl.objects.names import is_label_key

MOST_LAYERS: Final = 3
NAMES: Final = (keys.SLICE_TOPOLOGY, keys.SLICE_SIZE, keys.SLICE_CONSTRAINTS)


class SliceConstraint(msgspec.Struct, forbid_unknown_fields=True):
    """One layer: an entry of the JSON annotation and of a Workload's topologyRequest."""

    topology: str
    size: int


def annotated_slices(
    annotations: Mapping[str, str] | None, count: int, *, kueue: bool
) -> tuple[Slice, ...]:
    """Slices that a pod template's annotations ask for, for a podset of ``count`` pods.

    Raises:
        RequestError: malformed or contradictory.
    """
    size = keys.either(annotations, keys.SLICE_SIZE, kueue=kueue)
    if size is not None and not (size.isascii() and size.isdecimal() and len(size) < 11):
        raise RequestError(f"{keys.SLICE_SIZE}: {size!r} is not a whole number of pods")
    layers = keys.either(annotations, keys.SLICE_CONSTRAINTS, kueue=kueue)
    return requested_slices(
        keys.either(annotations, keys.SLICE_TOPOLOGY, kueue=kueue),
        None if size is None else int(size),
        None if layers is None else _decoded(layers),
        count,
        NAMES,
    )


def _decoded(text: str) -> list[SliceConstraint]:
    name = keys.SLICE_CONSTRAINTS
    try:
        return msgspec.json.decode(text, type=list[SliceConstraint])
    except msgspec.ValidationError as error:
        path, reason = explain(error)
        raise RequestError(f"{name}{path}: {reason}") from None
    except msgspec.DecodeError:
        raise RequestError(f"{name}: {text!r} is not a JSON list of layers") from None


def requested_slices(
    level: str | None,
    size: int | None,
    layers: Sequence[SliceConstraint] | None,
    count: int,
    names: tuple[str, str, str],
) -> tuple[Slice, ...]:
    """One level and size, or layers; ``names`` are the names of the three fields in the document.

    Raises:
        RequestError: both at once, one without the other, or sizes that do not nest.
    """
    if layers is not None:
        for name, value in ((names[0], level), (names[1], size)):
            if value is not None:
                raise RequestError(f"{name} and {names[2]} contradict each other: keep one of them")
        if not 1 <= len(layers) <= MOST_LAYERS:
            raise RequestError(f"{names[2]}: {len(layers)} layers are not 1 to {MOST_LAYERS}")
        slices = [Slice(layer.topology, layer.size) for layer in layers]
        fields = [f"{names[2]}[{i}]" for i in range(len(layers))]
        _check(slices, count, [(f"{f}.topology", f"{f}.size") for f in fields])
        return tuple(slices)
    if level is None and size is None:
        return ()
    if level is None or size is None:
        missing, given = (names[0], names[1]) if level is None else (names[1], names[0])
        raise RequestError(f"{missing}: is required with {given}")
    _check([Slice(level, size)], count, [(names[0], names[1])])
    return (Slice(level, size),)


def _check(slices: Sequence[Slice], count: int, names: Sequence[tuple[str, str]]) -> None:
    whole, of = count, f"the podset's count {count}"
    levels: set[str] = set()
    for layer, (level_name, size_name) in zip(slices, names, strict=True):
        if not is_label_key(layer.level):
            raise RequestError(f"{level_name}: {layer.level!r} is not a node label key")
        if layer.level in levels:
            raise RequestError(f"{level_name}: {layer.level!r} occurs twice")
        if HOSTNAME in levels:
            raise RequestError(
                f"{level_name}: {layer.level!r} is coarser than {HOSTNAME} before it"
            )
        if layer.size < 1:
            raise RequestError(f"{size_name}: {layer.size} is not a positive number of pods")
        if whole % layer.size:
            raise RequestError(f"{size_name}: {layer.size} does not divide {of}")
        whole, of = layer.size, f"the size {layer.size} of the layer before it"
        levels.add(layer.level)


def check_below(level: str | None, slices: Sequence[Slice], name: str) -> None:
    """Check that slices fit into the domain of the podset.

    Raises:
        RequestError: the level of a slice is coarser than the level of the podset, if this is known without a Topology.
    """
    for layer in slices:
        if level == HOSTNAME != layer.level:
            raise RequestError(f"{name}: {layer.level!r} is coarser than the podset's own {level}")
