"""The part of a pod that requests more than its template, in words."""

from __future__ import annotations

import pytest

from queuectl.domain.request_rules import Amounts, ContainerNeeds, PodNeeds, excess


def container(name: str, cpu: int, **limits: int) -> ContainerNeeds:
    return ContainerNeeds((("cpu", cpu),), tuple(limits.items()), name=name)


ONE: Amounts = (("cpu", 1000),)
WAITS = ContainerNeeds(ONE, incidental=True)  # its operator adds it under some name
TEMPLATE = PodNeeds((container("main", 2000),), (WAITS,))


@pytest.mark.parametrize(
    ("pod", "said"),
    [
        (TEMPLATE, ""),
        (PodNeeds((container("main", 2000),), (container("init-pytorch", 1000),)), ""),
        (PodNeeds((container("main", 3000),)), "container main requests 3 cpu, more than in its template"),
        (
            PodNeeds((container("main", 2000), container("proxy", 100))),
            "container proxy, which is not in its template, requests 100m cpu",
        ),
        (
            PodNeeds((container("main", 2000),), (container("gke-gcsfuse-sidecar", 250),)),
            "container gke-gcsfuse-sidecar, which is not in its template, requests 250m cpu",
        ),
        (PodNeeds((container("main", 2000),), overhead=ONE), "overhead is 1 cpu, more than in its template"),
        (PodNeeds((container("main", 2000),), requests=ONE), "resources.requests is 1 cpu, more than in its template"),
    ],
)  # fmt: skip
def test_the_first_part_that_is_larger_is_named(pod: PodNeeds, said: str) -> None:
    assert excess(pod, TEMPLATE) == said
