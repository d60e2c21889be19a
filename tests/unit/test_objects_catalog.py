"""The catalog of configuration: after any history it equals a full read, and it reads only changed objects."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queuectl.domain.queries import ConfigChanges, DocumentKey
from queuectl.domain.queues import QueueConfig
from queuectl.objects.configuration.catalog import Catalog
from queuectl.objects.configuration.links import dangling, references
from queuectl.objects.configuration.queue_config import build
from queuectl.objects.errors import DocumentError

Body = dict[str, Any]


def document(kind: str, name: str, spec: Body, namespace: str | None = None) -> Body:
    metadata = {"name": name} | ({"namespace": namespace} if namespace else {})
    return {"apiVersion": "queuectl.dev/v1", "kind": kind, "metadata": metadata, "spec": spec}


def queue(name: str, flavor: str, gpus: int, **spec: Any) -> Body:
    quota = [{"name": "nvidia.com/gpu", "nominalQuota": gpus}]
    flavors = [{"name": flavor, "resources": quota}]
    groups = [{"coveredResources": ["nvidia.com/gpu"], "flavors": flavors}]
    return document("ClusterQueue", name, {"resourceGroups": groups, **spec})


def local(namespace: str, queue: str) -> Body:
    return document("LocalQueue", "main", {"clusterQueue": queue}, namespace)


SETTINGS: Body = {
    "apiVersion": "queuectl.dev/v1",
    "kind": "Configuration",
    "metadata": {"name": "default"},
    "admissionFairSharing": {"usageHalfLifeTime": "1h", "usageSamplingInterval": "5m"},
    "queuectl": {"userLabel": "example.com/user"},
}
NAMES = st.sampled_from(["a", "B", "a-b"])
OBJECTS = st.one_of(
    st.builds(queue, NAMES, NAMES, st.integers(0, 2)),
    st.builds(
        lambda n, f: queue(n, f, 1, policy={"maxPerUser": {"nvidia.com/gpu": 1}}), NAMES, NAMES
    ),
    st.builds(local, NAMES, NAMES),
    st.builds(lambda n, p: document("Cohort", n, {"parentName": p}), NAMES, NAMES),
    st.builds(lambda n, t: document("ResourceFlavor", n, {"topologyName": t}), NAMES, NAMES),
    st.builds(lambda n: document("Topology", n, {"levels": [{"nodeLabel": "rack"}]}), NAMES),
    st.builds(
        lambda n: document("Topology", n, {"levels": []}), NAMES
    ),  # of a more lenient release
    st.just(SETTINGS),
)


def parts(config: QueueConfig) -> dict[str, Any]:
    """The content of a configuration, including its order."""
    return {
        name: list(value.items()) if isinstance(value, Mapping) else value
        for name, value in vars(config).items()
    }


def said(catalog: Catalog, stored: Mapping[DocumentKey, Body]) -> tuple[Any, Any]:
    """The configuration of the catalog and that of a full read; for an error, its text."""
    rebuilt = [stored[key] for key in sorted(stored)]
    return outcome_of(lambda: catalog.config(7)), outcome_of(lambda: build(rebuilt, 7))


def outcome_of(make: Callable[[], QueueConfig]) -> dict[str, Any]:
    try:
        return parts(make())
    except DocumentError as error:
        return {"error": str(error)}


@given(st.lists(st.lists(OBJECTS | NAMES, max_size=4), max_size=5))
def test_after_any_history_the_catalog_equals_a_full_read(
    history: list[list[Body | str]],
) -> None:
    """In a history a name stands for the deletion of all that is called so."""
    stored: dict[DocumentKey, Body] = {}
    catalog = Catalog()
    for step in history:
        written = {DocumentKey.of(one): one for one in step if isinstance(one, dict)}
        gone = {key for key in stored if key.name in step} - written.keys()
        stored = {key: body for key, body in stored.items() if key not in gone} | written
        catalog.follow(ConfigChanges(7, tuple(written.values()), frozenset(gone)))
        kept, rebuilt = said(catalog, stored)
        assert kept == rebuilt
        assert catalog.keys == stored.keys()
    whole = Catalog()
    whole.replace(stored.values())
    assert said(whole, stored) == said(catalog, stored)


@pytest.mark.parametrize("again", ["followed", "replaced"])
def test_what_did_not_change_is_not_read_again(again: str) -> None:
    catalog = Catalog()
    catalog.replace([queue("a", "gpu", 1), queue("b", "gpu", 1), queue("c", "gpu", 1)])
    before = catalog.config(1).cluster_queues
    changed = [queue("b", "gpu", 2)]
    if again == "followed":
        gone = frozenset({DocumentKey("ClusterQueue", "", "c")})
        catalog.follow(ConfigChanges(2, tuple(changed), gone))
    else:
        catalog.replace([queue("a", "gpu", 1), *changed])
    after = catalog.config(2).cluster_queues
    assert after["a"] is before["a"]
    assert after["b"] != before["b"]
    assert list(after) == ["a", "b"]


def test_an_object_that_cannot_be_read_is_reported_until_it_is_corrected() -> None:
    catalog = Catalog()
    catalog.replace([queue("a", "gpu", 1), document("Topology", "racks", {"levels": []})])
    for revision in (1, 2):
        with pytest.raises(DocumentError, match="Topology/racks"):
            catalog.config(revision)
    mended = document("Topology", "racks", {"levels": [{"nodeLabel": "rack"}]})
    catalog.follow(ConfigChanges(3, (mended,)))
    assert list(catalog.config(3).topologies) == ["racks"]


@given(st.lists(OBJECTS, min_size=1, max_size=8))
def test_the_references_of_an_object_give_all_its_warnings(objects: list[Body]) -> None:
    stored = {DocumentKey.of(one): one for one in objects if one.get("spec") != {"levels": []}}
    stored = {key: one for key, one in stored.items() if key.kind != "Cohort"}  # can be a cycle
    everything = dangling(build(stored.values(), 0))
    for key, one in stored.items():
        others = [stored[other] for other in references(one) if other in stored]
        few = dangling(build([one, *others], 0))
        own = f"{key}: "
        assert [s for s in few if s.startswith(own)] == [s for s in everything if s.startswith(own)]
