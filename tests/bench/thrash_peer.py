"""Kueue on the load of :mod:`tests.bench.thrash`: its real manager on an API server and etcd, as in :mod:`tests.bench.bench_kueue`.

The Jobs have no pods. The runner ends each after its run time and the seconds of a start, and confirms an eviction at once, so
Kueue waits for no pod. Lost work is the time from each start to its eviction, without the seconds of the start.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from queuectl.demo.scenario import Document
from tests.bench import thrash
from tests.bench.bench_kueue import with_kueue
from tests.bench.kueue import peer
from tests.bench.kueue.mix import Arrival, Mix, Queue
from tests.bench.kueue.runner import Life, Runner
from tests.bench.stage import wait_until_at_rest
from tests.bench.thrash import Fate, Figures, Gang, figures

_SECONDS: Final = 3600.0
_LABEL: Final = "bench/gpus"  # Kueue requires a node label in a flavor with a topology
_READY: Final = {"type": "Ready", "status": "True", "reason": "KubeletReady"}


def play(seed: int, queues: Sequence[Document], folder: Path, starts: float) -> Figures:
    """One seed on Kueue.

    Args:
        seed: of the load.
        queues: its configuration, in queuectl's names.
        folder: a build of Kueue (:mod:`tests.bench.kueue.peer`).
        starts: seconds that each start takes.
    """
    gangs = list(thrash.gangs(seed))
    mix = mix_of(gangs, queues, starts)
    with with_kueue(folder, mix) as (cluster, _):
        wait_until_at_rest(cluster)
        runner = Runner(mix, cluster.server, cluster.tls(), lambda _: None)
        runner.run(_SECONDS)
    return figures(_fates(gangs, runner, starts))


def mix_of(gangs: Sequence[Gang], queues: Sequence[Document], starts: float) -> Mix:
    """The load in Kueue's names; the labels of the nodes keep theirs."""
    mix = Mix(
        "thrash",
        tuple(Queue(name, thrash.GPUS / len(thrash.QUEUES)) for name in thrash.QUEUES),
        tuple(map(_labeled, queues)),
        tuple(map(_ready, thrash.NODES.documents())),
        tuple(
            Arrival(g.at, g.name, g.queue, "small", g.runtime + starts, 0, g.document)
            for g in gangs
        ),
    )
    translated = peer.translated(mix)
    return dataclasses.replace(translated, arrivals=tuple(map(_with_levels, translated.arrivals)))


def _labeled(document: Document) -> Document:
    if document["kind"] != "ResourceFlavor":
        return document
    return document | {"spec": document["spec"] | {"nodeLabels": {_LABEL: "yes"}}}


def _ready(node: Document) -> Document:
    metadata, status = node["metadata"], node["status"]
    labels = metadata.get("labels", {}) | {_LABEL: "yes"}
    return node | {
        "metadata": metadata | {"labels": labels},
        "status": status | {"conditions": [_READY]},
    }


def _with_levels(arrival: Arrival) -> Arrival:
    text = json.dumps(arrival.document)
    text = text.replace("topology.kueue.x-k8s.io/", "topology.queuectl.dev/")
    return dataclasses.replace(arrival, document=json.loads(text))


def _fates(gangs: Sequence[Gang], runner: Runner, starts: float) -> Iterator[Fate]:
    for gang in gangs:
        life = runner.lives[gang.queue, gang.name]
        restarts = len(life.admissions) - 1
        lost = max(0.0, _held_in_vain(life) - restarts * starts) * gang.pods * gang.gpus
        assert life.finished is not None
        yield Fate(gang, life.admissions[0] + starts, life.finished, lost, restarts)


def _held_in_vain(life: Life) -> float:
    """Seconds for which it held quota before its last start."""
    assert life.finished is not None
    return life.held - (life.finished - life.admissions[-1])
