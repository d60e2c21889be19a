"""A ClusterQueue that prefers the cheapest flavor tries its flavors in the order of their prices."""

from __future__ import annotations

from typing import Any

import pytest

from queuectl.cli.explain import explain_lines
from queuectl.domain.queues import ClusterQueue
from queuectl.objects.configuration.queue_config import build

Document = dict[str, Any]
GPU = "nvidia.com/gpu"


def document(kind: str, name: str, **body: Any) -> Document:
    return {"apiVersion": "queuectl.dev/v1", "kind": kind, "metadata": {"name": name}, **body}


def built(*prices: Document, order: str | None = "Cheapest") -> ClusterQueue:
    """A ClusterQueue with the flavors on-demand, spot and old, with these prices."""
    template = {"allocatable": {GPU: 8}, "maximumNodes": 4, "labels": {"gpu": "old"}}
    flavors = [
        document("ResourceFlavor", "on-demand"),
        document("ResourceFlavor", "spot", spec={"nodeLabels": {"capacity": "spot"}}),
        document(
            "ResourceFlavor",
            "old",
            spec={"topologyName": "t", "policy": {"nodeTemplate": template}},
        ),
    ]
    quota = [{"name": GPU, "nominalQuota": 8}]
    offers = [{"name": flavor["metadata"]["name"], "resources": quota} for flavor in flavors]
    group = {"coveredResources": [GPU], "flavors": offers}
    policy = {"flavorOrder": order} if order else {}
    queue = document("ClusterQueue", "q", spec={"resourceGroups": [group], "policy": policy})
    accounting = {"prices": list(prices)}
    settings = document("Configuration", "default", queuectl={"accounting": accounting})
    return build([*flavors, queue, settings], 1).cluster_queues["q"]


def price(name: str, of_gpu_hour: float, **holds: Any) -> Document:
    return {"name": name, "gpuHour": of_gpu_hour, **holds}


FULL = price("full", 3.0, flavor="on-demand")
SPOT = price("spot", 1.0, nodeLabels={"capacity": "spot"})
OLD = price("old", 2.0, nodeLabels={"gpu": "old"})


@pytest.mark.parametrize(
    ("prices", "order"),
    [
        pytest.param((FULL, SPOT, OLD), ["spot", "old", "on-demand"], id="cheapest first"),
        pytest.param((FULL,), ["on-demand", "spot", "old"], id="without a price last, as listed"),
        pytest.param((price("all", 1.0),), ["on-demand", "spot", "old"], id="equal prices, as listed"),
        pytest.param((SPOT, price("all", 0.5)), ["on-demand", "old", "spot"], id="the first price that holds"),
        pytest.param((), ["on-demand", "spot", "old"], id="no prices"),
    ],
)  # fmt: skip
def test_flavors_are_tried_in_the_order_of_their_prices(
    prices: tuple[Document, ...], order: list[str]
) -> None:
    queue = built(*prices)
    assert [quotas.flavor for quotas in queue.groups[0].flavors] == order
    assert [name for name, _ in queue.flavor_prices] == order


def test_flavors_are_tried_as_listed_without_the_option() -> None:
    queue = built(FULL, SPOT, OLD, order=None)
    assert [quotas.flavor for quotas in queue.groups[0].flavors] == ["on-demand", "spot", "old"]
    assert queue.shown_prices == {}


def test_explain_shows_the_prices_by_which_flavors_were_tried() -> None:
    body: Document = dict.fromkeys(
        ("position", "runTime", "placement", "use", "reservation", "conflict", "suggestedFixes")
    )
    body |= {"sentence": "s", "state": "Running", "code": "PodsReady", "workload": "w"}
    body["details"] = built(FULL, SPOT).shown_prices
    assert (
        "Prices:   spot (1 for a GPU hour), on-demand (3 for a GPU hour), old (no price); "
        "the cheapest flavor that fits is used"
    ) in explain_lines(body)
