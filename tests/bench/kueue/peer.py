"""The real Kueue, beside which queuectl is measured, run as its own manager on a local control plane.

This project does not build it. Whoever compares gives a folder with what a build of Kueue has: its manager in ``bin/kueue``,
its kinds and roles in ``files/crds`` and ``files/rbac``, one file each. A manager as released expects the certificate of its
metrics in one folder of the whole machine, ``/etc/kueue/metrics/certs``.

It runs outside the cluster under the ServiceAccount and the role of its own manifests, with the client limits of its
defaults (QPS 300, burst 500) and, of its integrations, the one for Jobs. Switched off: leader election; waitForPodsReady,
for no pods come; the visibility server, which would listen on every interface; its webhooks, which are not registered,
because the Jobs come suspended and labelled. That spares it work it has in an ordinary installation.
"""

from __future__ import annotations

import dataclasses
import json
import os
import tempfile
import time
from pathlib import Path
from typing import Any, Final, cast

import httpx2
import yaml

from queuectl.demo.manifests import Document
from queuectl.localcluster import LocalCluster
from queuectl.localcluster.certificates import Authority
from queuectl.localcluster.client import wait_until
from queuectl.localcluster.errors import LocalClusterError
from queuectl.localcluster.keeper import remove_tree
from queuectl.localcluster.layout import free_ports
from queuectl.localcluster.supervisor import Supervisor
from tests.bench.kueue.mix import Arrival, Mix

_CRDS: Final = (
    "admissionchecks",
    "clusterqueues",
    "cohorts",
    "localqueues",
    "multikueueclusters",
    "multikueueconfigs",
    "provisioningrequestconfigs",
    "resourceflavors",
    "topologies",
    "workloadpriorityclasses",
    "workloads",
)
API: Final = "kueue.x-k8s.io/v1beta2"

_SPACE: Final = "kueue-system"
_ACCOUNT: Final = "kueue-controller-manager"
_PROGRAM: Final = "kueue"
_SECONDS: Final = 120.0
_LAST_LINES: Final = 12


def translated(mix: Mix) -> Mix:
    """The same mix in Kueue's names; the objects have the same fields."""
    config = tuple(one | {"apiVersion": API} for one in mix.config)
    return dataclasses.replace(
        mix, config=config, arrivals=tuple(_translated(one) for one in mix.arrivals)
    )


def _translated(arrival: Arrival) -> Arrival:
    text = json.dumps(arrival.document).replace("queuectl.dev/", "kueue.x-k8s.io/")
    return dataclasses.replace(arrival, document=cast(Document, json.loads(text)))


def install(cluster: LocalCluster, folder: Path) -> None:
    """Its kinds, and its account with its roles."""
    client = cluster.client
    definitions = [_document(folder / "files" / "crds" / f"{name}.yaml") for name in _CRDS]
    client.apply(
        *definitions,
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": _SPACE}},
        {
            "apiVersion": "v1",
            "kind": "ServiceAccount",
            "metadata": {"name": _ACCOUNT, "namespace": _SPACE},
        },
    )
    for name in ("role", "manager_secrets_role"):
        role = _document(folder / "files" / "rbac" / f"{name}.yaml")
        if role["kind"] == "Role":
            role["metadata"]["namespace"] = _SPACE
        client.apply(role, _binding(role))
    known = {one["spec"]["names"]["plural"] for one in definitions}
    wait_until(lambda: known <= _served(cluster), "Kueue's kinds", _SECONDS)


def _document(path: Path) -> Document:
    # Its definitions are megabytes, which the loader in Python alone takes many seconds for.
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    return cast(Document, yaml.load(path.read_text(), loader))


def _binding(role: Document) -> Document:
    metadata = role["metadata"]
    return {
        "apiVersion": role["apiVersion"],
        "kind": f"{role['kind']}Binding",
        "metadata": metadata,
        "roleRef": {
            "apiGroup": "rbac.authorization.k8s.io",
            "kind": role["kind"],
            "name": metadata["name"],
        },
        "subjects": [{"kind": "ServiceAccount", "name": _ACCOUNT, "namespace": _SPACE}],
    }


def _served(cluster: LocalCluster) -> set[str]:
    return {one["name"] for one in cluster.client.get(f"/apis/{API}")["resources"]}


class Kueue:
    """A running manager; it ends with this process, and its folder goes with it."""

    def __init__(self, home: Path, supervisor: Supervisor, health: str) -> None:
        self._home = home
        self._supervisor = supervisor
        self._health = health

    @classmethod
    def start(cls, cluster: LocalCluster, program: Path) -> Kueue:
        """Start it where it was installed, and wait until it is ready.

        Raises:
            LocalClusterError: it ended, or is not ready in time; the message ends with its last words.
        """
        home = Path(tempfile.mkdtemp(prefix="kueue-"))
        supervisor = Supervisor.spawn(home, remove=True)
        try:
            webhook, metrics, health = free_ports(3)
            Authority.create("kueue-authority").server("kueue").save(
                home / "tls.crt", home / "tls.key"
            )
            config = home / "config.yaml"
            config.write_text(yaml.safe_dump(_configuration(home, webhook, metrics, health)))
            account = cluster.kubeconfig_for_service_account(_SPACE, _ACCOUNT)
            supervisor.start(
                _PROGRAM,
                [program, f"--config={config}", f"--kubeconfig={account}"],
                env={"PATH": os.defpath, "HOME": str(home), "TMPDIR": str(home)},
                cwd=home,
                log=home / "kueue.log",
            )
            kueue = cls(home, supervisor, f"http://127.0.0.1:{health}/readyz")
            kueue._wait_ready()
        except BaseException:
            supervisor.shutdown()
            remove_tree(home)
            raise
        return kueue

    def _wait_ready(self) -> None:
        deadline = time.monotonic() + _SECONDS
        while not self._ready():
            program = self._supervisor.programs()[_PROGRAM]
            if not program.running or time.monotonic() > deadline:
                words = (self._home / "kueue.log").read_text(errors="replace").splitlines()
                fate = "is not ready" if program.running else f"ended with {program.returncode}"
                raise LocalClusterError(
                    "\n  ".join([f"kueue {fate}; its last words:", *words[-_LAST_LINES:]])
                )
            time.sleep(0.05)

    def _ready(self) -> bool:
        try:
            return httpx2.get(self._health, timeout=5.0, trust_env=False).is_success
        except httpx2.HTTPError:
            return False

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._supervisor.programs()[_PROGRAM].pid

    def stop(self) -> None:
        """End it and remove its folder."""
        self._supervisor.shutdown()
        remove_tree(self._home)


def configure(cluster: LocalCluster, mix: Mix) -> None:
    """Apply a translated mix's queues, and wait until all are active."""
    cluster.client.each(cluster.client.apply, mix.config)

    def active() -> bool:
        queues = cluster.client.get(f"/apis/{API}/clusterqueues")["items"]
        ready = [one for one in queues if _conditions(one).get("Active") == "True"]
        return len(ready) == len(mix.queues)

    wait_until(active, "Kueue's ClusterQueues to become active", _SECONDS)


def admitted(cluster: LocalCluster) -> int:
    """How many Workloads Kueue has ever admitted; one evicted at its very end says that it is not any more."""
    count, more = 0, ""
    while True:
        page = cluster.client.get(f"/apis/{API}/workloads", limit="500", **{"continue": more})
        count += sum("Admitted" in _conditions(one) for one in page["items"])
        if not (more := page["metadata"].get("continue", "")):
            return count


def _conditions(document: Document) -> dict[str, str]:
    """Status by type."""
    return {one["type"]: one["status"] for one in document.get("status", {}).get("conditions", [])}


def _configuration(home: Path, webhook: int, metrics: int, health: int) -> dict[str, Any]:
    return {
        "apiVersion": "config.kueue.x-k8s.io/v1beta2",
        "kind": "Configuration",
        "health": {"healthProbeBindAddress": f"127.0.0.1:{health}"},
        "metrics": {"bindAddress": f"127.0.0.1:{metrics}"},
        "webhook": {"host": "127.0.0.1", "port": webhook, "certDir": str(home)},
        "leaderElection": {"leaderElect": False},
        "internalCertManagement": {"enable": False},
        "clientConnection": {"qps": 300, "burst": 500},
        # As in the configuration that its manifests install.
        "controller": {
            "groupKindConcurrency": {
                "Job.batch": 5,
                "Pod": 5,
                "Workload.kueue.x-k8s.io": 10,
                "LocalQueue.kueue.x-k8s.io": 5,
                "Cohort.kueue.x-k8s.io": 1,
                "ClusterQueue.kueue.x-k8s.io": 5,
                "ResourceFlavor.kueue.x-k8s.io": 1,
            }
        },
        "integrations": {"frameworks": ["batch/job"]},
        "featureGates": {"DisableWaitForPodsReady": True, "VisibilityOnDemand": False},
    }
