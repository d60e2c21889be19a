"""The objects read before another one do not change its record, and hostile objects do not fill the memory."""

from __future__ import annotations

import dataclasses
import tracemalloc
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from typing import Any

import pytest
from msgspec import convert

from queuectl.cluster.resources import watched
from queuectl.cluster.stream import LEVELS, decoded
from queuectl.objects.errors import UNREADABLE
from queuectl.objects.kinds import KINDS
from queuectl.objects.kinds.common import SpecFields, StatedKeys, bounded
from queuectl.objects.kinds.requests import CachedRequests, StatedModes
from queuectl.objects.kubernetes.cached import LONGEST_PART, MOST_BYTES, MOST_ENTRIES, CachedReader
from queuectl.objects.kubernetes.pods import read_pod
from queuectl.objects.kubernetes.requests import read_amounts, read_pod_needs, read_vector
from queuectl.objects.kubernetes.templates import read_podset
from queuectl.objects.kubernetes.wire import (
    Container,
    Needs,
    OwnerReference,
    PodMeta,
    PodSpec,
    Template,
    WirePod,
)
from tests.bench.bench_reflector import job
from tests.support.mutations import mutations, paths_of, sampled
from tests.support.readable import READABLE

RESOURCES = {resource.name: resource for resource in watched()}
NAMES = (*(kind.plural for kind in KINDS.values()), "leaderworkersets", "pods")


def documents(resource: str) -> Iterator[bytes]:
    """Objects with one wrong value each: of each fifth field."""
    wire, valid = READABLE[resource]
    for number, document in enumerate(valid):
        for path in islice(paths_of(document, wire), 0, None, 5):
            yield from mutations(document, path, sampled(1, f"{number}{path}"))


def everything(content: Any) -> Any:
    """A record with the fields that do not count when two are compared."""
    if dataclasses.is_dataclass(content):
        names = (field.name for field in dataclasses.fields(content))
        return type(content), [everything(getattr(content, name)) for name in names]
    return list(map(everything, content)) if isinstance(content, tuple) else content


def record(resource: str, document: bytes) -> Any:
    try:
        return everything(decoded(RESOURCES[resource].read, document, LEVELS))
    except UNREADABLE as error:
        return type(error), str(error)


def read_whole(
    requests: CachedRequests, document: Any, _templates: object, stated: StatedKeys
) -> SpecFields:
    modes = StatedModes(stated.kueue, stated.array, stated.elastic)
    return bounded(requests._ask(document, modes))


def read_each(reader: CachedReader[Any, Any], part: Any, *more: Any) -> Any:
    return reader._read(part, *more)


def test_a_record_does_not_depend_on_those_before(monkeypatch: pytest.MonkeyPatch) -> None:
    given = [(name, document) for name in NAMES for document in documents(name)]
    assert len(given) > 600
    cached = [record(*one) for one in (*given, *given)]
    monkeypatch.setattr(CachedRequests, "read", read_whole)
    monkeypatch.setattr(CachedReader, "__call__", read_each)
    whole = [record(*one) for one in given]
    assert cached == [*whole, *whole]


def test_a_document_is_as_before_after_it_was_read() -> None:
    for kind in KINDS:
        document = convert(job(kind, 1), KINDS[kind].wire)
        before = repr(document)
        KINDS[kind].read(document)
        assert repr(document) == before


def test_the_requests_of_equal_jobs_are_read_once() -> None:
    for kind in KINDS:
        read = partial(KINDS[kind].read, strict=True)
        one, other = (read(convert(job(kind, n), KINDS[kind].wire)) for n in (1, 401))
        assert one.error is None
        assert one.uid != other.uid
        for first, second in zip(one.podsets, other.podsets, strict=True):
            assert first.shape is second.shape
            assert first.needs is second.needs


def test_the_labels_of_a_template_are_those_of_its_job() -> None:
    for n in (1, 401):
        [podset] = KINDS["Job"].read(convert(job("Job", n), KINDS["Job"].wire)).podsets
        assert dict(podset.labels)["batch.kubernetes.io/job-name"] == f"job-{n}"


class TestBounds:
    """Of a cache."""

    def setup_method(self) -> None:
        self.reads = 0
        self.reader = CachedReader[dict[str, Any], int](self.read)

    def read(self, part: dict[str, Any]) -> int:
        self.reads += 1
        if "error" in part:
            raise ValueError("error")
        return len(part)

    @pytest.mark.parametrize(
        "part",
        [
            {"long": "x" * LONGEST_PART},
            {"number": 10**400},
            {"character": "\ud800"},
        ],
        ids=["long", "number", "character"],
    )
    def test_a_part_that_cannot_be_a_key_is_read_each_time(self, part: dict[str, Any]) -> None:
        assert [self.reader(part) for _ in range(2)] == [1, 1]
        assert (self.reads, len(self.reader)) == (2, 0)

    def test_a_part_of_any_depth_is_read(self) -> None:
        deep: Any = 1
        for _ in range(10_000):
            deep = [deep]
        assert self.reader({"deep": deep}) == 1
        while isinstance(deep, list):  # no recursion when it is freed
            deep = deep.pop()

    def test_an_error_is_raised_each_time(self) -> None:
        for _ in range(2):
            with pytest.raises(ValueError, match="error"):
                self.reader({"error": 1})
        assert self.reads == 2

    def test_the_number_of_parts_is_bounded(self) -> None:
        for n in range(MOST_ENTRIES + 10):
            self.reader({"n": n})
            assert len(self.reader) <= MOST_ENTRIES
        self.reader({"n": MOST_ENTRIES + 9})
        assert self.reads == MOST_ENTRIES + 10

    def test_the_size_of_the_parts_is_bounded(self) -> None:
        text = "x" * (LONGEST_PART - 100)
        for n in range(MOST_ENTRIES):
            self.reader({"n": n, "text": text})
            assert len(self.reader) * len(text) <= MOST_BYTES
        assert self.reader({"n": n, "text": text}) == 2
        assert self.reads == MOST_ENTRIES

    def test_numbers_of_different_types_are_different_parts(self) -> None:
        for part in ({"n": 1}, {"n": 1.0}, {"n": True}, {"n": "1"}):
            self.reader(part)
        assert self.reads == 4


def test_long_texts_of_one_user_do_not_stay() -> None:
    """The API server does not check the templates of some kinds, and of the uid of an owner only that it is not empty."""
    text = "x" * 100_000
    readers: tuple[Callable[[str], object], ...] = (
        lambda long: read_amounts({long: "1"}),
        lambda long: read_vector({long: "1"}, round_up=True),
        lambda long: read_pod_needs(PodSpec([Container(resources=Needs({long: "1"}))])),
        lambda long: read_pod(WirePod(PodMeta(owner_references=[owned_by(long)]))),
    )
    for read in readers:
        read(text)
        tracemalloc.start()
        try:
            for n in range(50):
                read(f"{text}{n}")
            assert tracemalloc.get_traced_memory()[0] < 10 * len(text)
        finally:
            tracemalloc.stop()


def owned_by(uid: str) -> OwnerReference:
    return OwnerReference(uid, "Job", controller=True)


def test_an_error_names_the_template_of_each_podset() -> None:
    template = convert({"spec": {"containers": [{"name": "A"}]}}, Template)
    for path in ("spec.one", "spec.other"):
        with pytest.raises(ValueError, match=rf"^{path}\.spec\.containers\[0\]\.name: 'A' is not"):
            read_podset("main", 1, template, path)
