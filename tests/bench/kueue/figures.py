"""The results and the resource use of one run of a mix, measured in the same way for each controller."""

from __future__ import annotations

import re
import statistics
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Self

from queuectl.localcluster import LocalCluster
from tests.bench.kueue.mix import Mix
from tests.bench.kueue.runner import Life, Runner
from tests.bench.stage import Cost, cpu_of

SERVERS: Final = ("kube-apiserver", "etcd")
_WRITES: Final = frozenset({"POST", "PUT", "PATCH", "APPLY", "DELETE", "DELETECOLLECTION"})
_REQUESTS: Final = re.compile(r"^apiserver_request_total\{(.*)\} ([\d.e+]+)$", re.MULTILINE)
_LABEL: Final = re.compile(r'(\w+)="([^"]*)"')


@dataclass(frozen=True)
class Reading:
    """The work of the API server and etcd up to now: CPU seconds of each, writes answered by resource."""

    cpu: Mapping[str, float]
    writes: Counter[str]

    @classmethod
    def of(cls, cluster: LocalCluster) -> Self:
        pids = cluster.pids()
        used = {name: cpu_of(pids[name]) for name in SERVERS}
        return cls(used, writes_in(cluster.client.text("/metrics")))


def writes_in(metrics: str) -> Counter[str]:
    """Writes by `resource` or `resource/subresource`, refused ones included, from the API server's metrics."""
    found: Counter[str] = Counter()
    for labels, count in _REQUESTS.findall(metrics):
        label = dict(_LABEL.findall(labels))
        if label["verb"] in _WRITES:
            path = "/".join(filter(None, (label["resource"], label["subresource"])))
            found[path] += round(float(count))
    return found


@dataclass(frozen=True)
class Lag:
    """How late something was, in seconds."""

    mean: float
    worst: float

    @classmethod
    def of(cls, seconds: Sequence[float]) -> Self:
        return cls(statistics.fmean(seconds), max(seconds))


@dataclass(frozen=True)
class Figures:
    """One run.

    Attributes:
        wall: seconds from the first creation to the last end.
        usage: percent of the nominal quota of all queues that was held over that time.
        waits: mean seconds from the answered creation to the first admission, by class.
        delays: the same from the moment the Job was to be created: a server too busy to create Jobs hides nothing.
        cost: of the controller, from its start to the end.
        cpu: CPU seconds of API server, etcd and runner while Jobs ran.
        writes: to the API server by resource, the runner's excepted.
        played: the runner's writes by kind.
        cut_off: times the API server ended the runner's watch, which it does to a watcher that is too slow for it.
        creations: from the moment a Job is to be created to the answer.
        sights: from an answered creation to its watch event.
        ends: from the end of a Job's run time to the request that ends it.
        answers: from there to the answer.
    """

    jobs: int
    wall: float
    usage: float
    waits: Mapping[str, float]
    delays: Mapping[str, float]
    cost: Cost
    cpu: Mapping[str, float]
    writes: Mapping[str, int]
    played: Mapping[str, int]
    cut_off: int
    evictions: int
    creations: Lag
    sights: Lag
    ends: Lag
    answers: Lag

    @property
    def all_writes(self) -> int:
        """The runner's included."""
        return sum(self.writes.values()) + sum(self.played.values())

    @property
    def events(self) -> int:
        """Writes of Events, which inform users and change nothing."""
        return sum(n for resource, n in self.writes.items() if resource.startswith("events"))


def figures(
    mix: Mix, runner: Runner, wall: float, cost: Cost, before: Reading, after: Reading, own: float
) -> Figures:
    """Of a run that has ended; ``own`` is the CPU time of the runner."""
    lives = list(runner.lives.values())
    writes = after.writes - before.writes
    writes["jobs"] -= runner.writes["create"]
    writes["jobs/status"] -= runner.writes["finish"] + runner.writes.get("suspend", 0)
    used = {name: after.cpu[name] - before.cpu[name] for name in SERVERS}
    return Figures(
        jobs=len(lives),
        wall=wall,
        usage=_usage(mix, lives, wall),
        waits=_by_class(lives, lambda life: max(0.0, life.admissions[0] - life.created)),
        delays=_by_class(lives, lambda life: life.admissions[0] - life.arrival.at),
        cost=cost,
        cpu=used | {"runner": own},
        writes={resource: n for resource, n in sorted(writes.items()) if n},
        played=runner.writes,
        cut_off=runner.cut_off,
        evictions=sum(life.evictions for life in lives),
        creations=Lag.of([life.created - life.arrival.at for life in lives]),
        sights=Lag.of([max(0.0, life.seen - life.created) for life in lives]),
        ends=Lag.of([(life.ended or wall) - life.due for life in lives]),
        answers=Lag.of([(life.finished or wall) - (life.ended or wall) for life in lives]),
    )


def _by_class(lives: Sequence[Life], seconds: Callable[[Life], float]) -> dict[str, float]:
    found: dict[str, list[float]] = defaultdict(list)
    for life in lives:
        found[life.arrival.klass].append(seconds(life))
    return {name: statistics.fmean(values) for name, values in found.items()}


def _usage(mix: Mix, lives: Sequence[Life], wall: float) -> float:
    held = sum(life.held * life.arrival.cpu for life in lives)
    return 100 * held / (wall * sum(queue.nominal for queue in mix.queues))
