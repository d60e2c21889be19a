"""MIG configurations: which a node can get, what it then offers, and which documents are refused."""

from __future__ import annotations

import re
from typing import Any

import pytest

from queuectl.domain.fleet import Node
from queuectl.domain.mig import MigConfig, MigDevices, MigPool
from queuectl.domain.quantity import Resources
from queuectl.mig.configurations import choices
from queuectl.objects.configuration.queue_config import build, validate
from queuectl.objects.errors import DocumentError

GPU = "nvidia.com/gpu"
SMALL, LARGE = "nvidia.com/mig-1g.10gb", "nvidia.com/mig-3g.40gb"
PRODUCT = "NVIDIA-H100-80GB-HBM3"

WHOLE = MigConfig("all-disabled", (MigDevices(),))
CUT = MigConfig("all-1g.10gb", (MigDevices(None, (("1g.10gb", 7),)),))
BALANCED = MigConfig("all-balanced", (MigDevices(None, (("1g.10gb", 2), ("3g.40gb", 1))),))
HALF = MigConfig("half", (MigDevices((0, 1)), MigDevices((2, 3), (("1g.10gb", 7),))))
MEDIA = MigConfig("media", (MigDevices(None, (("1g.10gb+me", 1),)),))
EMPTY = MigConfig("all-enabled", (MigDevices(None, ()),))
CONFIGS = (WHOLE, CUT, BALANCED, HALF, MEDIA, EMPTY)


def node(offers: dict[str, int], strategy: str = "mixed", **labels: str) -> Node:
    known = {
        "pool": "h100",
        "nvidia.com/gpu.product": PRODUCT,
        "nvidia.com/mig.strategy": strategy,
        **{f"nvidia.com/{key.replace('_', '.')}": value for key, value in labels.items()},
    }
    return Node("n", known, Resources({"cpu": 96000, **offers}))


def offered(given: Node, *configs: MigConfig) -> dict[str, dict[str, int]]:
    """Name of each configuration to the GPU resources under it."""
    pool = MigPool((("pool", "h100"),), configs or CONFIGS)
    return {
        config.name: {k: v for k, v in after.allocatable.items() if k.startswith("nvidia.com/")}
        for config, after in choices(given, (pool,))
    }


def test_a_node_with_whole_gpus_offers_the_instances_of_each_configuration() -> None:
    assert offered(node({GPU: 4})) == {
        "all-1g.10gb": {SMALL: 28},
        "all-balanced": {SMALL: 8, LARGE: 4},
        "half": {GPU: 2, SMALL: 14},
        "media": {"nvidia.com/mig-1g.10gb.me": 4},
    }


def test_a_node_with_other_instances_is_counted_by_the_configuration_in_its_label() -> None:
    given = node({GPU: 2, SMALL: 14}, mig_config="half", mig_config_state="success")
    assert offered(given, WHOLE, CUT, HALF) == {
        "all-disabled": {GPU: 4},
        "all-1g.10gb": {SMALL: 28},
    }
    media = node({"nvidia.com/mig-1g.10gb.me": 4}, mig_config="media")
    assert offered(media, WHOLE, MEDIA) == {"all-disabled": {GPU: 4}}


def test_gpus_without_instances_count_by_the_configuration_in_the_label() -> None:
    part = MigConfig("part", (MigDevices((0, 1)), MigDevices((2, 3), ())))
    given = node({GPU: 2}, mig_config="part", mig_config_state="success")
    assert offered(given, CUT, part) == {"all-1g.10gb": {SMALL: 28}}


def test_with_the_strategy_single_the_product_names_the_profile() -> None:
    pool = MigPool((("pool", "h100"),), CONFIGS)
    ((_, cut), (_, media)) = choices(node({GPU: 8}, "single"), (pool,))
    assert (cut.allocatable[GPU], cut.labels["nvidia.com/gpu.product"]) == (
        56,
        f"{PRODUCT}-MIG-1g.10gb",
    )
    assert (media.allocatable[GPU], media.labels["nvidia.com/gpu.product"]) == (8, f"{PRODUCT}-MIG-1g.10gbme")  # fmt: skip
    back = next(after for config, after in choices(cut, (pool,)) if config is WHOLE)
    assert (back.allocatable[GPU], back.labels["nvidia.com/gpu.product"]) == (8, PRODUCT)


@pytest.mark.parametrize("profile", ["1g.10gb+me", "1g.24gb-me", "1g.24gb+me.all", "1c.3g.40gb"])
@pytest.mark.parametrize("strategy", ["single", "mixed"])
def test_a_node_can_be_cut_and_be_whole_again_with_each_kind_of_profile(
    profile: str, strategy: str
) -> None:
    """A label has no plus sign, so a node under ``single`` would never show the product that has one."""
    config = MigConfig("cut", (MigDevices(None, ((profile, 1),)),))
    pool = MigPool((("pool", "h100"),), (WHOLE, config))
    whole = node({GPU: 8}, strategy)
    ((_, cut),) = choices(whole, (pool,))
    for value in cut.labels.values():
        assert re.fullmatch(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?", value)
    ((back, again),) = choices(cut, (pool,))
    assert (back, again.allocatable) == (WHOLE, whole.allocatable)


@pytest.mark.parametrize(
    "given",
    [
        node({GPU: 8}, "none"),
        node({GPU: 33}),
        node({GPU: 10**9}),
        node({GPU: 8}, mig_capable="false"),
        node({GPU: 8}, mig_config_state="pending"),
        node({GPU: 8}, mig_config_state="failed"),
        node({GPU: 8}, gpu_replicas="4"),
        node({GPU: 8}, gpu_product=f"{PRODUCT}-SHARED"),
        node({GPU: 8}, gpu_product=f"{PRODUCT}-MIG-INVALID"),
        node({GPU: 8}, gpu_product=""),
        node({SMALL: 28}),
        node({SMALL: 28}, mig_config="custom"),
        node({SMALL: 27}, mig_config="all-1g.10gb"),
        node({SMALL: 28}, mig_config="all-balanced"),
        node({}, mig_config="all-enabled"),
        node({GPU: 2}, mig_config="half", mig_config_state="success"),
        node({GPU: 4}, mig_config="half", mig_config_state="success"),
        node({GPU: 4}, mig_config="custom", mig_config_state="success"),
        Node("n", {**node({GPU: 8}).labels, "pool": "a100"}, Resources({GPU: 8})),
        Node("n", node({GPU: 7}).labels, Resources({GPU: 7}), failed=Resources({GPU: 1})),
    ],
    ids=[
        "no strategy",
        "more GPUs than a node has",
        "a thousand million GPUs",
        "model without MIG",
        "in progress",
        "failed",
        "shared by label",
        "shared by product",
        "invalid instances",
        "unknown product",
        "instances without configuration",
        "a configuration that is not listed",
        "an instance is missing",
        "other instances than the label states",
        "no GPUs",
        "instances that are not registered yet",
        "whole GPUs although the label states instances",
        "whole GPUs under a configuration that is not listed",
        "another pool",
        "a failed GPU",
    ],
)
def test_a_node_whose_geometry_is_not_certain_gets_no_other(given: Node) -> None:
    assert offered(given) == {}


def test_a_configuration_states_each_gpu_of_a_node() -> None:
    part = MigConfig("part", (MigDevices((0, 1), (("1g.10gb", 7),)),))
    over = MigConfig("over", (MigDevices(), MigDevices((1,), (("1g.10gb", 7),))))
    assert offered(node({GPU: 2}), part, over) == {"part": {SMALL: 14}, "over": {GPU: 1, SMALL: 7}}
    assert offered(node({GPU: 3}), part, HALF) == {}


# ---- documents


def flavor(configs: Any, labels: dict[str, str] | None = None) -> dict[str, Any]:
    spec = {
        "nodeLabels": {"pool": "h100"} if labels is None else labels,
        "policy": {"migConfigs": configs},
    }
    return {
        "apiVersion": "queuectl.dev/v1",
        "kind": "ResourceFlavor",
        "metadata": {"name": "h100"},
        "spec": {key: value for key, value in spec.items() if value},
    }


def entry(
    profiles: dict[str, int] | None = None, devices: Any = "all", **more: Any
) -> dict[str, Any]:
    body = {"devices": devices, "mig-enabled": profiles is not None, **more}
    return body if profiles is None else {**body, "mig-devices": profiles}


def test_configurations_are_read_in_the_form_of_mig_parted() -> None:
    given = {
        "all-disabled": [entry()],
        "half": [entry(devices=[0, 1]), entry({"1g.10gb": 7}, devices=[2, 3])],
        "all-enabled": [{**entry({}), "mig-devices": {}}],
    }
    kept, warnings = validate(flavor(given))
    config = build([kept], 1)
    assert config.mig_pools == (MigPool((("pool", "h100"),), (WHOLE, EMPTY, HALF)),)
    assert (warnings, kept["spec"]["policy"]["migConfigs"]["half"]) == ((), given["half"])


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        (flavor({"x": [entry()]}, {}), "spec.policy.migConfigs: requires spec.nodeLabels"),
        (flavor({"x": []}), "spec.policy.migConfigs.x: has no devices"),
        (flavor({"a b": [entry()]}), "'a b' is not a value of a label"),
        (flavor({"x": [entry({"7": 1})]}), "x[0].mig-devices: '7' is not a MIG profile like 1g.10gb"),
        (flavor({"x": [entry({"2g.20gb": 4})]}), "x[0].mig-devices: 8 compute slices; a GPU has 7 or fewer"),
        (flavor({"x": [entry({"1g.10gb": 0})]}), "expected `int` >= 1"),
        (flavor({"x": [entry(devices=[1, 1])]}), "x[0].devices: GPU '1' occurs 2 times"),
        (flavor({"x": [entry(devices="some")]}), "devices"),
        (flavor({"x": [entry(), {"mig-enabled": False}]}), "spec.policy.migConfigs.x[1].devices: is required"),
        (flavor({"x": [{**entry(), "mig-devices": {"1g.10gb": 1}}]}), "must be empty with mig-enabled: false"),
        (flavor({"x": [{**entry(), "device-filter": "0x233010DE"}]}), "x[0].device-filter: is not supported"),
        (
            {**flavor({"x": [entry()]}), "apiVersion": "kueue.x-k8s.io/v1beta1"},
            "spec.policy: is a field of queuectl.dev/v1, not of Kueue's API",
        ),
    ],
)  # fmt: skip
def test_a_wrong_configuration_is_refused(body: dict[str, Any], sentence: str) -> None:
    with pytest.raises(DocumentError) as caught:
        validate(body)
    assert sentence in str(caught.value)
