"""A podset's placement share by share: which ranks, on which nodes, charged to which flavors."""

from __future__ import annotations

import pytest

from queuectl.domain.workload import FlavorShare, PodSetPlacement

A, B = {"gpu": "a"}, {"gpu": "b"}
NODES = (("n1", 2), ("n2", 3), ("n1", 1))
SPLIT = PodSetPlacement("w", NODES, A, shares=(FlavorShare(4, A), FlavorShare(2, B)))


def test_shares_take_the_nodes_in_the_order_of_ranks() -> None:
    first, second = SPLIT.by_share()
    assert (first.nodes, first.flavors) == ((("n1", 2), ("n2", 2)), A)
    assert (second.nodes, second.flavors) == ((("n2", 1), ("n1", 1)), B)
    whole = PodSetPlacement("w", NODES, A)
    assert whole.by_share() == (whole,)


def test_each_flavor_is_charged_for_its_own_pods() -> None:
    assert list(SPLIT.charges(6)) == [("gpu", "a", 4), ("gpu", "b", 2)]
    assert SPLIT.charged == {"a", "b"}
    assert PodSetPlacement("w", NODES, A).charged == {"a"}


@pytest.mark.parametrize(
    ("held", "charged"),
    [
        ({"n1": 3, "n2": 3}, {"a": 4, "b": 2}),
        ({"n1": 1}, {"a": 1, "b": 0}),
        ({"n2": 3}, {"a": 2, "b": 1}),
        ({}, {"a": 0, "b": 0}),
    ],
)
def test_while_it_leaves_the_pods_that_are_left_are_charged(
    held: dict[str, int], charged: dict[str, int]
) -> None:
    left = SPLIT.left_on(held)
    assert left.by_node == held
    assert {flavor: pods for _, flavor, pods in left.charges(left.count)} == charged
