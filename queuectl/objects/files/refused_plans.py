"""The file of a refused plan: the snapshot, the plan made from it, and the rules that the plan broke.

It is MessagePack in gzip. The snapshot is complete, so the same planner makes the same plan again. A redacted file has other
names and no sentences. Names keep their order, so its plan is the same with the other names.
"""

from __future__ import annotations

import gzip
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from fractions import Fraction
from importlib.metadata import version
from typing import Any, Final

import msgspec

from queuectl.domain.errors import BadInput
from queuectl.domain.plan import Plan
from queuectl.domain.quantity import Resources
from queuectl.domain.snapshot import Snapshot

FORMAT: Final = "queuectl.dev/refused-plan/v1"
_MOST_BYTES: Final = 1 << 30  # of a file, unpacked
_DIGITS: Final = re.compile(r"(\d+)")
_NUMBER: Final = re.compile(r"-?\d+")
_WORDS: Final = frozenset({"In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt", "Equal", ""})
_SENTENCES: Final[Mapping[str, object]] = {"message": "", "details": {}}
"""Fields that hold text for people, and what a redacted file has instead."""
_TERMS: Final = frozenset(
    {"kind", "reason", "resource", "covered", "level", "levels", "key", "operator"}
)
"""Fields whose text means the same in every cluster."""
_OF_PLACES: Final = frozenset(
    {"fleet", "nodes", "labels", "other_pods", "excluded", "lost", "requirements"}
    | {"selector", "affinity", "taints", "tolerations", "node_labels", "node_taints"}
)
"""Fields with nodes and values of labels."""


@dataclass(frozen=True, slots=True)
class BrokenRule:
    """A rule that the plan broke: its name, by whom or where (uid, node or queue), and a sentence."""

    rule: str
    subject: str
    message: str


@dataclass(frozen=True, slots=True)
class Refused:
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


def _plain(value: object) -> object:
    match value:
        case Resources():
            return dict(value)
        case Fraction():
            return [value.numerator, value.denominator]
        case _:
            raise NotImplementedError(f"{type(value)} has no place in a snapshot")


def _made(kind: type, value: Any) -> object:
    return kind(*value) if kind is Fraction else kind(value)


_encode: Final = msgspec.msgpack.Encoder(enc_hook=_plain).encode
_decode: Final = msgspec.msgpack.Decoder(Refused, dec_hook=_made).decode
_read_plan: Final = msgspec.msgpack.Decoder(Plan, dec_hook=_made).decode


def plan_bytes(plan: Plan) -> bytes:
    """A plan, so that equal plans give equal bytes."""
    return _encode(plan)


def pack(snapshot: Snapshot, plan: Plan, broken: Iterable[BrokenRule]) -> bytes:
    """A file with all names."""
    refused = Refused(FORMAT, version("queuectl"), False, tuple(broken), snapshot, plan_bytes(plan))
    return gzip.compress(_encode(refused), mtime=0)


def unpack(content: bytes, name: str) -> Refused:
    """Read a file.

    Raises:
        BadInput: it is none, or none that this release reads. ``name`` is what the message calls it.
    """
    try:
        refused = _decode(_unzipped(content))
    except (zlib.error, msgspec.MsgspecError, ValueError) as error:
        text = f"{name}: no file of a refused plan that queuectl {version('queuectl')} reads"
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


def same_plan(refused: Refused, plan: Plan) -> bool:
    """Whether a plan made from the file's snapshot is, byte for byte, the one in the file."""
    if not refused.redacted:
        return plan_bytes(plan) == refused.plan
    return plan_bytes(_renamed(_read_plan(plan_bytes(plan)), _Names())) == refused.plan


def redact(content: bytes) -> bytes:
    """The same file without names and sentences. Takes seconds of CPU for a large cluster.

    Namespaces, gangs, users, queues, cohorts, flavors, topologies, priority classes, nodes and values of labels get other
    names. Keys of labels, names of resources and of podsets, and all numbers stay.
    """
    refused = unpack(content, "the file")
    names = _new_names(refused.snapshot)
    subjects = {**names.places, **names.others}
    redacted = replace(
        refused,
        redacted=True,
        broken=tuple(
            BrokenRule(one.rule, subjects.get(one.subject, ""), "") for one in refused.broken
        ),
        snapshot=_renamed(refused.snapshot, names),
        plan=plan_bytes(_renamed(_read_plan(refused.plan), names)),
    )
    return gzip.compress(_encode(redacted), mtime=0)


@dataclass(frozen=True, slots=True)
class _Names:
    """Another name for each: ``places`` for nodes and values of labels, ``others`` for all else."""

    others: Mapping[str, str] = field(default_factory=dict)
    places: Mapping[str, str] = field(default_factory=dict)

    def within(self, part: str) -> _Names:
        """The kind of names in a field with this name."""
        return _Names(self.places, self.places) if part in _OF_PLACES else self


def _renamed(value: Any, names: _Names) -> Any:
    """The same value with other names, and without sentences."""
    if type(value) is str:  # not a member of an enumeration
        return names.others.get(value, value)
    if isinstance(value, tuple | frozenset):
        return type(value)(_renamed(one, names) for one in value)
    if isinstance(value, Mapping) and not isinstance(value, Resources):
        return {
            _renamed(key, names): _renamed(
                one, names.within("labels") if isinstance(one, Mapping) else names
            )
            for key, one in value.items()
        }
    if not is_dataclass(value) or isinstance(value, type):
        return value
    parts = [part.name for part in fields(value) if part.name not in _TERMS]
    changed = {
        part: _SENTENCES[part]
        if part in _SENTENCES
        else _renamed(getattr(value, part), names.within(part))
        for part in parts
    }
    return replace(value, **changed)


def _new_names(snapshot: Snapshot) -> _Names:
    """The planner orders places by the numbers in their names, all else by code points: so the new names are ordered."""
    kept = _WORDS | set(_vocabulary(snapshot))
    places = {p for p in _places(snapshot) if p not in kept and not _NUMBER.fullmatch(p)}
    others = {name for name in _others(snapshot) if name not in kept}
    return _Names(_numbered("n", others, str), _numbered("p", places, _by_numbers))


def _numbered(letter: str, names: Iterable[str], order: Callable[[str], Any]) -> dict[str, str]:
    listed = sorted(sorted(names), key=order)
    width = len(str(len(listed)))
    return {name: f"{letter}{number:0{width}d}" for number, name in enumerate(listed)}


def _by_numbers(name: str) -> list[tuple[int, int, str]]:
    parts = filter(None, _DIGITS.split(name))
    return [(0, int(part), "") if part.isdigit() else (1, 0, part) for part in parts]


def _vocabulary(snapshot: Snapshot) -> Iterator[str]:
    """Names of resources and keys of labels: they mean the same everywhere."""
    for node in snapshot.fleet.nodes:
        yield from node.labels
        yield from node.allocatable
    for labels in snapshot.namespaces.values():
        yield from labels
    for workload in _workloads(snapshot):
        for podset in workload.podsets:
            yield podset.name
            yield from podset.shape.requests
            yield from (key for key, _ in podset.shape.rules.selector)
    queues, cohorts = snapshot.config.cluster_queues.values(), snapshot.config.cohorts.values()
    for groups in (*(queue.groups for queue in queues), *(cohort.groups for cohort in cohorts)):
        yield from (resource for group in groups for resource in group.covered)
    for topology in snapshot.config.topologies.values():
        yield from topology.levels


def _workloads(snapshot: Snapshot) -> Iterator[Any]:
    yield from (pending.workload for pending in snapshot.pending)
    yield from (admitted.workload for admitted in snapshot.admitted)


def _places(snapshot: Snapshot) -> Iterator[str]:
    """Nodes and values of labels."""
    for node in snapshot.fleet.nodes:
        yield node.name
        yield from node.labels.values()
        yield from (taint.value for taint in node.taints)
    yield from snapshot.other_pods
    for labels in snapshot.namespaces.values():
        yield from labels.values()
    for flavor in snapshot.config.flavors.values():
        yield from (value for _, value in flavor.node_labels)
        yield from (taint.value for taint in flavor.node_taints)
        yield from (toleration.value for toleration in flavor.tolerations)
    for queue in snapshot.config.cluster_queues.values():
        if queue.namespace_selector is not None:
            yield from (v for r in queue.namespace_selector.requirements for v in r.values)
    for pending in snapshot.pending:
        yield from pending.excluded
    for workload in _workloads(snapshot):
        for podset in workload.podsets:
            rules = podset.shape.rules
            yield from (value for _, value in rules.selector)
            yield from (v for t in rules.affinity or () for r in t.requirements for v in r.values)
            yield from (toleration.value for toleration in rules.tolerations)
    leases = [pending.lease for pending in snapshot.pending if pending.lease is not None]
    for placement in (
        *(a.placement for a in snapshot.admitted),
        *(lease.placement for lease in leases),
    ):
        yield from (name for podset in placement.podsets for name, _ in podset.nodes)


def _others(snapshot: Snapshot) -> Iterator[str]:
    """Gangs and whose they are, and objects of the configuration."""
    config, used = snapshot.config, snapshot.past_use
    for workload in _workloads(snapshot):
        yield from (workload.uid, workload.namespace, workload.name)
        yield from (workload.queue or "", workload.user or "")
    for pending in snapshot.pending:
        yield from pending.lease.victims if pending.lease is not None else ()
    yield from snapshot.namespaces
    for namespace, quotas in snapshot.allowances.items():
        yield from (namespace, *(quota.name for quota in quotas))
    yield from (*snapshot.moved_work, *used.cluster_queues, *used.users)
    yield from (part for queue in (*used.local_queues, *config.local_queues) for part in queue)
    for queue in config.local_queues.values():
        yield queue.cluster_queue
    for cluster_queue in config.cluster_queues.values():
        yield from (cluster_queue.name, cluster_queue.cohort or "")
    for cohort in config.cohorts.values():
        yield from (cohort.name, cohort.parent or "")
    for override in config.overrides.values():
        yield from (override.name, override.cluster_queue, override.flavor)
    yield from (*config.flavors, *config.topologies, *config.priority_classes, *config.cohorts)
