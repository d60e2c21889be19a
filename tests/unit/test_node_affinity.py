"""Pins in the required node affinity of pods."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from queuectl.domain.fleet import Node, Requirement, SelectorTerm
from queuectl.handover.templates import of_pod
from queuectl.objects.keys import SUBMITTED_BY
from queuectl.objects.kinds import KINDS
from queuectl.objects.kinds.pods import pod_reader
from queuectl.objects.kubernetes.node_affinity import (
    REQUIRED,
    Terms,
    own_pin,
    pin_in,
    pinned,
    unpinned,
    write_required,
)
from queuectl.objects.kubernetes.pods import pin_patch
from queuectl.objects.kubernetes.templates import read_node_affinity
from queuectl.objects.kubernetes.wire import NodeAffinity, OwnAffinity
from tests.doubles.admission import check_pod

NODES = [Node(f"n{i}", {"zone": f"z{i % 2}"}) for i in range(3)]
LABELS = st.builds(
    Requirement, st.just("zone"), st.sampled_from(["In", "NotIn"]), st.sampled_from([("z0",), ("z0", "z1")])
)  # fmt: skip
FIELDS = st.builds(
    Requirement,
    st.just("metadata.name"),
    st.sampled_from(["In", "NotIn"]),
    st.sampled_from([("n0",), ("n1",)]),
    st.just(True),
)
# The API has two lists, so the expressions on labels come first.
TERM = st.builds(
    lambda labels, fields: SelectorTerm((*labels, *fields)),
    st.lists(LABELS, max_size=2),
    st.lists(FIELDS, max_size=2),
)
TERMS = st.none() | st.lists(TERM, min_size=1, max_size=3).map(tuple)


def wire(terms: Terms) -> NodeAffinity:
    affinity = msgspec.convert(write_required(terms), OwnAffinity).node_affinity
    assert affinity is not None
    return affinity


def admits(terms: Terms | None, node: Node) -> bool:
    return terms is None or any(term.matches(node) for term in terms)


@given(TERMS, st.sampled_from(NODES))
def test_a_pin_leaves_one_node_and_is_read_and_removed_again(
    terms: Terms | None, node: Node
) -> None:
    after = pinned(terms, node.name)
    assert [admits(after, one) for one in NODES] == [
        one == node and admits(terms, one) for one in NODES
    ]
    assert read_node_affinity(wire(after)) == after
    matching = terms is None or any(term.requirements for term in terms)
    assert pin_in(wire(after)) == (node.name if matching else None)
    assert unpinned(after, node.name) == terms
    own = own_pin(terms)
    assert own == (terms and pin_in(wire(terms)))
    if own is not None:  # kube-scheduler selects the node
        assert unpinned(pinned(terms, own), own) == terms
    # The API server accepts it.
    gates = {"schedulingGates": [{"name": "queuectl.dev/placement"}]}
    before = gates if terms is None else gates | {"affinity": write_required(terms)}
    account = "system:serviceaccount:queuectl-system:queuectl"
    changed = {"metadata": {}, "spec": {"affinity": write_required(after)}}
    check_pod(account, {"metadata": {}, "spec": before}, changed)


ONE = {"key": "metadata.name", "operator": "In", "values": ["n1"]}


@pytest.mark.parametrize(
    "terms",
    [
        [],
        [{}],
        [{"matchFields": [ONE]}, {"matchExpressions": [{"key": "a", "operator": "Exists"}]}],
        [{"matchFields": [ONE]}, {"matchFields": [ONE | {"values": ["n2"]}]}],
        [{"matchFields": [ONE | {"operator": "NotIn"}]}],
        [{"matchFields": [ONE | {"values": []}]}],
        [{"matchFields": [ONE | {"key": "metadata.uid"}]}],
        [{"matchFields": []}],
        None,
    ],
)
def test_terms_that_allow_other_nodes_do_not_pin(terms: list[object] | None) -> None:
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
    assert pin_in(msgspec.convert(required, NodeAffinity)) is None


def test_a_pod_with_terms_that_no_reader_of_requests_accepts_is_read_with_the_reason() -> None:
    term = {"matchExpressions": [{"key": "cores", "operator": "Gt", "values": ["many"]}]}
    required = {"nodeSelectorTerms": [term]}
    pod = {
        "metadata": {
            "name": "p",
            "uid": "u",
            "labels": {"queuectl.dev/queue-name": "main"},
            "annotations": {SUBMITTED_BY: "ann"},
        },
        "spec": {
            "containers": [{"name": "a"}],
            "schedulingGates": [{"name": "queuectl.dev/placement"}],
            "affinity": {"nodeAffinity": {REQUIRED: required}},
        },
    }
    record = pod_reader((), KINDS)(msgspec.json.encode(pod))
    assert record.member is not None
    assert "Gt needs one whole number" in (record.member.job.error or "")
    pinned_to = {"matchFields": [ONE]}
    patch = pin_patch(record, "n1")["spec"]["affinity"]
    assert patch == {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": [term | pinned_to]}}}
    again = pod_reader((), KINDS)(msgspec.json.encode(pod))
    assert again.affinity is record.affinity


def test_the_own_node_of_a_pod_remains_after_a_release_without_a_node() -> None:
    required = {"nodeSelectorTerms": [{"matchFields": [ONE]}]}
    affinity = {"nodeAffinity": {REQUIRED: required}}
    gate = {"schedulingGates": [{"name": "queuectl.dev/placement"}]}
    pod = {"metadata": {"name": "p", "uid": "u"}, "spec": gate | {"affinity": affinity}}
    released = pin_patch(pod_reader((), KINDS)(msgspec.json.encode(pod)), None)["spec"]
    labels = {"queuectl.dev/attempt": "1"}
    there = {"metadata": {"name": "p", "labels": labels}, "spec": pod["spec"] | released}
    assert of_pod(there, None)["spec"]["affinity"] == affinity


@pytest.mark.parametrize(
    "own", [[], [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]]
)
def test_a_pod_that_was_pinned_has_the_request_that_it_had_before(
    own: list[dict[str, object]],
) -> None:
    """An affinity that is nearly as large as possible is larger with a pin in each term."""
    terms = [
        {
            "matchExpressions": [{"key": "rack", "operator": "In", "values": [f"rack-{number}"]}],
            "matchFields": own,
        }
        for number in range(450)
    ]
    pod = {
        "metadata": {
            "name": "p",
            "namespace": "t",
            "uid": "u",
            "resourceVersion": "5",
            "labels": {"queuectl.dev/queue-name": "main"},
            "annotations": {SUBMITTED_BY: "ann"},
        },
        "spec": {
            "containers": [{"name": "a", "resources": {"requests": {"cpu": "1"}}}],
            "schedulingGates": [{"name": "queuectl.dev/placement"}],
            "affinity": {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": terms}}},
        },
    }
    gated = pod_reader((), KINDS)(msgspec.json.encode(pod))
    patch = pin_patch(gated, "gpu-node-0001.example.com")
    released = pod | {"spec": pod["spec"] | patch["spec"]}
    placed = pod_reader((), KINDS)(msgspec.json.encode(released))
    assert gated.member is not None
    assert placed.member is not None
    before, after = gated.member.job, placed.member.job
    assert (before.error, after.error) == (None, None)
    assert [p.shape for p in before.podsets] == [p.shape for p in after.podsets]
