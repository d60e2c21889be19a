"""One run: random pools, random gangs in waves, and the reports of kube-scheduler about their pods."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final

from queuectl.demo import scenario as m
from queuectl.demo.scenario import PodSetManifest
from queuectl.domain.reasons import NEVER_FITS, Code
from queuectl.localcluster.client import Document
from queuectl.localcluster.nodes import API_VERSION, SLICES
from tests.allocator.fleet import RESOURCES, classes, pools
from tests.allocator.gangs import draw
from tests.system.device_cluster import DeviceWorkspace

WAVE: Final = 25
_SECONDS: Final = 240.0
_DONE: Final = ("Finished", "Pending", "Deactivated")
_LARGEST_GANG: Final = 5


@dataclass
class Result:
    """The outcome of a run.

    Attributes:
        gangs, pods: numbers that were submitted.
        started: gangs of each kind of claim that ran to their end.
        refused: gangs by reason code that no node can take.
        unschedulable: pods that kube-scheduler reported as unschedulable, with its message.
        evicted: gangs that needed a second attempt, with the reason of the eviction.
    """

    gangs: int = 0
    pods: int = 0
    started: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    unschedulable: list[str] = field(default_factory=list)
    evicted: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return not self.unschedulable and not self.evicted and bool(self.started)

    def lines(self) -> Iterator[str]:
        yield f"{self.gangs} gangs, {self.pods} pods, {sum(self.started.values())} gangs started"
        yield "started: " + json.dumps(dict(sorted(self.started.items())))
        yield "refused: " + json.dumps(dict(sorted(self.refused.items())))
        yield f"unschedulable pods: {len(self.unschedulable)}, evicted gangs: {len(self.evicted)}"
        yield from self.unschedulable[:20]
        yield from self.evicted[:20]


@contextmanager
def published(workspace: DeviceWorkspace, random: Random) -> Iterator[None]:
    """Random pools instead of those of the nodes."""
    client, driver = workspace.base.client, workspace.driver
    before = [_bare("ResourceSlice", one) for one in client.get(SLICES)["items"]]
    nodes = sorted(one["spec"]["nodeName"] for one in before)
    driver.withdraw(before)
    slices = [one for part in pools(nodes, random) for one in part]
    client.apply(*classes())
    driver.publish(slices)
    try:
        yield
    finally:
        driver.withdraw(slices)
        for one in classes()[1:]:
            client.delete(f"/apis/{API_VERSION}/deviceclasses/{one['metadata']['name']}")
        driver.publish(before)


def _bare(kind: str, document: Document) -> Document:
    """A listed object as it was created."""
    kept = ("name", "ownerReferences")
    metadata = {key: value for key, value in document["metadata"].items() if key in kept}
    head = {"apiVersion": API_VERSION, "kind": kind}
    return {**head, "metadata": metadata, "spec": document["spec"]}


def run(
    workspace: DeviceWorkspace, seed: int, gangs: int, say: Callable[[str], None] = print
) -> Result:
    """Submit so many gangs, wave by wave, and wait until each has ended or can never start."""
    random, result = Random(seed), Result()
    name = workspace.base.namespace
    workspace.base.rest.apply([m.cluster_queue(name, "gpu", dict.fromkeys(RESOURCES, "1M"))])
    with published(workspace, random):
        for first in range(0, gangs, WAVE):
            _wave(workspace, range(first, min(first + WAVE, gangs)), random, result)
            say(next(result.lines()))
    return result


def _wave(workspace: DeviceWorkspace, numbers: range, random: Random, result: Result) -> None:
    kinds: dict[str, str] = {}
    for number in numbers:
        name, pods = f"g{number}", random.randint(1, _LARGEST_GANG)
        kind, claim = draw(random)
        workspace.templates(**{name: claim})
        kinds[name] = kind
        seconds = random.choice((0.2, 1.0, 2.0))
        workspace.job(name, PodSetManifest(pods, cpu="100m"), name, seconds=seconds)
        result.gangs += 1
        result.pods += pods
    base = workspace.base
    base.until(lambda: _settled(base.workloads(), kinds), "the wave ends", _SECONDS)
    for name, one in base.workloads().items():
        if name not in kinds:
            continue
        if one["state"] == "Finished":
            result.started[kinds[name]] += 1
        else:
            result.refused[f"{one['reason']['code']}: {kinds[name]}"] += 1
        if one.get("evictions") or one.get("attempt", 0) > 1:
            result.evicted.append(f"{name} ({kinds[name]}): {one['reason']}")
    result.unschedulable += [
        f"{one} ({kinds.get(one.split('-')[0])})" for one in workspace.refused()
    ]
    _clear(workspace)


def _settled(workloads: dict[str, dict[str, Any]], kinds: dict[str, str]) -> bool:
    """Whether each gang has ended, or waits although no gang runs."""
    found = [workloads.get(name, {}) for name in kinds]
    if not all(one.get("state") in _DONE for one in found):
        return False
    return all(one["state"] == "Finished" or _never(one) for one in found)


def _never(workload: dict[str, Any]) -> bool:
    return workload.get("reason", {}).get("code") in NEVER_FITS | {Code.UNSUPPORTED}


def _clear(workspace: DeviceWorkspace) -> None:
    base = workspace.base
    base.clear()
    path = f"/apis/events.k8s.io/v1/namespaces/{base.namespace}/events"
    base.client.delete(path)
