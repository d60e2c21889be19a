"""The reported changes of a configuration object."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queuectl.objects.configuration.diff import differences

QUEUE: dict[str, Any] = {
    "apiVersion": "queuectl.dev/v1",
    "kind": "ClusterQueue",
    "metadata": {"name": "a", "resourceVersion": "7"},
    "spec": {
        "queueingStrategy": "StrictFIFO",
        "resourceGroups": [
            {
                "coveredResources": ["cpu", "nvidia.com/gpu"],
                "flavors": [
                    {"name": "h100", "resources": [{"name": "cpu", "nominalQuota": 8}]},
                    {"name": "a100", "resources": [{"name": "cpu", "nominalQuota": "4"}]},
                ],
            }
        ],
    },
    "status": {"pendingWorkloads": 3},
}
FLAVORS = "spec.resourceGroups[0].flavors"


def changed(edit: str) -> dict[str, Any]:
    """The queue after one statement on its ``spec``."""
    queue = deepcopy(QUEUE)
    group = queue["spec"]["resourceGroups"][0]
    exec(edit, {"spec": queue["spec"], "meta": queue["metadata"], "group": group, "body": queue})
    return queue


@pytest.mark.parametrize(
    ("edit", "said"),
    [
        ("spec['queueingStrategy'] = 'BestEffortFIFO'", ["spec.queueingStrategy: StrictFIFO -> BestEffortFIFO"]),
        ("spec['stopPolicy'] = 'Hold'", ["spec.stopPolicy: (none) -> Hold"]),
        ("del spec['queueingStrategy']", ["spec.queueingStrategy: StrictFIFO -> (none)"]),
        ("spec['preemption'] = {'withinClusterQueue': 'Never'}", ['spec.preemption: (none) -> {"withinClusterQueue": "Never"}']),
        ("group['flavors'][0]['resources'][0]['nominalQuota'] = 16",
         [f"{FLAVORS}[h100].resources[cpu].nominalQuota: 8 -> 16"]),
        ("group['flavors'][0]['resources'][0]['borrowingLimit'] = 0",
         [f"{FLAVORS}[h100].resources[cpu].borrowingLimit: (none) -> 0"]),
        ("group['flavors'].pop()", [f'{FLAVORS}[a100]: {{"name": "a100", "resources": [{{"name": "cpu", "nominalQuota": "4"}}]}} -> (none)']),
        ("group['flavors'].reverse()", [f'{FLAVORS}: ["h100", "a100"] -> ["a100", "h100"]']),
        ("group['coveredResources'].pop()", ['spec.resourceGroups[0].coveredResources: ["cpu", "nvidia.com/gpu"] -> ["cpu"]']),
        ("spec['resourceGroups'].clear()", [f"spec.resourceGroups[0]: {'{'}"]),
        ("meta['labels'] = {'team': 'a'}", ['metadata.labels: (none) -> {"team": "a"}']),
        ("meta['resourceVersion'] = '8'", []),
        ("body['status'] = {}", []),
        ("spec['cohortName'] = None", []),
    ],
)  # fmt: skip
def test_each_changed_field_is_reported_once_with_both_values(edit: str, said: list[str]) -> None:
    found = [str(difference) for difference in differences(QUEUE, changed(edit))]
    assert len(found) == len(said)
    assert all(one.startswith(other) for one, other in zip(found, said, strict=True))


values = st.recursive(
    st.booleans() | st.integers(0, 3) | st.sampled_from(["a", "b", "1"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["name", "x", "y", "status", "metadata"]), inner, max_size=3
        )
    ),
    max_leaves=10,
)
documents = st.dictionaries(st.sampled_from(["kind", "spec", "value"]), values, max_size=3)


@given(documents, documents)
def test_there_is_a_difference_exactly_where_documents_differ(
    before: dict[str, Any], after: dict[str, Any]
) -> None:
    same = not differences(before, after)
    assert same == _alike(before, after)
    assert differences(before, deepcopy(before)) == ()


@given(documents, documents)
def test_the_way_back_is_the_same_differences_turned_round(
    before: dict[str, Any], after: dict[str, Any]
) -> None:
    there = {(d.field, repr(d.before), repr(d.after)) for d in differences(before, after)}
    back = {(d.field, repr(d.after), repr(d.before)) for d in differences(after, before)}
    assert there == back


@given(documents, documents)
def test_no_field_is_reported_twice_and_each_value_is_its_own(
    before: dict[str, Any], after: dict[str, Any]
) -> None:
    found = differences(before, after)
    assert len({d.field for d in found}) == len(found)
    assert all(type(d.before) is not type(d.after) or d.before != d.after for d in found)


def _alike(one: Any, other: Any) -> bool:
    """Equal, and true is not 1."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_alike(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_alike, one, other))
    return type(one) is type(other) and bool(one == other)
