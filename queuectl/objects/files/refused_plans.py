"""The file of a refused plan: the snapshot, the plan made from it, and the rules that the plan broke.

It is MessagePack in gzip. The snapshot is complete, so the same planner makes the same plan again. A redacted file has other
names and no sentences. Names keep their order, so its plan is the same with the other names.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterable
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, Final

import msgspec

from queuectl.distribution import version
from queuectl.domain.devices import NO_DEVICES
from queuectl.domain.errors import BadInput
from queuectl.domain.fleet import Fleet
from queuectl.domain.plan import Plan
from queuectl.domain.quantity import Resources
from queuectl.domain.snapshot import Snapshot
from queuectl.objects.files.redaction import Names, new_names, renamed

FORMAT: Final = "queuectl.dev/refused-plan/v1"
_MOST_BYTES: Final = 1 << 30  # of a file, unpacked


@dataclass(frozen=True, slots=True)
class BrokenRule:
    """A rule that the plan broke: its name, by whom or where (uid, node or queue), and a sentence."""

    rule: str
    subject: str
    message: str


@dataclass(frozen=True, slots=True)
class RefusedPlanFile:
    """A file.

    Attributes:
        format: ``queuectl.dev/refused-plan/v1``.
        version: of the queuectl that made the plan.
        redacted: names are replaced and sentences are left out.
        broken: the rules that the plan broke.
        snapshot: what the plan was made from.
        plan: as :func:`plan_bytes` writes it.
    """

    format: str
    version: str
    redacted: bool
    broken: tuple[BrokenRule, ...]
    snapshot: Snapshot
    plan: bytes


def _plain(content: object) -> object:
    match content:
        case Resources():
            return dict(content)
        case Fraction():
            whole = content.denominator == 1
            return content.numerator if whole else [content.numerator, content.denominator]
        case _:
            raise NotImplementedError(f"{type(content)} has no place in a snapshot")


def _made(kind: type, content: Any) -> object:
    return Fraction(*content) if kind is Fraction and isinstance(content, list) else kind(content)


_encode: Final = msgspec.msgpack.Encoder(enc_hook=_plain).encode
_decode: Final = msgspec.msgpack.Decoder(RefusedPlanFile, dec_hook=_made).decode
_plan_from: Final = msgspec.msgpack.Decoder(Plan, dec_hook=_made).decode


def plan_bytes(plan: Plan) -> bytes:
    """A plan, so that equal plans give equal bytes."""
    return _encode(plan)


def read_plan(content: bytes) -> Plan:
    """The plan that :func:`plan_bytes` wrote."""
    return _plan_from(content)


def pack(snapshot: Snapshot, plan: Plan, broken: Iterable[BrokenRule]) -> bytes:
    """A file with all names."""
    refused = RefusedPlanFile(FORMAT, version(), False, tuple(broken), snapshot, plan_bytes(plan))
    return gzip.compress(_encode(refused), mtime=0)


def unpack(content: bytes, name: str) -> RefusedPlanFile:
    """Read a file.

    Raises:
        BadInput: it is not one, or this release cannot read it. ``name`` is what the message calls it.
    """
    try:
        refused = _decode(_unzipped(content))
    except (zlib.error, msgspec.MsgspecError, ValueError) as error:
        text = f"{name}: no file of a refused plan that queuectl {version()} reads"
        raise BadInput(f"{text}: {error}") from None
    if refused.format != FORMAT:
        raise BadInput(f"{name}: format: {refused.format!r} is not {FORMAT!r}")
    return refused


def _unzipped(content: bytes) -> bytes:
    unzip = zlib.decompressobj(wbits=31)
    unzipped = unzip.decompress(content, _MOST_BYTES)
    if not unzip.eof:
        raise ValueError("it is cut off, or too large")
    return unzipped


def same_plan(refused: RefusedPlanFile, plan: Plan) -> bool:
    """Whether a plan made from the file's snapshot is, byte for byte, the one in the file."""
    if not refused.redacted:
        return plan_bytes(plan) == refused.plan
    return plan_bytes(renamed(read_plan(plan_bytes(plan)), Names())) == refused.plan


def redact(content: bytes) -> bytes:
    """The same file without names and sentences. Takes seconds of CPU for a large cluster.

    Namespaces, gangs, users, queues, cohorts, flavors, topologies, priority classes, nodes and values of labels get other
    names. Keys of labels, names of resources and of podsets, and all numbers stay. The devices of nodes are left out: their rows are
    amounts of the nodes. Changes of MIG configurations are left out, because no plan depends on them.
    """
    refused = unpack(content, "the file")
    nodes = (replace(node, mig=None) for node in refused.snapshot.fleet.nodes)
    refused = replace(
        refused,
        snapshot=replace(
            refused.snapshot,
            fleet=Fleet(tuple(nodes)),
            devices=NO_DEVICES,
            other_devices={},
            claims={},
        ),
    )
    names = new_names(refused.snapshot)
    subjects = {**names.places, **names.other_names}
    redacted = replace(
        refused,
        redacted=True,
        broken=tuple(
            BrokenRule(one.rule, subjects.get(one.subject, ""), "") for one in refused.broken
        ),
        snapshot=renamed(refused.snapshot, names),
        plan=plan_bytes(renamed(read_plan(refused.plan), names)),
    )
    return gzip.compress(_encode(redacted), mtime=0)
