"""Kueue as a system under test, in two configurations: `kueue-default.yaml` and `kueue-tuned.yaml`, which say what they are and why.

Kueue is built outside this project; `SCALE_KUEUE` names the folder of the build, which :mod:`tests.bench.kueue.peer` describes, and which
has here a file `version` with its commit and date. It gets the quota tree, the topology, the priority classes and the gangs of queuectl in
its own names. It stores everything in objects, so the snapshot of etcd is all of it.

The API server calls the webhooks of one manager. With a standby, these are those of the standby: it survives the leader, as a Service would
forget the dead one, and no request fails in between.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast

import yaml

from queuectl.demo.scenario import Document
from queuectl.localcluster import LocalCluster
from queuectl.localcluster.client import Client, wait_until
from queuectl.localcluster.errors import LocalClusterError
from queuectl.objects import keys
from tests.bench.kueue import peer
from tests.bench.scale.fleet import Fleet
from tests.bench.scale.gangs import Gang, queued_job
from tests.bench.scale.kubelet import Kubelet
from tests.bench.scale.processes import Usage

KUEUES: Final = ("kueue-default", "kueue-tuned")
FOLDER: Final = "SCALE_KUEUE"
PREFIX: Final = "kueue.x-k8s.io/"
_LEASE: Final = (
    "/apis/coordination.k8s.io/v1/namespaces/kueue-system/leases/c1f6bfd2.kueue.x-k8s.io"
)
_FILES: Final = Path(__file__).parent
_READY_SECONDS: Final = 600.0
_CONFLICT: Final = "the object has been modified"
"""Part of the error of an outdated write, which Kueue tries again: ordinary, and many."""
_REMARKS: Final = 3
_LEADER: Final = "kueue"
"""The first manager in figures."""

UNDECIDED: Final = ("PendingEvaluation",)
"""Reasons of a Workload that has not been tried yet."""
NOT_OFFERED: Final[Mapping[str, str]] = {}
"""Rows that its documentation does not claim, by letter, with the page."""


def translated(document: Any) -> Any:
    """A document with Kueue's labels and annotations, where it has those of queuectl. Other keys, such as those of nodes, stay."""
    if isinstance(document, list):
        return [translated(one) for one in document]
    if not isinstance(document, dict):
        return document
    return {
        PREFIX + key.removeprefix(keys.PREFIX) if key.startswith(keys.PREFIX) else key: translated(
            one
        )
        for key, one in document.items()
    }


def configured(document: Document) -> Document:
    """A configuration document of queuectl as an object of Kueue, which has the same fields."""
    return cast(Document, translated(document) | {"apiVersion": peer.API})


def errors_in(lines: Sequence[str]) -> list[str]:
    """The most frequent errors in the log of a manager, with their numbers; not the conflicts of writes."""
    errors: Counter[str] = Counter()
    for line in lines:
        if '"error":' not in line or _CONFLICT in line:
            continue
        try:
            entry = json.loads(line)
        except ValueError:  # the last words of a panic
            continue
        errors[f"{entry.get('msg')}: {str(entry.get('error'))[:160]}"] += 1
    return [f"log of Kueue: {number} × {text}" for text, number in errors.most_common(_REMARKS)]


@dataclass(frozen=True, slots=True)
class Manager:
    """A manager of a peer, which can be started again."""

    managers: peer.Kueue
    replica: peer.Replica

    @property
    def pid(self) -> int:
        """Of its newest process."""
        return self.managers.pid_of(self.replica)

    @property
    def ended(self) -> int | None:
        """Exit code of its newest process."""
        return self.managers.ended(self.replica)

    @property
    def log(self) -> Path:
        """Of all its processes."""
        return self.replica.log

    def restart(self) -> None:
        """Start it again after its end."""
        self.managers.run(self.replica)


class Kueue:
    """Kueue with one of the configurations."""

    fill_name = "kueue"
    lease: tuple[str, str] | None = ("kueue-system", "c1f6bfd2.kueue.x-k8s.io")

    def __init__(self, name: str) -> None:
        """``name``: of the system, and of the file with its configuration."""
        self.name = name
        self._configuration: dict[str, Any] = yaml.safe_load((_FILES / f"{name}.yaml").read_text())
        self._cluster: LocalCluster | None = None
        self._peer: peer.Kueue | None = None
        self._replicas: list[peer.Replica] = []
        self._kubelet = Kubelet()

    def not_offered(self, row: str) -> str | None:
        """From its documentation."""
        return NOT_OFFERED.get(row)

    def version(self) -> str:
        """Its commit and date."""
        return f"Kueue {(self._folder / 'version').read_text().strip()}"

    def settings(self) -> Mapping[str, str]:
        """Its limits; the file has all."""
        limits = self._configuration["clientConnection"]
        each = self._configuration["controller"]["groupKindConcurrency"]
        return {
            "configuration": f"tests/bench/scale/{self.name}.yaml",
            "client limits": "none"
            if limits["qps"] < 0
            else f"qps {limits['qps']}, burst {limits['burst']}",
            "reconciled at a time": ", ".join(f"{kind} {number}" for kind, number in each.items()),
        }

    @property
    def _folder(self) -> Path:
        try:
            return Path(os.environ[FOLDER])
        except KeyError:
            raise LocalClusterError(f"{FOLDER} must name the folder of a build of Kueue") from None

    @property
    def _managers(self) -> peer.Kueue:
        assert self._peer is not None
        return self._peer

    def install(self, cluster: LocalCluster) -> None:
        """Its kinds, its account and its roles."""
        self._on(cluster).install(self._replicas[0])

    def _on(self, cluster: LocalCluster) -> peer.Kueue:
        """The managers of a cluster, of which the first has its files and does not run yet."""
        if self._peer is None:
            self._cluster = cluster
            self._peer = peer.Kueue(cluster, self._folder, self._configuration, as_chart=True)
            self._replicas.append(self._peer.add())
        return self._peer

    def start(self, cluster: LocalCluster, saved: Path | None = None) -> None:
        """Start one manager, and wait until it leads."""
        self._on(cluster).register(self._replicas[0])
        self.start_leader()

    def configure(self, fleet: Fleet) -> None:
        """Create the objects, and wait until all ClusterQueues are active."""
        client = self._client
        client.each(client.apply, map(configured, fleet.configuration()))
        wait_until(lambda: self._active() == len(fleet.teams()), "active ClusterQueues", 120.0)

    def _active(self) -> int:
        queues = self._client.get(f"/apis/{peer.API}/clusterqueues")["items"]
        return sum(_condition(one, "Active").get("status") == "True" for one in queues)

    def edit(self, document: Document) -> None:
        """Apply the changed object."""
        self._client.apply(configured(document))

    def job(self, gang: Gang) -> Document:
        """With the labels of Kueue."""
        return cast(Document, translated(queued_job(gang)))

    def refusal(self, gang: Gang) -> str | None:
        """From the condition QuotaReserved of the Workload of the Job."""
        path = f"/apis/{peer.API}/namespaces/{gang.team}/workloads"
        for workload in self._client.get(path)["items"]:
            owners = workload["metadata"].get("ownerReferences", ())
            if any(owner["name"] == gang.name for owner in owners):
                reserved = _condition(workload, "QuotaReserved")
                if reserved.get("status") == "False" and reserved["reason"] not in UNDECIDED:
                    return f"{reserved['reason']}: {reserved['message']}"
        return None

    def problems(self) -> list[str]:
        """None: a manager that has ended starts again, as on a cluster."""
        return []

    def remarks(self) -> list[str]:
        """Managers that have ended by themselves, and the most frequent errors in their logs."""
        logs = (replica.log for replica in self._replicas)
        lines = (log.read_text(errors="replace").splitlines() for log in logs if log.exists())
        return [*self._kubelet.remarks(), *(error for one in lines for error in errors_in(one))]

    def usage(self) -> Usage:
        """Of its managers."""
        return self._kubelet.usage()

    def start_leader(self) -> None:
        """Start the program of the first manager, and wait until a manager leads."""
        managers, leader = self._managers, self._replicas[0]
        managers.run(leader)
        managers.wait_ready(leader, _READY_SECONDS)
        self._kubelet.keep(_LEADER, Manager(managers, leader))
        wait_until(lambda: bool(self._holder()), "a leader of Kueue", _READY_SECONDS)

    def stop_leader(self) -> None:
        """End the first manager in order."""
        self._kubelet.release(_LEADER)
        self._managers.end(self._replicas[0])

    def add_standby(self) -> None:
        """A second manager, which then serves the webhooks."""
        standby = self._managers.add()
        self._replicas.append(standby)
        self._managers.run(standby)
        self._managers.wait_ready(standby, _READY_SECONDS)
        self._managers.register(standby)
        self._kubelet.keep("kueue standby", Manager(self._managers, standby))

    def kill_leader(self) -> None:
        """The first manager."""
        self._kubelet.release(_LEADER)
        self._managers.kill(self._replicas[0])

    def _holder(self) -> str:
        return str(self._client.get(_LEASE)["spec"].get("holderIdentity") or "")

    @property
    def _client(self) -> Client:
        assert self._cluster is not None
        return self._cluster.client

    def halt(self) -> None:
        """End the managers. Nothing calls them any more, and a manager that starts on the snapshot waits for no lease."""
        self._kubelet.close()
        for replica in self._replicas:
            self._managers.end(replica)
        self._managers.unregister()
        self._client.delete(_LEASE, missing_ok=True)

    def save(self, folder: Path) -> None:
        """Nothing: etcd has all."""

    def stop(self) -> None:
        """The managers and their files."""
        self._kubelet.close()
        if self._peer is not None:
            self._peer.stop()
            self._peer = None


def _condition(document: Document, kind: str) -> dict[str, str]:
    conditions = document.get("status", {}).get("conditions", ())
    return next((one for one in conditions if one["type"] == kind), {})
