"""The readers of all watched resources, for objects with one wrong value each: an error is one of the contract, whatever the value."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from functools import partial
from typing import Any, Final

import msgspec
import pytest

from queuectl.cluster.resources import watched
from queuectl.cluster.stream import LEVELS, ResourceFeed, decoded, identify
from queuectl.domain.containment import Containment
from queuectl.domain.jobs import JobRecord, PodRecord
from queuectl.domain.records import Record, Upserted
from queuectl.objects import keys
from queuectl.objects.errors import UNREADABLE
from queuectl.objects.kinds import KINDS
from queuectl.state.mirror import Mirror
from tests.support.mutations import Path, mutations, paths_of, sampled
from tests.support.readable import READABLE, Document
from tests.support.work import lines_run

RESOURCES = {resource.name: resource for resource in watched()}
VALUES: Final = int(os.environ.get("VALUES") or 2)
"""Values for each field. With VALUES=1000, all of them."""


def read(resource: str, document: bytes) -> Record | None:
    return decoded(RESOURCES[resource].read, document, LEVELS)


def test_each_streamed_resource_has_a_readable_object() -> None:
    assert RESOURCES.keys() == READABLE.keys()
    for name, (_, documents) in READABLE.items():
        for document in documents:
            record = read(name, json.dumps(document).encode())
            assert record is not None
            assert _error(record) is None


def _error(record: Record) -> str | None:
    match record:
        case PodRecord():
            return record.member.job.error if record.member is not None else None
        case _:
            return getattr(record, "error", None)


@pytest.mark.parametrize("resource", READABLE)
def test_a_wrong_value_raises_no_error_but_those_of_the_contract(resource: str) -> None:
    wire, documents = READABLE[resource]
    fields: set[Path] = set()
    readable = 0
    for number, document in enumerate(documents):
        for path in paths_of(document, wire):
            fields.add(path)
            for value in mutations(document, path, sampled(VALUES, f"{number}{path}")):
                try:
                    read(resource, value)
                    readable += 1
                except UNREADABLE:
                    assert path[:1] != ("metadata",) or _has_identity(value, path)
    print(f"{resource}: {len(fields)} fields, {readable} objects with a wrong value are readable")
    assert len(fields) >= FIELDS[resource]


def _has_identity(document: bytes, path: Path) -> bool:
    """Whether the object has an identity, unless the wrong value is the identity."""
    return len(path) < 2 or path[1] in ("name", "uid") or identify(document).name != ""


FIELDS: Final = {
    "nodes": 30,
    "namespaces": 6,
    "priorityclasses": 8,
    "resourcequotas": 40,
    "limitranges": 30,
    "runtimeclasses": 12,
    "resourceslices": 150,
    "deviceclasses": 35,
    "devicetaintrules": 35,
    "resourceclaims": 150,
    "resourceclaimtemplates": 120,
    "noderesourcetopologies": 18,
    "provisioningrequests": 40,
    **{kind.plural: 140 for kind in KINDS.values()},
    "trainjobs": 50,  # Their pod templates are in other objects.
    "leaderworkersets": 150,
    "pods": 150,
}
"""The fields that are mutated at least."""


# ---- fields without a schema in the definition of their kind: the API server accepts anything


def _spark(**spec: Any) -> Document:
    [document] = READABLE["sparkapplications"][1]
    return {**document, "spec": {**document["spec"], **spec}}


def _wrapped(template: Any) -> Document:
    document = READABLE["appwrappers"][1][0]
    return {**document, "spec": {"components": [{"template": template}]}}


def _job(**more: Any) -> Document:
    return {"apiVersion": "batch/v1", "kind": "Job", **more}


TEMPLATES: Final[dict[str, Any]] = {
    "a text": "x",
    "a list": [1],
    "metadata that is a text": {"metadata": "x"},
    "labels that are a text": {"metadata": {"labels": "x"}},
    "a label that is a number": {"metadata": {"labels": {"a": 1}}},
    "a spec that is a list": {"spec": [1]},
    "a container that is null": {"spec": {"containers": [None]}},
    "a container that is a text": {"spec": {"containers": ["x"]}},
    "a name that is a number": {"spec": {"containers": [{"name": 1}]}},
    "requests that are a list": {"spec": {"containers": [{"resources": {"requests": [1]}}]}},
    "a selector that is a list": {"spec": {"nodeSelector": [["a", "b"]]}},
}
SCHEMALESS: Final[dict[str, tuple[str, Document]]] = {
    **{
        f"driver.template: {what}": ("sparkapplications", _spark(driver={"template": template}))
        for what, template in TEMPLATES.items()
    },
    **{
        f"a Job with template: {what}": (
            "appwrappers",
            _wrapped(_job(spec={"template": template})),
        )
        for what, template in TEMPLATES.items()
    },
    "a component that is a list": ("appwrappers", _wrapped([])),
    "a Job whose spec is a text": ("appwrappers", _wrapped(_job(spec="x"))),
    "a Job whose metadata is a text": ("appwrappers", _wrapped(_job(metadata="x"))),
    "memoryOverheadFactor: inf": ("sparkapplications", _spark(memoryOverheadFactor="inf")),
    "memoryOverheadFactor: nan": ("sparkapplications", _spark(memoryOverheadFactor="nan")),
    "memoryOverheadFactor: -1": ("sparkapplications", _spark(memoryOverheadFactor="-1")),
    "memoryOverheadFactor: 1e308": ("sparkapplications", _spark(memoryOverheadFactor="1e308")),
    "a property of 1e400": (
        "sparkapplications",
        _spark(sparkConf={"spark.driver.memoryOverheadFactor": "1e400"}),
    ),
    "memory of 400 digits": ("sparkapplications", _spark(driver={"memory": "9" * 400 + "g"})),
    "memory of 5,000 digits": ("sparkapplications", _spark(driver={"memory": "9" * 5_000})),
    "memory of 18 digits": ("sparkapplications", _spark(driver={"memory": "9" * 18 + "p"})),
}


@pytest.mark.parametrize("case", SCHEMALESS)
def test_a_field_without_a_schema_gives_the_job_an_error_that_names_it(case: str) -> None:
    resource, document = SCHEMALESS[case]
    record = read(resource, json.dumps(document).encode())
    assert isinstance(record, JobRecord)
    assert record.error is not None
    assert len(record.error) < 300
    assert record.queue == "main"


@pytest.mark.parametrize("digits", [11, 400, 5_000])
def test_an_index_of_any_length_is_left_out(digits: int) -> None:
    [document, *_] = READABLE["jobs"][1]
    status = {"failedIndexes": f"1,{'9' * digits},3", "completedIndexes": f"0,5-{'9' * digits}"}
    job = {**document, "status": status}
    alone = read("jobs", json.dumps(job).encode())
    wrapped = read("appwrappers", json.dumps(_wrapped({**job, "metadata": {}})).encode())
    assert isinstance(alone, JobRecord)
    assert isinstance(wrapped, JobRecord)
    assert [podset.count for podset in alone.podsets] == [2]


def test_ranges_of_indexes_that_repeat_are_read_once() -> None:
    document = READABLE["jobs"][1][-1]
    rules = [{"succeededIndexes": "0-99999," * 20_000, "succeededCount": 2}]
    job = {**document, "spec": {**document["spec"], "successPolicy": {"rules": rules}}}
    record = read("jobs", json.dumps(job).encode())
    assert isinstance(record, JobRecord)
    assert record.error is None


def test_an_elastic_jobset_needs_no_parallelism() -> None:
    document = READABLE["jobsets"][1][1]
    [workers] = document["spec"]["replicatedJobs"]
    spec = {**workers["template"]["spec"]}
    del spec["parallelism"], spec["completions"]
    whole = {
        **document,
        "spec": {**document["spec"], "replicatedJobs": [{**workers, "template": {"spec": spec}}]},
    }
    record = read("jobsets", json.dumps(whole).encode())
    assert isinstance(record, JobRecord)
    assert (record.error, record.pods) == (None, 1)


# ---- any depth, at each place where a user can put it


@pytest.mark.parametrize("resource", READABLE)
def test_an_object_that_nests_deep_has_the_record_of_one_that_does_not(resource: str) -> None:
    for document in READABLE[resource][1]:
        plain = read(resource, json.dumps(document).encode())
        for place in ("metadata", "spec", "status"):
            part = document.get(place)
            if not isinstance(part, dict):
                continue
            for opening, closing in (("[", "]"), ('{"a":', "}")):
                deep = opening * 10_000 + "1" + closing * 10_000
                changed = {**document, place: {**part, "unknownField": "@"}}
                text = json.dumps(changed).replace('"@"', deep)
                assert read(resource, text.encode()) == plain


def test_the_owners_of_fields_can_nest_deep() -> None:
    [document, *_] = READABLE["jobs"][1]
    owner = {"operation": "Apply", "fieldsV1": "@"}
    meta = {**document["metadata"], "managedFields": [owner]}
    deep = '{"f:a":' * 10_000 + "{}" + "}" * 10_000
    text = json.dumps({**document, "metadata": meta}).replace('"@"', deep)
    assert read("jobs", text.encode()) == read("jobs", json.dumps(document).encode())


def test_a_component_without_pods_can_nest_deep() -> None:
    document = READABLE["appwrappers"][1][0]
    *others, last = document["spec"]["components"]
    deep = [*others, {**last, "template": {**last["template"], "data": "@"}}]
    text = json.dumps({**document, "spec": {**document["spec"], "components": deep}})
    nested = text.replace('"@"', "[" * 10_000 + "]" * 10_000)
    assert read("appwrappers", nested.encode()) == read(
        "appwrappers", msgspec.json.encode(document)
    )


# ---- through a list and a watch: no object is set aside, and the others are not affected


def _hostile() -> dict[str, tuple[str, bytes]]:
    deep = "[" * 10_000 + "]" * 10_000
    found = {what: (name, json.dumps(one).encode()) for what, (name, one) in SCHEMALESS.items()}
    for resource in ("resourceclaims", "resourceclaimtemplates", "jobs", "pods", "nodes"):
        document = READABLE[resource][1][0]
        meta = {**document["metadata"], "managedFields": [{"fieldsV1": {"f:a": "@"}}]}
        text = json.dumps({**document, "metadata": meta})
        found[f"{resource} with deep owners"] = (resource, text.replace('"@"', deep).encode())
    claim = json.dumps(READABLE["resourceclaims"][1][0])
    found["parameters"] = ("resourceclaims", claim.replace('{"a": "b"}', deep).encode())
    return found


HOSTILE: Final = _hostile()


@pytest.mark.parametrize("case", HOSTILE)
def test_a_hostile_object_is_listed_and_streamed_like_its_neighbors(case: str) -> None:
    resource, document = HOSTILE[case]
    neighbor = json.dumps(READABLE[resource][1][-1]).encode()
    metadata = b'{"metadata":{"resourceVersion":"9"},"items":['
    containment = Containment(lambda: 0.0)
    listed, _ = ResourceFeed(RESOURCES[resource], containment).page(
        metadata + b",".join((neighbor, document, neighbor)) + b"]}"
    )
    lines = [b'{"type":"ADDED","object":%b}' % one for one in (neighbor, document, neighbor)]
    streamed = ResourceFeed(RESOURCES[resource], containment).events(lines)
    for batch in (listed, streamed):
        assert batch.error is None
        assert [type(one) for one in batch.deltas[:3]] == 3 * [Upserted]
    assert containment.empty


# ---- any number


OWN_KEYS: Final = sorted(
    value if "/" in value else keys.PREFIX + value
    for name, value in vars(keys).items()
    if name.isupper() and isinstance(value, str) and not value.endswith("/")
)
# The largest number of nine digits, which annotations can state.
LARGEST_NUMBER: Final = "999999999"
MOST_LINES: Final = 100_000  # of Python; each of these documents takes fewer than 10,000


@pytest.mark.parametrize("resource", READABLE)
def test_a_number_of_nine_digits_takes_no_longer_to_read(resource: str) -> None:
    """Objects are read on the event loop, including those that are in no queue: one of them must not hold it up."""
    wire, documents = READABLE[resource]
    for document in (one for each in documents for one in (each, _running(each))):
        changed = [_with_key(document, key) for key in OWN_KEYS]
        changed += [
            (str(path), json.loads(text))
            for path in paths_of(document, wire)
            for text in mutations(document, path, (LARGEST_NUMBER, f'"{LARGEST_NUMBER}"'))
        ]
        for what, one in changed:
            assert lines_run(partial(_read_and_apply, resource, one)) < MOST_LINES, what


NEGATIVE: Final = ("-1", "-2147483648", '"-1"', '"-2147483648"')


@pytest.mark.parametrize("resource", READABLE)
def test_a_negative_number_never_becomes_a_negative_amount(resource: str) -> None:
    """The mirror multiplies what an object states: its indexes have a record each."""
    wire, documents = READABLE[resource]
    for document in (one for each in documents for one in (each, _running(each))):
        for path in paths_of(document, wire):
            for text in mutations(document, path, NEGATIVE):
                with contextlib.suppress(*UNREADABLE):
                    record = read(resource, text)
                    if record is not None:
                        _apply(record)
                        assert _error(record) or min(_amounts(record), default=0) >= 0, path


def _read_and_apply(resource: str, document: Document) -> None:
    with contextlib.suppress(*UNREADABLE):
        record = read(resource, json.dumps(document).encode())
        if record is not None:
            _apply(record)


def _apply(record: Record) -> None:
    Mirror.of(KINDS).apply([Upserted(record)])


def _amounts(record: Record) -> Iterator[float]:
    if not isinstance(record, JobRecord):
        return
    stated = (record.max_execution, record.expected_duration, record.warmup, record.utilization)
    yield from (one for one in stated if one is not None)
    if record.array is not None:
        yield from (record.array.base, record.array.at_once, record.array.completions)
    for podset in record.podsets:
        yield podset.count - 1
        yield from (*podset.shape.requests.values(), *podset.limits.values())


def _running(document: Document) -> Document:
    return {**document, "spec": {**document.get("spec", {}), "suspend": False}}


def _with_key(document: Document, key: str) -> tuple[str, Document]:
    meta = document["metadata"]
    marked = {
        field: {**meta.get(field, {}), key: LARGEST_NUMBER} for field in ("labels", "annotations")
    }
    return key, {**document, "metadata": {**meta, **marked}}
