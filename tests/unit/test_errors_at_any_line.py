"""After an error at any line of a change, the copy of the cluster and the sums are those that the records give."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from types import FrameType
from typing import Any

import pytest

from queuectl.domain.fleet import HOSTNAME, Node
from queuectl.domain.jobs import JobRecord, PodPhase, PodRecord
from queuectl.domain.quantity import Resources
from queuectl.domain.queues import QueueConfig
from queuectl.domain.records import (
    Deleted,
    Delta,
    ListCompleted,
    NodeRecord,
    Unreadable,
    Upserted,
    key_of,
)
from queuectl.lifecycle.observations import Observer
from queuectl.state.ledger import Ledger
from queuectl.state.mirror import Mirror
from queuectl.state.usage import OtherPodUsage
from tests.control.rig import gang
from tests.doubles.cluster import FakeCluster

pytestmark = pytest.mark.sets_aside

RUNS = 40
SHAPE = Resources({"cpu": 1000, "nvidia.com/gpu": 8, "pods": 1})


class AtLine(Exception):
    """The error of an unknown defect."""


@contextmanager
def error_at_line(number: int, modules: Sequence[str]) -> Iterator[list[int]]:
    """Raise once, at this line that runs in one of the modules. Yields the number of lines that ran."""
    ran = [0]

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        if not frame.f_code.co_filename.endswith(tuple(modules)):
            return None
        if event == "line":
            ran[0] += 1
            if ran[0] == number:
                raise AtLine(f"{frame.f_code.co_name}:{frame.f_lineno}")
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        yield ran
    finally:
        sys.settrace(before)


def base_job() -> JobRecord:
    cluster = FakeCluster()
    return cluster.job(cluster.submit(gang("Job", "train", 2)))


JOB = base_job()
KEYS = (("pods", "p"), ("jobs", "j"), ("nodes", "n"))
"""Resources, and the first letter of the keys of their objects."""


def some_deltas(draw: random.Random, step: int) -> list[Delta]:
    """Changes of a few jobs, pods and nodes."""
    deltas: list[Delta] = []
    for number in range(draw.randint(1, 6)):
        version, key = 100 * step + number + 1, draw.randint(0, 4)
        match draw.randint(0, 6):
            case 0:
                job = replace(JOB, uid=f"j{key}", name=f"j{key}", version=version)
                deltas.append(Upserted(replace(job, suspended=draw.random() < 0.5)))
            case 1 | 2:
                pod = PodRecord("default", f"p{key}", f"p{key}", version, SHAPE, owner=f"j{key}")
                phase = draw.choice((PodPhase.RUNNING, PodPhase.SUCCEEDED))
                node = draw.choice((None, "n0", "n1"))
                deltas.append(
                    Upserted(
                        replace(
                            pod, owner_kind="Job", node=node, phase=phase, podset="main", attempt=1
                        )
                    )
                )
            case 3:
                name = f"n{draw.randint(0, 1)}"
                node_record = Node(name, {HOSTNAME: name}, SHAPE, unschedulable=draw.random() < 0.3)
                deltas.append(Upserted(NodeRecord(node_record, version)))
            case 4:
                resource, letter = draw.choice(KEYS)
                deltas.append(Deleted(resource, f"{letter}{key}", version))
            case 5:
                resource, name = draw.choice(
                    (("pods", f"p{key}"), ("jobs", f"j{key}"), ("nodes", "n0"))
                )
                deltas.append(Unreadable(resource, name, version, "default", name))
            case _:
                resource, letter = draw.choice(KEYS)
                keys = frozenset(f"{letter}{n}" for n in range(5) if draw.random() < 0.7)
                deltas.append(ListCompleted(resource, keys, version))
    return deltas


def content(mirror: Mirror) -> dict[str, object]:
    owned = {job.uid: sorted(p.uid for p in mirror.pods_of(job)) for job in mirror.jobs.values()}
    return {
        "jobs": mirror.jobs,
        "pods": mirror.pods,
        "nodes": dict(mirror.nodes),
        "fleet": mirror.fleet.nodes,
        "unreadable": mirror.unreadable,
        "owned": owned,
    }


class Objects:
    """The objects that exist, each with its last readable state and, if it is unreadable now, that state."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str], list[Delta]] = {}

    def follow(self, deltas: Sequence[Delta]) -> None:
        for delta in deltas:
            match delta:
                case Upserted():
                    self._known[resource_of(delta), key_of(delta.record)] = [delta]
                case Unreadable():
                    states = self._known.setdefault((delta.resource, delta.key), [])
                    states[:] = [one for one in states if isinstance(one, Upserted)] + [delta]
                case Deleted():
                    self._known.pop((delta.resource, delta.key), None)
                case ListCompleted():
                    for resource, key in list(self._known):
                        if resource == delta.resource and key not in delta.keys:
                            del self._known[resource, key]

    def read(self) -> Mirror:
        """A copy of the cluster that has seen no others."""
        mirror = Mirror({"jobs": "Job"})
        mirror.apply([delta for states in self._known.values() for delta in states])
        return mirror


def resource_of(delta: Upserted) -> str:
    return {JobRecord: "jobs", PodRecord: "pods", NodeRecord: "nodes"}[type(delta.record)]


@pytest.mark.parametrize("seed", range(RUNS))
def test_the_copy_of_the_cluster_is_that_of_its_records(seed: int) -> None:
    draw, objects = random.Random(seed), Objects()
    broken, whole = Mirror({"jobs": "Job"}), Mirror({"jobs": "Job"})
    for step in range(8):
        deltas = some_deltas(draw, step)
        whole.apply(deltas)
        with error_at_line(draw.randint(1, 120), ["queuectl/state/mirror.py"]):
            try:
                broken.apply(deltas)
            except AtLine:  # before the first record was given: the watch lists again
                broken.apply(deltas)
        objects.follow(deltas)
        assert content(broken) == content(whole) == content(objects.read())


@pytest.mark.parametrize("seed", range(RUNS))
def test_sums_are_marked_as_damaged_or_are_those_of_the_pods(seed: int) -> None:
    draw = random.Random(seed)
    mirror, ledger = Mirror({"jobs": "Job"}), Ledger()
    usage = OtherPodUsage(mirror, ledger)
    observer = Observer(mirror, ledger, usage, 30.0)
    for step in range(8):
        mirror.apply(some_deltas(draw, step))
        with error_at_line(draw.randint(1, 60), ["queuectl/state/usage.py"]):
            observer.observe(QueueConfig(), 100.0 + step)
        if observer.damaged:  # the leader derives them again before the next commit
            usage = OtherPodUsage(mirror, ledger)
            usage.refresh(list(mirror.pods))
            observer = Observer(mirror, ledger, usage, 30.0)
        fresh = OtherPodUsage(mirror, ledger)
        fresh.refresh(list(mirror.pods))
        assert usage.other_pods == fresh.other_pods
