"""The number of kept answers to requests has a limit, although users make any number of requests."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable

import pytest

from queuectl.devices.gpu_sizes import GpuSizes
from queuectl.devices.matching import Matching
from queuectl.devices.requests import DeviceClasses, PodRequest
from queuectl.domain.bounded import MOST_ANSWERS, BoundedCache
from queuectl.domain.devices import (
    NO_DEVICES,
    DeviceClass,
    DeviceKind,
    DeviceOption,
    PodDevices,
)
from queuectl.domain.fleet import Fleet, Node, NodeRules
from queuectl.domain.jobs import JobRecord, PodGroupMember, PodRecord
from queuectl.domain.quantity import GPU, NOTHING, Resources
from queuectl.domain.queues import QueueConfig
from queuectl.domain.workload import PodSet, PodShape
from queuectl.planner.problem.fleet import FleetIndex
from queuectl.state.pod_groups import PodGroups

MANY = MOST_ANSWERS + 1000
CLASS = DeviceClass("gpu.example.com")


def kept(of: type, make: Callable[[int], object], count: int = MANY) -> int:
    """The objects of a type that are left of so many requests."""
    gc.collect()
    before = sum(isinstance(each, of) for each in gc.get_objects())
    for number in range(count):
        make(number)
    gc.collect()
    return sum(isinstance(each, of) for each in gc.get_objects()) - before


def test_a_cache_has_a_limit_and_returns_each_answer() -> None:
    cache = BoundedCache[int, str]()
    assert [cache.keep(number, str(number)) for number in range(MANY)] == [
        str(number) for number in range(MANY)
    ]
    assert len(cache) == MANY - MOST_ANSWERS
    assert cache.get(MANY - 1) == str(MANY - 1)


def sizes() -> GpuSizes:
    fleet = Fleet((Node("n", {}, Resources({GPU: 8})),))
    return GpuSizes.of(fleet, NO_DEVICES, QueueConfig())


def test_the_sizes_of_pods_keep_no_rules_of_pods() -> None:
    of = sizes()

    def sized(number: int) -> object:
        rules = NodeRules((("job", str(number)),))
        return of.sized((PodSet("main", 1, PodShape(Resources({GPU: 1}), rules)),), "a", "q", {})

    assert kept(NodeRules, sized) < 10


@pytest.mark.parametrize("resource", [GPU, "nvidia.com/mig-{}g.10gb"])
def test_the_sizes_of_pods_have_a_limit(resource: str) -> None:
    of = sizes()
    for number in range(MANY):
        requests = Resources({resource.format(number): number + 1})
        (podset,) = of.sized((PodSet("main", 1, PodShape(requests)),), "a", "q", {})
        assert podset.shape.requests == requests
    assert len(of._pods) <= MOST_ANSWERS
    assert len(of._known) <= MOST_ANSWERS


def test_a_request_for_devices_is_kept_while_it_is_used() -> None:
    classes = DeviceClasses({CLASS.name: CLASS}, ())

    def asked(number: int) -> PodRequest | None:
        shape = PodShape(Resources({}), devices=PodDevices(shared=(f"claim-{number}",)))
        request = classes.request_of(shape)
        assert request is not None
        classes.requested(request)
        assert classes.request_of(shape) is request
        return request

    used = asked(0)
    assert kept(PodRequest, asked) == 0
    assert asked(0) is used


def test_the_devices_that_selectors_select_have_a_limit() -> None:
    matching, kind = Matching({CLASS.name: CLASS}), DeviceKind("gpu.example.com")
    for number in range(MANY):
        option = DeviceOption(CLASS.name, (f"device.driver == 'driver-{number}'",))
        assert not matching.selects(option, kind)
        assert matching.attributes(option) == frozenset()
    assert len(matching._known) <= MOST_ANSWERS
    assert len(matching._attributes) <= MOST_ANSWERS


def test_a_tree_of_levels_that_users_name_is_freed_unless_it_is_used() -> None:
    index = FleetIndex(Fleet((Node("n", {"rack": "r"}, Resources({GPU: 8})),)))
    racks = index.tree(("rack",))
    unused = weakref.ref(index.tree(("row", "rack")))
    for number in range(100):
        index.tree((f"level-{number}",))
    gc.collect()
    assert unused() is None
    assert index.tree(("rack",)) is racks


def test_a_set_of_groups_of_which_no_pod_is_left_is_not_kept() -> None:
    groups = PodGroups()
    for number in range(3):
        name = f"set-{number}"
        podsets = (PodSet("leader", 1, PodShape(NOTHING)),)
        job = JobRecord("Pod", "a", name, name, 1, 0.0, "q", podsets=podsets)
        member = PodGroupMember(job, group=f"{name}-0", parent=name, total=1)
        groups.put(PodRecord("a", f"{name}-0", f"pod-{number}", 1, member=member))
        [key] = groups.changed()
        groups.show(key, groups.settle(key)[1])
        groups.remove(f"pod-{number}")
        [key] = groups.changed()
        groups.show(key, groups.settle(key)[1])
    assert groups._of_set == {}
