"""The two files of the corpus: ``snapshots.xz``, and ``plans.xz`` with what the planner made of them, in the same order.

``plans.xz`` is text: canonical JSON, a line for each snapshot.
A snapshot has the format of a refused plan (:mod:`queuectl.objects.files.refused_plans`), with an empty plan and without its
own compression: all of them are compressed together, to a fiftieth.
"""

from __future__ import annotations

import gzip
import lzma
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import msgspec

from queuectl.domain.plan import Plan
from queuectl.domain.snapshot import Snapshot
from queuectl.objects.files.refused_plans import pack, unpack

DATA: Final = Path(__file__).parent / "data"
SNAPSHOTS: Final = "snapshots.xz"
PLANS: Final = "plans.xz"
_FILTERS: Final = [{"id": lzma.FILTER_LZMA2, "preset": 6, "dict_size": 1 << 26}]
_HEAD: Final = 4  # bytes


@dataclass(frozen=True, slots=True)
class Entry:
    """One snapshot.

    Attributes:
        source: ``tests``, ``documentation``, ``generated`` or ``benchmarks``.
        name: of the test, page, generator or benchmark, with a number.
        content: a file of a refused plan, without the compression.
    """

    source: str
    name: str
    content: bytes

    @property
    def key(self) -> str:
        return f"{self.source}:{self.name}"

    def snapshot(self) -> Snapshot:
        """Decode it."""
        return unpack(self.file(), self.key).snapshot

    def file(self) -> bytes:
        """As ``queuectl plan --snapshot`` reads it."""
        return gzip.compress(self.content, 1, mtime=0)


def entry_of(source: str, name: str, snapshot: Snapshot) -> Entry:
    return Entry(source, name, gzip.decompress(pack(snapshot, Plan(), ())))


@dataclass(frozen=True, slots=True)
class Recorded:
    """The planner's answer for one snapshot; plain JSON values.

    Attributes:
        key: of the entry.
        digest: of the plan in canonical JSON, SHA-256.
        plan: every field of it.
        score: what must not get worse; :mod:`tests.corpus.score`.
        features: what the snapshot asks of the planner; :mod:`tests.corpus.features`.
        diagnoses: by uid, of some pending gangs of some snapshots.
    """

    key: str
    digest: str
    plan: dict[str, Any]
    score: dict[str, Any]
    features: tuple[str, ...] = ()
    diagnoses: dict[str, dict[str, Any]] = field(default_factory=dict)


def read_entries(directory: Path = DATA) -> Iterator[Entry]:
    """One after the other, so that they are never all in memory."""
    decode = msgspec.msgpack.Decoder(Entry).decode
    with lzma.open(directory / SNAPSHOTS, "rb") as file:
        while head := file.read(_HEAD):
            yield decode(file.read(int.from_bytes(head, "big")))


def read_recorded(directory: Path = DATA) -> Iterator[Recorded]:
    decode = msgspec.json.Decoder(Recorded).decode
    with lzma.open(directory / PLANS, "rb") as file:
        yield from map(decode, file)


def write_entries(entries: Iterable[Entry], directory: Path = DATA) -> None:
    """Each with its length before it."""
    packed = map(msgspec.msgpack.encode, entries)
    _write(directory / SNAPSHOTS, (len(p).to_bytes(_HEAD, "big") + p for p in packed))


def write_recorded(recorded: Iterable[Recorded], directory: Path = DATA) -> None:
    """One a line."""
    _write(directory / PLANS, (canonical(one) + b"\n" for one in recorded))


def canonical(value: Any) -> bytes:
    """JSON in which equal values are equal bytes."""
    return msgspec.json.encode(value, order="deterministic")


def _write(path: Path, parts: Iterable[bytes]) -> None:
    """The file is replaced when it is whole."""
    path.parent.mkdir(exist_ok=True)
    new = path.with_suffix(".new")
    with lzma.open(new, "wb", format=lzma.FORMAT_XZ, filters=_FILTERS) as file:
        for part in parts:
            file.write(part)
    new.replace(path)
