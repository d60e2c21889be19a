"""The simulated GPU exporters: the GPUs of each pod, the values of a profile, and the text of the real exporters."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest
from prometheus_client.parser import text_string_to_metric_families

from queuectl.localcluster.client import get_plain
from queuectl.localcluster.exporter import Dialect, Exporters, load_of, render
from queuectl.localcluster.gpus import GpuPod, SimulatedGpus, parse_profile


def load(name: str, gpus: int = 1, profile: str = "busy", **more: Any) -> GpuPod:
    return GpuPod("team", name, f"uid-{name}", "n0", gpus, parse_profile(profile), 100.0, **more)


def samples(*loads: GpuPod, now: float = 100.0, **dialect: Any) -> dict[str, list[dict[str, Any]]]:
    """Metric to its series, each as labels and ``value``; read by the client library's own parser."""
    devices = SimulatedGpus("n0", gpus=4)
    for one in loads:
        devices.put(one)
    text = render(devices.assignments, devices.free_devices, Dialect(**dialect), now)
    return {
        family.name: [{**sample.labels, "value": sample.value} for sample in family.samples]
        for family in text_string_to_metric_families(text)
    }


ENGINE, UTIL = "DCGM_FI_PROF_GR_ENGINE_ACTIVE", "DCGM_FI_DEV_GPU_UTIL"


def test_a_line_has_the_real_exporters_labels_in_their_order() -> None:
    devices = SimulatedGpus("n0", gpus=1)
    devices.put(load("train"))
    (line,) = [
        line
        for line in render(devices.assignments, [], Dialect(), 100.0).splitlines()
        if line.startswith(UTIL)
    ]
    assert line == (
        'DCGM_FI_DEV_GPU_UTIL{gpu="0",UUID="GPU-n0-0",pci_bus_id="00000000:18:00.0",device="nvidia0",'
        'modelName="NVIDIA H100 80GB HBM3",Hostname="n0",DCGM_FI_DRIVER_VERSION="570.133.20",'
        'container="main",namespace="team",pod="train"} 90'
    )


def test_gpus_without_a_holder_are_exported_without_a_pod() -> None:
    found = samples(load("train", 2))[ENGINE]
    assert [one.get("pod") for one in found] == ["train", "train", None, None]
    assert {one["gpu"] for one in found} == {"0", "1", "2", "3"}


@pytest.mark.parametrize(
    ("profile", "after", "engine"),
    [
        ("busy", 0, [0.9, 0.9]),
        ("busy=0.5", 0, [0.5, 0.5]),
        ("idle", 0, [0, 0]),
        ("stuck", 0, [1, 1]),
        ("busy for 60; idle", 59, [0.9, 0.9]),
        ("busy for 60; idle", 60, [0, 0]),
        ("busy for 60; idle for 10; busy=0.3", 70, [0.3, 0.3]),
        ("busy | idle", 0, [0.9, 0]),
    ],
)
def test_a_profile_gives_the_use_of_each_gpu_at_each_time(
    profile: str, after: float, engine: list[float]
) -> None:
    found = samples(load("train", 2, profile), now=100.0 + after)[ENGINE]
    assert [one["value"] for one in found if "pod" in one] == pytest.approx(engine)


@pytest.mark.parametrize("profile", ["fast", "busy=x", "idle=0.5", "busy for soon", ""])
def test_an_invalid_profile_is_refused(profile: str) -> None:
    with pytest.raises(ValueError, match="is not a step of a GPU profile"):
        parse_profile(profile)


def test_an_unseen_gpu_is_there_without_its_pod() -> None:
    found = samples(load("train", 2, "busy | unseen"))[ENGINE]
    assert [one.get("pod") for one in found] == ["train", None, None, None]


def test_without_profiling_there_is_utilization_only() -> None:
    found = samples(load("train"), dcp=False)
    assert ENGINE not in found
    assert found[UTIL][0]["value"] == 90


def test_instances_of_a_gpu_have_distinct_labels_and_no_utilization() -> None:
    found = samples(load("a", 1, "idle", mig="1g.10gb"), load("b", 2, mig="1g.10gb"))
    held = [one for one in found[ENGINE] if "pod" in one]
    assert [(one["pod"], one["UUID"], one["GPU_I_ID"], one["value"]) for one in held] == [
        ("a", "GPU-n0-0", "0", 0),
        ("b", "GPU-n0-0", "1", 0.9),
        ("b", "GPU-n0-0", "2", 0.9),
    ]
    assert held[0]["GPU_I_PROFILE"] == "1g.10gb"
    assert not [one for one in found[UTIL] if "pod" in one]


def test_of_a_time_sliced_gpu_only_utilization_and_memory_are_each_pods_own() -> None:
    both = (load("a", profile="idle", shared=True), load("b", shared=True))
    found = samples(*both, virtual_gpus=True)
    assert [(one["pod"], one["vgpu"], one["value"]) for one in found[ENGINE][:2]] == [
        ("a", "0", 0.9),
        ("b", "1", 0.9),
    ]
    assert [one["value"] for one in found[UTIL][:2]] == [0, 90]
    # Without virtual GPUs the exporter shows only one of them.
    assert [one.get("pod") for one in samples(*both)[ENGINE]] == ["b", None, None, None]


def test_the_other_vendors_exporter_has_other_names_and_empty_labels() -> None:
    found = samples(load("train"), vendor="amd")["gpu_gfx_activity"]
    assert [(one["pod"], one["gpu_id"], one["value"]) for one in found[:2]] == [
        ("train", "0", 90),
        ("", "1", 0),
    ]


def test_only_the_first_partition_of_an_amd_gpu_has_its_activity() -> None:
    both = (load("a", mig="cpx_nps4"), load("b", mig="cpx_nps4"))
    found = samples(*both, vendor="amd")["gpu_gfx_activity"]
    assert [(one["pod"], one["value"]) for one in found if one["pod"]] == [("a", 90), ("b", 0)]


def test_the_third_vendors_exporter_has_its_own_labels_for_pods() -> None:
    found = samples(load("train"), vendor="intel")["xpum_engine_ratio"]
    assert [(one.get("kube_pod"), one["value"]) for one in found[:2]] == [("train", 0.9), (None, 0)]


def test_a_gpu_is_given_back_and_given_again() -> None:
    devices = SimulatedGpus("n0", gpus=4)
    for name in ("a", "b"):
        devices.put(load(name, 2))
    devices.take("uid-a")
    devices.put(load("c", 2))
    assert [(one.pod, device.index) for device, one, _ in devices.assignments] == [
        ("b", 2),
        ("b", 3),
        ("c", 0),
        ("c", 1),
    ]


# ---- the server


@pytest.fixture
def exporters() -> Iterator[Exporters]:
    with Exporters() as running:
        yield running


def get(url: str) -> httpx2.Response:
    return get_plain(url)


def test_exporters_are_found_scraped_killed_and_revived(exporters: Exporters) -> None:
    exporters.add_node("n0")
    (target,) = json.loads(get(exporters.targets_url).text)
    assert target["targets"] == [exporters.address]
    assert target["labels"]["__metrics_path__"] == "/metrics/n0"
    assert target["labels"]["pod"] == "dcgm-exporter-n0"
    assert get(exporters.url("n0")).status_code == 200
    exporters.kill("n0")
    assert get(exporters.url("n0")).status_code == 503
    exporters.revive("n0")
    assert get(exporters.url("n0")).status_code == 200
    assert get(exporters.url("elsewhere")).status_code == 404


def pod(name: str, phase: str = "Running", **annotations: str) -> dict[str, Any]:
    resources = {"limits": {"nvidia.com/gpu": "2"}}
    return {
        "metadata": {
            "namespace": "team", "name": name, "uid": f"uid-{name}",
            "annotations": {
                f"dcgm.queuectl.dev/{key.replace('_', '.')}": value
                for key, value in annotations.items()
            },
            "labels": {"batch.kubernetes.io/job-completion-index": "3"},
        },
        "spec": {"nodeName": "n0", "containers": [{"name": "main", "resources": resources}]},
        "status": {"phase": phase, "startTime": "2026-01-01T00:00:00Z"},
    }  # fmt: skip


def test_pods_that_run_hold_what_they_ask_for_and_do_what_they_say(exporters: Exporters) -> None:
    exporters.see([pod("a", profile="idle"), pod("b", phase="Pending")])
    assert 'pod="a"' in get(exporters.url("n0")).text
    assert 'pod="b"' not in get(exporters.url("n0")).text
    exporters.see([pod("c", profile="fast")])
    assert "is not a step" in exporters.problems["team/c"]
    assert 'pod="a"' not in get(exporters.url("n0")).text


@pytest.mark.parametrize(
    ("annotations", "engine"),
    [({}, 0.9), ({"profile": "idle"}, 0.0), ({"profile": "idle", "profile_3": "stuck"}, 1.0)],
)
def test_an_annotation_gives_the_use_of_a_pod_or_of_its_index(
    annotations: dict[str, str], engine: float
) -> None:
    found = load_of(pod("a", **annotations))
    assert found is not None
    assert (found.gpus, found.work(0, found.since).engine) == (2, engine)
