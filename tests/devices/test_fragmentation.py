"""Free GPUs that pods cannot use although their node has enough of them: they are not of one root or NUMA node."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from inspect import Parameter, signature
from typing import Any

import pytest

from queuectl.devices.lower import DeviceCache, for_reports, with_devices
from queuectl.domain.accounting import Free
from queuectl.domain.devices import PodDevices
from queuectl.domain.snapshot import Admitted, Snapshot
from queuectl.domain.workload import Workload
from queuectl.planner import plan
from queuectl.planner.cache import PlannerCache
from queuectl.reports.cluster_map import all_parts, cluster_map_of
from queuectl.reports.fragmentation import free_gpus
from tests.devices import build
from tests.devices.test_lower import claiming, cluster
from tests.devices.test_numa import TWO_ZONES, container, one, pods
from tests.devices.test_numa import cluster as numa_cluster
from tests.devices.test_rows import ONE, PAIR, gpus
from tests.planner.build import FLAVOR, gang, holding

QUAD = build.pod(build.option(count=4), match=build.ROOT)


def free(snapshot: Snapshot) -> Free:
    cache = PlannerCache()
    counted = for_reports(snapshot, DeviceCache())
    found = free_gpus(counted, snapshot, cache)[FLAVOR]
    on_map = cluster_map_of(counted, snapshot, {}, cache).occupancies
    assert float(sum(node.fragmented for node in on_map)) == pytest.approx(found.fragmented)
    return found


def wanted(name: str, devices: PodDevices, count: int = 1) -> Workload:
    return gang(name, claiming(count, devices), queue=None)


def running(name: str, devices: PodDevices, on: Mapping[str, int]) -> Admitted:
    return holding(wanted(name, devices, sum(on.values())), on, flavor=None)


def nodes(number: int, roots: int, pending: Sequence[Workload], *admitted: Admitted) -> Snapshot:
    """Nodes of eight GPUs on some roots."""
    devices = {f"n{i}": build.node(*gpus(8, roots=roots)) for i in range(number)}
    return cluster(devices, pending, admitted)


def test_free_gpus_of_empty_nodes_are_not_fragments() -> None:
    snapshot = nodes(3, 4, [wanted("p", PAIR), wanted("s", ONE)])
    assert free(snapshot) == Free(24, 24, 0.0, 0.0, 0.0)


def test_free_gpus_that_are_not_sure_to_be_of_one_root_are_fragments_inside_nodes() -> None:
    """Two single GPUs can be on both roots: four of one root are not sure, though six are free."""
    snapshot = nodes(1, 2, [wanted("q", QUAD)], running("s", ONE, {"n0": 2}))
    found = free(snapshot)
    assert (found.free, found.stranded) == (6, 0)
    assert found.inside == found.fragmented == pytest.approx(6 * 1 / 3)  # of a pod out of three


def test_gpus_that_are_too_few_are_fragments_but_not_inside_nodes() -> None:
    snapshot = nodes(1, 2, [wanted("q", QUAD)], running("s", ONE, {"n0": 5}))
    found = free(snapshot)
    assert found.fragmented == pytest.approx(3 * 1 / 6)
    assert found.inside == 0.0


def test_whole_roots_that_are_sure_to_be_left_are_not_fragments() -> None:
    snapshot = nodes(1, 4, [wanted("p", PAIR)], running("s", ONE, {"n0": 3}))
    assert free(snapshot).fragmented == 0.0
    snapshot = nodes(1, 4, [wanted("p", PAIR)], running("s", ONE, {"n0": 4}))
    assert free(snapshot).inside == pytest.approx(4 * 1 / 5)


def test_gpus_of_two_numa_nodes_are_fragments_for_pods_of_one() -> None:
    small = holding(one(pods(2, container(1, 1, 1)), uid="s"), {"n": 2}, flavor=None)
    large = one(pods(2, container(1, 1, 4)))
    found = free(numa_cluster({"n": TWO_ZONES}, [large], [small]))
    assert (found.free, found.stranded) == (6, 0)
    assert found.inside == found.fragmented == pytest.approx(6 * 2 / 4)


def test_a_pod_starts_on_the_node_in_use_so_that_the_roots_of_other_nodes_stay_whole() -> None:
    for pod in (ONE, QUAD):
        snapshot = nodes(3, 2, [wanted("g", pod)], running("s", pod, {"n1": 1}))
        (admission,) = plan(with_devices(snapshot, DeviceCache())).admitted
        assert admission.placement.podsets[0].by_node == {"n1": 1}


@pytest.mark.parametrize("report", [free_gpus, cluster_map_of, all_parts])
def test_each_report_requires_the_snapshot_without_device_rows(report: Callable[..., Any]) -> None:
    assert signature(report).parameters["original"].default is Parameter.empty


def test_a_snapshot_without_devices_has_no_fragments_inside_nodes() -> None:
    snapshot = cluster({}, [gang("g", queue=None)], plugin={"p": 8})
    assert for_reports(snapshot, DeviceCache()) is snapshot
    assert free_gpus(snapshot, snapshot)[FLAVOR] == Free(8, 8, 0.0, 0.0)
