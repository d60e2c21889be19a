"""The bytes of a watch become deltas, for any division by the network."""

from __future__ import annotations

import time
from itertools import pairwise
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from queuectl.cluster.client import Expired
from queuectl.cluster.resources import Resource, watched
from queuectl.cluster.stream import INITIAL_EVENTS_END, LineSplitter, ResourceFeed
from queuectl.domain.containment import Boundary, Containment
from queuectl.domain.errors import ClusterUnavailable
from queuectl.domain.records import Deleted, Delta, ListCompleted, Unreadable, Upserted, key_of
from queuectl.objects.kubernetes.provisioning import WORKLOAD
from tests.support.jobs import batch_job

RESOURCES = {resource.name: resource for resource in watched()}


def pod(name: str, version: int) -> dict[str, Any]:
    return {"metadata": {"name": name, "uid": f"uid-{name}", "resourceVersion": str(version)}}


def job(name: str, version: int, queue: str | None = "main") -> dict[str, Any]:
    document = batch_job(name, queue=queue)
    document["metadata"] |= {"uid": f"uid-{name}", "resourceVersion": str(version)}
    return document


def line(kind: str, document: dict[str, Any]) -> bytes:
    return msgspec.json.encode({"type": kind, "object": document})


def bookmark(version: int, *, end: bool = False) -> bytes:
    annotations = {INITIAL_EVENTS_END: "true"} if end else {}
    return line(
        "BOOKMARK", {"metadata": {"resourceVersion": str(version), "annotations": annotations}}
    )


def feed(resource: str = "pods") -> ResourceFeed:
    return ResourceFeed(RESOURCES[resource], Containment(time.time))


def short(deltas: list[Delta]) -> list[tuple[str, str]]:
    return [described(delta) for delta in deltas]


def described(delta: Delta) -> tuple[str, str]:
    match delta:
        case Upserted(record):
            return "+", key_of(record)
        case Deleted():
            return "-", delta.key
        case ListCompleted():
            return "=", ",".join(sorted(delta.keys))
        case Unreadable():
            return "?", delta.key


@given(st.lists(st.integers(0, 400), max_size=12))
def test_lines_are_complete_wherever_they_are_cut(cuts: list[int]) -> None:
    whole = b"".join(b'{"n":%d}\n' % n for n in range(40))
    points = [0, *sorted(cuts), len(whole)]
    lines = LineSplitter()
    found: list[bytes] = []
    for left, right in pairwise(points):
        found += lines.feed(whole[left:right])
    assert found == whole.splitlines()


def test_events_become_deltas_in_order_and_move_the_version() -> None:
    one = feed()
    batch = one.events(
        [line("ADDED", pod("a", 5)), line("MODIFIED", pod("a", 6)), line("DELETED", pod("a", 7))]
    )
    assert short(batch.deltas) == [("+", "uid-a"), ("+", "uid-a"), ("-", "uid-a")]
    assert (batch.events, batch.complete, batch.error) == (3, False, None)
    assert one.version == "7"


def test_a_bookmark_moves_the_version_and_only_the_marked_one_ends_the_list() -> None:
    one = feed()
    assert not one.events([line("ADDED", pod("a", 5)), bookmark(9)]).complete
    assert one.version == "9"
    batch = one.events(
        [line("ADDED", pod("b", 9)), bookmark(10, end=True), line("DELETED", pod("a", 11))]
    )
    assert batch.complete
    assert short(batch.deltas) == [("+", "uid-b"), ("=", "uid-a,uid-b"), ("-", "uid-a")]


def test_events_before_an_error_count() -> None:
    one = feed()
    status = {"code": 410, "reason": "Expired", "message": "too old resource version"}
    batch = one.events(
        [line("ADDED", pod("a", 5)), line("ERROR", status), line("ADDED", pod("b", 6))]
    )
    assert short(batch.deltas) == [("+", "uid-a")]
    assert isinstance(batch.error, Expired)
    assert one.version == "5"


@pytest.mark.parametrize("code", [500, 504, 403])
def test_another_error_event_breaks_the_watch(code: int) -> None:
    batch = feed().events([line("ERROR", {"code": code, "message": "no"})])
    assert isinstance(batch.error, ClusterUnavailable)


@pytest.mark.parametrize("garbage", [b"<html>", b'{"type":"ADDED"}', b"[]"])
def test_invalid_bytes_break_the_watch_after_the_valid_events(garbage: bytes) -> None:
    batch = feed().events([line("ADDED", pod("a", 5)), garbage])
    assert isinstance(batch.error, ClusterUnavailable)
    assert short(batch.deltas) == [("+", "uid-a")]


def test_unlabeled_jobs_are_dropped_without_a_log_event() -> None:
    one = feed("jobs")
    batch = one.events(
        [line("ADDED", job("a", 5, queue=None)), line("MODIFIED", job("a", 6, queue=None))]
    )
    assert batch.deltas == []
    assert one.version == "6"


def test_a_job_that_loses_its_label_is_deleted_once() -> None:
    one = feed("jobs")
    events = [
        line("ADDED", job("a", 5)),
        line("MODIFIED", job("a", 6, queue=None)),
        line("MODIFIED", job("a", 7, queue=None)),
        line("DELETED", job("a", 8, queue=None)),
    ]
    assert short(one.events(events).deltas) == [("+", "uid-a"), ("-", "uid-a")]
    assert not one.keys


@pytest.mark.sets_aside
def test_an_unreadable_object_is_reported_and_hides_no_other() -> None:
    one = feed()
    broken = pod("broken", 5) | {
        "spec": {
            "nodeName": "n1",
            "containers": [{"resources": {"requests": {"cpu": "x"}}}],
        }
    }
    batch = one.events([line("ADDED", broken), line("ADDED", pod("a", 6))])
    assert short(batch.deltas) == [("?", "uid-broken"), ("+", "uid-a")]
    first = batch.deltas[0]
    assert isinstance(first, Unreadable)
    assert (first.node, first.version, first.terminal) == ("n1", 5, False)
    assert batch.error is None
    assert one.containment.get(Boundary.OBJECT, "uid-broken") is not None


@pytest.mark.sets_aside
def test_a_list_with_an_unreadable_object_does_not_delete_it() -> None:
    one = feed()
    broken = pod("broken", 5) | {"spec": {"containers": "none"}}
    body = {"metadata": {"resourceVersion": "50"}, "items": [broken, pod("a", 6)]}
    batch, _ = one.page(msgspec.json.encode(body))
    assert short(batch.deltas)[-1] == ("=", "uid-a,uid-broken")


@pytest.mark.sets_aside
def test_an_object_that_can_be_decoded_again_is_not_set_aside() -> None:
    one = feed()
    broken = pod("a", 5) | {"spec": {"containers": "none"}}
    one.events([line("ADDED", broken)])
    batch = one.events([line("MODIFIED", pod("a", 6))])
    assert short(batch.deltas) == [("+", "uid-a")]
    assert one.containment.empty


@pytest.mark.sets_aside
def test_an_unreadable_object_is_independent_of_one_of_another_resource_with_its_name() -> None:
    """A NodeResourceTopology always has the name of its Node."""
    containment = Containment(time.time)
    named = {"metadata": {"name": "n1", "uid": "u", "resourceVersion": "5"}}
    topologies = ResourceFeed(RESOURCES["noderesourcetopologies"], containment)
    topologies.events([line("ADDED", {**named, "zones": "none"})])
    assert not containment.empty
    nodes = ResourceFeed(RESOURCES["nodes"], containment)
    batch = nodes.events([line("ADDED", named), line("DELETED", named)])
    assert short(batch.deltas) == [("+", "n1"), ("-", "n1")]
    assert not containment.empty
    topologies.events([line("DELETED", named)])
    assert containment.empty


def test_pages_of_a_list() -> None:
    one = feed()
    first = {"metadata": {"resourceVersion": "50", "continue": "t"}, "items": [pod("a", 5)]}
    batch, token = one.page(msgspec.json.encode(first))
    assert (short(batch.deltas), token, batch.complete) == ([("+", "uid-a")], "t", False)
    last = {"metadata": {"resourceVersion": "50"}, "items": [pod("b", 7)]}
    batch, token = one.page(msgspec.json.encode(last))
    assert short(batch.deltas) == [("+", "uid-b"), ("=", "uid-a,uid-b")]
    assert (token, batch.complete, one.version) == ("", True, "50")
    with pytest.raises(ClusterUnavailable):
        one.page(b"<html>")


POOL = {"name": "n", "generation": 1, "resourceSliceCount": 1}
MINIMAL: dict[str, dict[str, Any]] = {
    "resourceslices": {"spec": {"driver": "gpu.example.com", "pool": POOL, "nodeName": "n"}},
    "devicetaintrules": {"spec": {"taint": {"key": "broken", "effect": "NoExecute"}}},
}
"""Fields that the API server requires, by resource."""


@pytest.mark.parametrize("resource", RESOURCES.values(), ids=lambda r: r.name)
def test_every_reader_accepts_a_minimal_object(resource: Resource) -> None:
    metadata = {"name": "x", "uid": "u", "resourceVersion": "3"}
    document: dict[str, Any] = {"metadata": metadata, **MINIMAL.get(resource.name, {})}
    if resource.by_uid:
        document["metadata"]["labels"] = {"queuectl.dev/queue-name": "main"}
        document["metadata"]["annotations"] = {WORKLOAD: "u"}
    record = resource.read(msgspec.json.encode(document))
    assert record is not None
    assert key_of(record) == ("u" if resource.by_uid else "x")
