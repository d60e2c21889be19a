"""``queuectl init``: the configuration that it proposes for the nodes of clusters, and what it refuses."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from queuectl.domain.fleet import HOSTNAME, Node
from queuectl.domain.quantity import Resources, parse_quantity, total
from queuectl.localcluster.nodes import device, device_class, gpus, pool
from queuectl.objects.configuration.links import dangling
from queuectl.objects.configuration.queue_config import build, validate
from queuectl.objects.documents import read_documents
from queuectl.objects.proposal.configuration import as_yaml, propose
from queuectl.objects.proposal.pools import propose_levels
from queuectl.offline.inputs import read_snapshot
from queuectl.planner import plan
from queuectl.planner.verify import verify
from tests.support.cli import Cli, queuectl_with
from tests.support.examples import examples
from tests.support.fleets import FLEETS, Body, eks, gang, gke, node, superpod, without_gpus

GPU = "nvidia.com/gpu"


@pytest.fixture
def queuectl(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> Cli:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    return lambda *arguments: queuectl_with(monkeypatch, capsys, *arguments)


def written(tmp_path: Path, *documents: Body) -> str:
    path = tmp_path / "nodes.yaml"
    path.write_text(yaml.safe_dump_all(documents))
    return str(path)


def proposed(queuectl: Cli, tmp_path: Path, nodes: list[Body], *options: str) -> str:
    result = queuectl("init", "-f", written(tmp_path, *nodes), *options)
    assert result.code == 0, result.err
    return result.out


def of_kind(text: str, kind: str) -> dict[str, Any]:
    """The specs of the objects of one kind, by name."""
    found = [body for body in yaml.safe_load_all(text) if body["kind"] == kind]
    return {body["metadata"]["name"]: body["spec"] for body in found}


def quotas(text: str) -> dict[str, dict[str, Any]]:
    """Nominal quota by flavor and resource."""
    (queue,) = of_kind(text, "ClusterQueue").values()
    (group,) = queue["resourceGroups"]
    return {
        flavor["name"]: {each["name"]: each["nominalQuota"] for each in flavor["resources"]}
        for flavor in group["flavors"]
    }


def levels(text: str) -> dict[str, list[str]]:
    """The levels of each flavor, without the host name."""
    topologies = {
        name: [level["nodeLabel"] for level in spec["levels"]]
        for name, spec in of_kind(text, "Topology").items()
    }
    assert all(found[-1] == HOSTNAME for found in topologies.values())
    return {
        name: topologies[spec["topologyName"]][:-1]
        for name, spec in of_kind(text, "ResourceFlavor").items()
    }


BLOCK, SUBBLOCK = "cloud.google.com/gce-topology-block", "cloud.google.com/gce-topology-subblock"
LAYER = "topology.k8s.aws/network-node-layer-"
EXPECTED: Mapping[str, dict[str, tuple[list[str], dict[str, Any]]]] = {
    "gke": {
        "h200-141gb": ([BLOCK, SUBBLOCK], {GPU: 128, "memory": "46768Gi"}),
        "cpu": ([], {GPU: 0, "cpu": "95550m"}),
    },
    "eks": {
        "h100-80gb-hbm3": ([LAYER + "2", LAYER + "3"], {GPU: 64, "vpc.amazonaws.com/efa": 256}),
        "l4-shared": ([], {GPU: 32, "vpc.amazonaws.com/efa": 0}),
        "cpu": ([], {GPU: 0}),
    },
    "superpod": {"gb200": (["example.com/block", "nvidia.com/gpu.clique"], {GPU: 64})},
    "amd": {"mi300x-oam": (["topology.example.com/rack"], {"amd.com/gpu": 32})},
    "mixed": {
        "a100-sxm4-80gb-all-disabled": ([], {GPU: 16, "nvidia.com/mig-1g.10gb": 0}),
        "a100-sxm4-80gb-all-1g.10gb": ([], {GPU: 0, "nvidia.com/mig-1g.10gb": 112}),
        "max-1550": ([], {"gpu.intel.com/i915": 8}),
    },
    "without-gpus": {"cpu": (["topology.kubernetes.io/zone"], {"cpu": "127400m"})},
}


@pytest.mark.parametrize("fleet", FLEETS)
def test_flavors_levels_and_quota_are_those_of_the_nodes(
    fleet: str, queuectl: Cli, tmp_path: Path
) -> None:
    text = proposed(queuectl, tmp_path, FLEETS[fleet]())
    found = levels(text)
    assert found == {name: labels for name, (labels, _) in EXPECTED[fleet].items()}
    for name, (_, amounts) in EXPECTED[fleet].items():
        assert quotas(text)[name].items() >= amounts.items()


@pytest.mark.parametrize("fleet", FLEETS)
def test_the_readers_accept_the_proposal_without_a_warning(
    fleet: str, queuectl: Cli, tmp_path: Path
) -> None:
    documents = read_documents(proposed(queuectl, tmp_path, FLEETS[fleet]()))
    assert [warning for document in documents for warning in validate(document)[1]] == []
    assert list(dangling(build(documents, 0, strict=True))) == []


@pytest.mark.parametrize(
    ("fleet", "job", "nodes"),
    [
        ("gke", gang(4, {GPU: "8"}, level=SUBBLOCK), "gke-a3u"),
        ("gke", gang(1, {"ephemeral-storage": "10Gi"}), "gke-default"),
        ("eks", gang(2, {GPU: "8", "vpc.amazonaws.com/efa": "32"}, level=LAYER + "3"), "ip-10-0-1"),
        ("superpod", gang(4, {GPU: "4"}, level="nvidia.com/gpu.clique"), "dgx"),
        ("amd", gang(2, {"amd.com/gpu": "8"}, level="topology.example.com/rack"), "mi300x"),
        ("mixed", gang(3, {"nvidia.com/mig-1g.10gb": "1"}), "a100"),
        ("mixed", gang(1, {"gpu.intel.com/i915": "2"}), "max"),
        ("without-gpus", gang(4, {}), "cpu"),
    ],
)
def test_a_gang_starts_at_once_with_the_proposal(
    fleet: str, job: Body, nodes: str, queuectl: Cli, tmp_path: Path
) -> None:
    fleet_nodes = FLEETS[fleet]()
    text = proposed(queuectl, tmp_path, fleet_nodes)
    space = {
        "apiVersion": "v1",
        "kind": "Namespace",
        "metadata": {"name": "default", "labels": {"kubernetes.io/metadata.name": "default"}},
    }
    documents = [
        *read_documents(yaml.safe_dump_all([*fleet_nodes, space, job])),
        *read_documents(text),
    ]
    snapshot = read_snapshot(documents, 0.0).snapshot
    decided = plan(snapshot)
    assert not verify(snapshot, decided)
    assert [start.placement for start in decided.admitted], decided.pending
    used = {
        n for start in decided.admitted for part in start.placement.podsets for n, _ in part.nodes
    }
    assert all(name.startswith(nodes) for name in used)


# ---- levels


def labeled(*rows: Mapping[str, str]) -> list[Node]:
    return [Node(f"n{at}", labels) for at, labels in enumerate(rows)]


A, B = "a.example.com/block", "b.example.com/rack"
ZONE = "topology.kubernetes.io/zone"


@pytest.mark.parametrize(
    ("nodes", "chosen", "reason"),
    [
        (labeled({A: "1", B: "x"}, {A: "1", B: "x"}, {A: "2", B: "y"}), (A,), f"{B}: it has the same domains as {A}"),
        (labeled({A: "1"}, {A: "1"}), (), f"{A}: all nodes have the value 1"),
        (labeled({A: "1"}, {A: "2"}), (), f"{A}: each node has a different value"),
        (labeled({A: "1"}, {A: "1"}, {A: "2"}, {}), (), f"{A}: 1 of 4 nodes lack it (n3)"),
        (
            labeled({A: "1", B: "x"}, {A: "1", B: "y"}, {A: "2", B: "x"}, {A: "2", B: "z"}),
            (A,),
            f"{B}: {B} x has nodes in {A} 1 and 2",
        ),
        (
            labeled({A: "1", ZONE: "x"}, {A: "1", ZONE: "y"}, {A: "2", ZONE: "z"}, {A: "2", ZONE: "z"}),
            (A,),
            f"{ZONE}: {A} 1 has nodes in {ZONE} x and y",
        ),
    ],
)  # fmt: skip
def test_a_label_that_is_not_a_level_is_left_out_with_the_reason(
    nodes: list[Node], chosen: tuple[str, ...], reason: str
) -> None:
    found = propose_levels(nodes)
    assert found.labels == (*chosen, HOSTNAME)
    assert any(text.startswith(reason) for text in found.left_out), found.left_out


KEYS = [A, B, ZONE, "nvidia.com/gpu.clique", LAYER + "1", LAYER + "2", "example.com/datacenter"]


@st.composite
def some_nodes(draw: st.DrawFn) -> list[Node]:
    """Nodes with few values of the labels of places, and with GPUs of few kinds."""
    rows = draw(
        st.lists(
            st.fixed_dictionaries({key: st.sampled_from("123") for key in KEYS}),
            min_size=1,
            max_size=12,
        )
    )
    kinds = st.sampled_from(["", "A100", "H100", "A100-mig"])
    made = []
    for at, row in enumerate(rows):
        kept = {key: value for key, value in row.items() if draw(st.integers(0, 9))}
        kind = draw(kinds)
        product = {"nvidia.com/gpu.product": kind.removesuffix("-mig")} if kind else {}
        config = (
            {"nvidia.com/mig.config": draw(st.sampled_from("ab"))} if draw(st.booleans()) else {}
        )
        resource = "nvidia.com/mig-1g.10gb" if kind.endswith("-mig") else GPU
        amounts = {"cpu": 1000, "memory": 2**30, "pods": 110} | ({resource: 8} if kind else {})
        pool = {"karpenter.sh/nodepool": draw(st.sampled_from("pq"))}
        made.append(Node(f"n{at}", {**kept, **product, **config, **pool}, Resources(amounts)))
    return made


@settings(max_examples=examples(200), deadline=None)
@given(some_nodes())
def test_each_domain_of_a_level_is_in_one_domain_of_the_level_before_it(
    nodes: list[Node],
) -> None:
    found = propose_levels(nodes)
    for coarse, fine in zip(found.labels, found.labels[1:-1], strict=False):
        inside: dict[str, set[str]] = {}
        for each in nodes:
            inside.setdefault(each.labels[fine], set()).add(each.labels[coarse])
        assert all(len(domains) == 1 for domains in inside.values())
    assert all(label in each.labels for each in nodes for label in found.labels[:-1])


@settings(max_examples=examples(200), deadline=None)
@given(some_nodes())
def test_each_node_has_one_flavor_at_most_and_its_capacity_is_in_its_quota(
    nodes: list[Node],
) -> None:
    found = propose(nodes, ["default"], "main")
    if not found.entries:
        return
    text = as_yaml(found, "a test")
    config = build(read_documents(text), 0, strict=True)
    selected = {
        name: [n for n in nodes if all(n.labels.get(k) == v for k, v in flavor.node_labels)]
        for name, flavor in config.flavors.items()
    }
    names = [each.name for members in selected.values() for each in members]
    assert len(names) == len(set(names))
    for name, amounts in quotas(text).items():
        capacity = total(each.allocatable for each in selected[name])
        for resource, amount in amounts.items():
            assert parse_quantity(resource, str(amount), round_up=False) == capacity[resource]


# ---- what is left out, and errors


def test_the_file_names_what_was_left_out(queuectl: Cli, tmp_path: Path) -> None:
    nodes = gke()
    nodes[0]["spec"]["unschedulable"] = True
    nodes[1]["status"]["conditions"] = [{"type": "Ready", "status": "False"}]
    nodes[2]["status"]["allocatable"][GPU] = "7"
    del nodes[3]["status"]["allocatable"][GPU], nodes[3]["status"]["capacity"][GPU]
    nodes[3]["metadata"]["labels"]["feature.node.kubernetes.io/pci-10de.present"] = "true"
    devices = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": "one"},
        "spec": {"driver": "gpu.nvidia.com", "devices": [{"name": "gpu-0"}, {"name": "gpu-1"}]},
    }
    text = " ".join(proposed(queuectl, tmp_path, [*nodes, devices]).replace("#", "").split())
    assert quotas(proposed(queuectl, tmp_path, nodes))["h200-141gb"][GPU] == 12 * 8 + 7
    for sentence in (
        "the quota of gke-a3u-00: cordoned",
        "the quota of gke-a3u-01: not ready",
        "1 nvidia.com/gpu of gke-a3u-02: unhealthy for the device plugin",
        "gke-a3u-03: labels show GPUs of NVIDIA, but they have no GPU resource",
        "2 devices that gpu.nvidia.com publishes in ResourceSlices",
        "No level: cloud.google.com/gce-topology-host: each node has a different value",
        "No level: topology.kubernetes.io/zone: all nodes have the value europe-west1-b",
        "The nodes have the taint nvidia.com/gpu",
    ):
        assert sentence in text


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ({"driver": "a", "devices": 5}, "spec.devices"),
        ([1], "spec"),
        ({"driver": [1]}, "spec.driver"),
    ],
)
def test_an_invalid_resource_slice_is_named(
    queuectl: Cli, tmp_path: Path, spec: object, says: str
) -> None:
    name = {"metadata": {"name": "one"}, "spec": spec}
    body = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", **name}
    file = tmp_path / "slice.yaml"
    file.write_text(yaml.safe_dump_all([*gke(), body]))
    result = queuectl("init", "-f", str(file))
    assert (result.code, f"(ResourceSlice/one): {says}: " in result.err) == (2, True), result.err


CLASSES = {
    "gpu.example.com": ("device.driver == 'gpu.example.com'", "example.com/gpu"),
    "big": ("device.capacity['gpu.example.com'].memory.isGreaterThan(quantity('50Gi'))", None),
    "none": ("device.driver == 'nic.example.com'", None),
}
IMPLICIT = "deviceclass.resource.kubernetes.io/big"


@pytest.mark.parametrize(
    ("devices", "quota", "left_out"),
    [
        ([*gpus(8, "H100")], {"example.com/gpu": 16, IMPLICIT: 16}, False),
        ([*gpus(4, "L4", memory="24Gi")], {"example.com/gpu": 8}, False),
        ([device("gpu-0", taints=[{"key": "bad", "effect": "NoSchedule"}])], {}, False),
        (
            [
                device(f"part-{n}", consumesCounters=[{"counterSet": "c", "counters": {"s": {"value": str(n)}}}])
                for n in (1, 2, 7)
            ],
            {"example.com/gpu": 4},
            False,
        ),
        ([], {}, False),
    ],
    ids=["two classes", "one class", "tainted", "divisions of one device", "no devices"],
)  # fmt: skip
def test_the_quota_has_the_devices_of_each_class(
    queuectl: Cli, tmp_path: Path, devices: list[Body], quota: dict[str, int], *, left_out: bool
) -> None:
    nodes = [
        node(f"n{number}", {}, {"cpu": "8", "memory": "64Gi", "pods": "110"}) for number in range(2)
    ]
    counters = [{"name": "c", "counters": {"s": {"value": "7"}}}]
    slices = [
        one for each in nodes for one in pool(each["metadata"]["name"], devices, counters=counters)
    ]
    classes = [device_class(n, cel, extended_resource=name) for n, (cel, name) in CLASSES.items()]
    text = proposed(queuectl, tmp_path, [*nodes, *slices, *classes])
    (found,) = quotas(text).values()
    assert {name: found[name] for name in found if "example" in name or "class" in name} == quota
    assert ("publishes in ResourceSlices" in text) is left_out


def test_nodes_with_shared_gpus_are_described(queuectl: Cli, tmp_path: Path) -> None:
    assert "32 nvidia.com/gpu: 4 pods can share each" in proposed(queuectl, tmp_path, eks())


def test_nodes_that_no_label_distinguishes_are_one_flavor_with_a_note(
    queuectl: Cli, tmp_path: Path
) -> None:
    labels = {"nvidia.com/gpu.product": "NVIDIA-A100"}
    amounts = [{"nvidia.com/gpu": "8"}, {"nvidia.com/mig-1g.10gb": "56"}]
    nodes = [node(f"n{at}", labels, {"cpu": "8", "memory": "8Gi", **amounts[at]}) for at in (0, 1)]
    text = proposed(queuectl, tmp_path, nodes)
    assert quotas(text)["a100"].items() >= {GPU: 8, "nvidia.com/mig-1g.10gb": 56}.items()
    assert "have the same labels, so they are one flavor" in text


def test_gpus_without_a_model_are_left_out(queuectl: Cli, tmp_path: Path) -> None:
    unnamed = node("old", {}, {"cpu": "8", "memory": "8Gi", GPU: "1"})
    text = proposed(queuectl, tmp_path, [*superpod(), unnamed])
    assert "old: no label names the GPU model" in text
    text = proposed(queuectl, tmp_path, [unnamed])
    assert of_kind(text, "ResourceFlavor")["gpu"]["nodeLabels"] == {"kubernetes.io/os": "linux"}


def test_each_namespace_gets_a_localqueue(queuectl: Cli, tmp_path: Path) -> None:
    text = proposed(queuectl, tmp_path, gke(), "-n", "team-a", "-n", "team-b", "--queue", "gpus")
    found = [b["metadata"] for b in yaml.safe_load_all(text) if b["kind"] == "LocalQueue"]
    assert found == [{"name": "gpus", "namespace": team} for team in ("team-a", "team-b")]
    config = build(read_documents(text), 0)
    selector = config.cluster_queues["gpus"].namespace_selector
    assert selector is not None
    assert selector.matches({"kubernetes.io/metadata.name": "team-b"})
    assert not selector.matches({"kubernetes.io/metadata.name": "default"})


def test_a_queue_with_the_name_default_warns_about_jobs_without_a_label(
    queuectl: Cli, tmp_path: Path
) -> None:
    text = proposed(queuectl, tmp_path, gke(), "--queue", "default")
    assert "All Jobs in default without a queue label use it" in text


@pytest.mark.parametrize(
    ("documents", "options", "code", "message"),
    [
        ([], [], 2, "no Node, so no capacity to propose"),
        (superpod()[16:], [], 2, "no node can be proposed: 3 nodes (head-0, …) without GPUs: tainted"),
        (gke(), ["--queue", "a b"], 2, "'a b' is not a name"),
        (gke(), ["-n", "a b"], 2, "'a b' is not a name"),
    ],
)  # fmt: skip
def test_a_cluster_without_nodes_and_wrong_names_are_refused(
    documents: list[Body],
    options: list[str],
    code: int,
    message: str,
    queuectl: Cli,
    tmp_path: Path,
) -> None:
    result = queuectl("init", "-f", written(tmp_path, *documents), *options)
    assert (result.code, result.out) == (code, "")
    assert message in result.err


def test_a_cluster_without_gpus_gets_a_warning(queuectl: Cli, tmp_path: Path) -> None:
    result = queuectl("init", "-f", written(tmp_path, *without_gpus()))
    assert (result.code, "no node has a GPU resource" in result.err) == (0, True)


def test_an_object_that_exists_in_another_form_is_not_proposed(
    queuectl: Cli, tmp_path: Path
) -> None:
    nodes = gke()
    first = list(yaml.safe_load_all(proposed(queuectl, tmp_path, nodes)))
    assert proposed(queuectl, tmp_path, [*nodes, *first])
    grown = [*nodes, {**nodes[0], "metadata": {**nodes[0]["metadata"], "name": "gke-a3u-16"}}]
    result = queuectl("init", "-f", written(tmp_path, *grown, *first))
    assert (result.code, result.out) == (4, "")
    assert "clusterqueue/main exists and differs" in result.err
    assert "resources[nvidia.com/gpu].nominalQuota: 128 -> 136" in result.err
    assert "choose another name with --queue" in result.err
    result = queuectl("init", "-f", written(tmp_path, *nodes, *first), "--queue", "second")
    assert result.code == 0
    assert "these ClusterQueues exist already: main" in result.err
