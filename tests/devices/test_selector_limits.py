"""The selectors that a plan evaluates, and how namespaces share them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from math import isqrt

import pytest

from queuectl.devices.lower import DeviceCache, with_devices
from queuectl.devices.requests import DeviceClasses
from queuectl.devices.selector_limits import (
    MOST_BYTES_OF_PLAN,
    MOST_OPERATIONS_OF_PLAN,
    MOST_SELECTORS_OF_PLAN,
    PARTS,
    Owned,
    Selectors,
    SnapshotRequests,
    refused_selectors,
)
from queuectl.devices.selectors import MOST_COMPILED, Selector, selector
from queuectl.domain.reasons import Code
from queuectl.domain.snapshot import Admitted, Pending, Snapshot
from queuectl.domain.workload import PodSet, Workload
from queuectl.planner import plan
from tests.devices import build
from tests.devices.build import option, pod
from tests.devices.test_lower import claiming, cluster
from tests.devices.test_rows import gpus
from tests.planner.build import gang, holding

CLASSES = DeviceClasses(build.CLASSES, ())
Requested = Mapping[str, Iterable[Selectors]]  # by namespace


def owned(requested: Requested) -> Owned:
    shapes = {
        (name, claiming(1, pod(option(selectors=each))).shape)
        for name, lists in requested.items()
        for each in lists
    }
    requests = {(name, CLASSES.request_of(shape)) for name, shape in shapes}
    return frozenset((name, one) for name, one in requests if one is not None)


def refused(waiting: Requested, holding: Requested | None = None) -> frozenset[Selectors]:
    return refused_selectors(SnapshotRequests(owned(holding or {}), owned(waiting)), CLASSES)


def costing(operations: int) -> str:
    """A selector of so many operations, about."""
    items = f"[{', '.join('0' * isqrt(operations // 16))}]"
    return f"{items}.all(a, {items}.all(b, a <= b))"


def names(number: int, first: str = "") -> list[Selectors]:
    """Selectors of equal cost."""
    return [(f"{costing(1_000)} && device.driver != '{first}{n:05}'",) for n in range(number)]


OF_NAME = selector(names(1)[0][0]).operations
MOST = MOST_OPERATIONS_OF_PLAN // PARTS // OF_NAME
"""Such selectors of a namespace."""


def test_the_most_expensive_selectors_of_a_namespace_are_refused_and_no_other_ones() -> None:
    cheap, expensive = names(20), [(costing(20_000) + " " * n,) for n in range(30)]
    found = refused({"a": [*expensive, *cheap]})
    assert 0 < len(found) < 30
    assert found <= set(expensive)
    assert not refused({"a": [*sorted(found)[:2], *cheap]})


def test_all_selectors_of_a_plan_stay_compiled() -> None:
    assert MOST_COMPILED > 1.5 * MOST_SELECTORS_OF_PLAN
    assert selector("true").operations * MOST_SELECTORS_OF_PLAN > MOST_OPERATIONS_OF_PLAN


def test_no_more_selectors_of_a_namespace_are_compiled_than_its_part(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    known, compiled = selector("true"), set[str]()

    def compiling(source: str) -> Selector:
        compiled.add(source)
        return known

    monkeypatch.setattr("queuectl.devices.selector_limits.selector", compiling)
    many = [(f"{number} != 0",) for number in range(10_000, 10_000 + MOST_SELECTORS_OF_PLAN)]
    assert refused({"a": many})
    assert len(compiled) == MOST_SELECTORS_OF_PLAN // PARTS


def test_the_bytes_of_selectors_are_bounded_before_they_are_compiled() -> None:
    long = [(f"device.driver != '{n:09000}'",) for n in range(40)]
    assert len(refused({"a": long})) == 40 - MOST_BYTES_OF_PLAN // PARTS // len(long[0][0])


def test_a_namespace_within_its_equal_part_is_not_refused_for_the_selectors_of_others() -> None:
    """The others have thousands of cheap ones, and it has fewer expensive ones."""
    many = {f"n{number}": [(f"{number}{n} != 0",) for n in range(900)] for number in range(9)}
    own = [(costing(10_000),), (costing(12_000),)]
    found = refused({**many, "own": own})
    assert found
    assert found.isdisjoint(own)


@pytest.mark.parametrize("number", [1, 3, 4, 5, 8])
def test_namespaces_that_need_more_than_there_is_get_the_same(number: int) -> None:
    wanted = {f"n{each}": names(MOST + 1, f"{each}") for each in range(number)}
    found = refused(wanted)
    kept = [len(set(own) - found) for own in wanted.values()]
    assert len(set(kept)) == 1
    assert sum(kept) * OF_NAME <= MOST_OPERATIONS_OF_PLAN
    assert (sum(kept) + number) * OF_NAME > MOST_OPERATIONS_OF_PLAN * min(1, number / PARTS)


def test_what_some_namespaces_do_not_need_is_for_the_others() -> None:
    small = {f"s{each}": names(10, f"s{each}") for each in range(20)}
    large = {f"l{each}": names(MOST, f"l{each}") for each in range(5)}
    found = refused({**small, **large})
    kept = sum(len(set(own) - found) for own in (*small.values(), *large.values()))
    assert not any(found.intersection(own) for own in small.values())
    assert (kept + 5) * OF_NAME > MOST_OPERATIONS_OF_PLAN


def test_selectors_of_gangs_that_hold_devices_come_first() -> None:
    """They are the most expensive ones, and were within the part of their namespace when fewer namespaces had any."""
    runs = [(costing(40_000) + " " * n,) for n in range(2)]
    others = {f"n{each}": names(MOST) for each in range(20)}
    waits = {**others, "own": names(MOST, "own")}
    assert refused({**waits, "own": [*waits["own"], *runs]}).issuperset(runs)
    found = refused(waits, {"own": runs})
    assert found.isdisjoint(runs)
    assert found.issuperset(waits["own"]), "its part is spent"
    assert not refused({**waits, "own": runs}, {"own": runs}).intersection(runs)


def test_gangs_that_hold_devices_have_no_more_than_one_namespace_can() -> None:
    """A claim template can be changed while they run."""
    runs = [(costing(40_000) + " " * n,) for n in range(9)]
    assert 0 < len(set(runs) - refused({}, {"own": runs})) < 4


def test_a_selector_that_is_evaluated_for_one_namespace_is_not_refused_for_another() -> None:
    many = names(MOST + 100)
    last = many[-1]
    assert last in refused({"a": many})
    assert last not in refused({"a": many, "b": [last]})


def sort(number: int, *sources: str) -> PodSet:
    devices = pod(*(option("any", selectors=(source,)) for source in sources))
    return replace(claiming(1, devices), name=f"w{number}")


def crowd(uid: str) -> Workload:
    """A gang with thousands of cheap selectors."""
    first = 10_000 * (1 + int(uid[-1]))
    sorts = [[f"{first + 32 * at + n}!=0" for n in range(32)] for at in range(60)]
    made = gang(uid, *(sort(at, *each) for at, each in enumerate(sorts)), queue=None)
    return replace(made, namespace="crowd")


OF_TYPE = f'device.attributes["{build.DRIVER}"].type == "gpu"'


def crowded(waiting: list[Workload], running: list[Admitted]) -> Snapshot:
    devices = {"n": build.node(*gpus(8)), "m": build.node(*gpus(1))}
    return cluster(devices, [crowd("crowd0"), crowd("crowd1"), *waiting], running)


def test_a_gang_starts_alongside_thousands_of_selectors_of_another_namespace() -> None:
    own = gang("own", sort(0, OF_TYPE), queue=None, queued_at=9)
    made = plan(with_devices(crowded([own], []), DeviceCache()))
    assert [one.uid for one in made.admitted] == ["own"]
    assert {one.uid: one.reasons[0].code for one in made.pending} == {
        "crowd0": Code.UNSUPPORTED,
        "crowd1": Code.UNSUPPORTED,
    }
    assert "2083 selectors" in made.pending[0].reasons[0].message


def test_a_running_gang_keeps_its_devices_and_no_more_when_cheaper_selectors_come() -> None:
    """One that waits in the same namespace has thousands."""
    run = replace(gang("run", sort(0, OF_TYPE), queue=None), namespace="crowd")
    own = gang("own", *(sort(at, "true") for at in range(7)), queue=None, queued_at=9)
    running = holding(run, {"n": 1}, flavor=None)
    made = plan(with_devices(crowded([own], [running]), DeviceCache()))
    assert [one.uid for one in made.admitted] == ["own"]


def test_a_cache_keeps_no_answer_of_another_division() -> None:
    own = gang("own", sort(0, OF_TYPE), queue=None, queued_at=9)
    shared = replace(own, namespace="crowd")
    cache = DeviceCache()
    for waiting, blocked in (([own], 0), ([shared], 1), ([own], 0), ([shared, own], 0)):
        taken = with_devices(crowded(waiting, []), cache)
        mine: list[Pending] = [each for each in taken.pending if each.workload.uid == "own"]
        assert sum(each.blocked is not None for each in mine) == blocked
