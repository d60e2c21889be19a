"""The real Kueue, alongside which queuectl is measured, run as its own manager on a local control plane.

This project does not build it. For a comparison, pass a folder with these files of a build of Kueue:

- ``bin/kueue``, its manager;
- ``files/crds`` and ``files/rbac``, its kinds and the roles of its manager, as its ``config/components/crd/bases`` has them
  and its ``config/components/rbac`` (``role.yaml``, ``manager_secrets_role.yaml``);
- ``files/webhook``, the ``manifests.yaml`` of its ``config/components/webhook``.

Rendered manifests serve as well. A manager as released expects the certificate of its metrics in one folder of the whole
machine, ``/etc/kueue/metrics/certs``.

It runs outside the cluster under the ServiceAccount and the role of its own manifests, with the client limits of its
defaults (QPS 300, burst 500) and, of its integrations, the one for Jobs. Its webhooks are registered, all of them, under their
paths on loopback: so a Job that is created and a Workload that changes cost what they cost in an ordinary installation.
Switched off: leader election; waitForPodsReady, for no pods come; the visibility server, which would listen on every
interface. Where the kinds come from ``bases``, nothing is converted between their versions either, which an ordinary
installation does for each change.
"""

from __future__ import annotations

import base64
import dataclasses
import json
import os
import tempfile
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, cast

import httpx2
import yaml

from queuectl.demo.scenario import Document
from queuectl.localcluster import LocalCluster
from queuectl.localcluster.certificates import Authority
from queuectl.localcluster.client import get_plain, wait_until
from queuectl.localcluster.errors import LocalClusterError
from queuectl.localcluster.keeper import remove_tree
from queuectl.localcluster.layout import free_ports
from queuectl.localcluster.supervisor import KeeperHandle
from tests.bench.kueue.mix import Arrival, Mix

API: Final = "kueue.x-k8s.io/v1beta2"

_SPACE: Final = "kueue-system"
_ACCOUNT: Final = "kueue-controller-manager"
_PROGRAM: Final = "kueue"
GATES: Final = {"DisableWaitForPodsReady": True, "VisibilityOnDemand": False}
"""The feature gates of a manager of HEAD. Before 0.19, waitForPodsReady is off and its gate does not exist."""
FRAMEWORKS: Final = ("batch/job",)
"""The kinds of jobs that the manager queues."""
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


def _documents(folder: Path) -> list[Document]:
    # Its definitions are megabytes, which the loader in Python alone takes many seconds for.
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    texts = [path.read_text() for path in sorted(folder.glob("*.yaml"))]
    if not texts:
        raise LocalClusterError(f"{folder}: no *.yaml is there")
    return [one for text in texts for one in yaml.load_all(text, loader)]


def redirected(document: Any, port: int, bundle: str) -> Any:
    """A manifest in which every webhook of the manager's Service has become the same path on loopback.

    Args:
        document: A webhook configuration, or a definition with or without a conversion; it stays as it is.
        port: Where the manager serves its webhooks.
        bundle: The authority that vouches for it, PEM in base64.
    """
    if isinstance(document, list):
        return [redirected(one, port, bundle) for one in document]
    if not isinstance(document, dict):
        return document
    if "service" in (client := document.get("clientConfig", {})):
        url = f"https://127.0.0.1:{port}{client['service']['path']}"
        document = document | {"clientConfig": {"url": url, "caBundle": bundle}}
    return {name: redirected(value, port, bundle) for name, value in document.items()}


def _install(
    cluster: LocalCluster, definitions: Sequence[Document], roles: Sequence[Document]
) -> None:
    """Its kinds, and its account with its roles."""
    client = cluster.client
    client.apply(
        *definitions,
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": _SPACE}},
        {
            "apiVersion": "v1",
            "kind": "ServiceAccount",
            "metadata": {"name": _ACCOUNT, "namespace": _SPACE},
        },
    )
    for role in roles:
        if role["kind"] == "Role":
            role["metadata"]["namespace"] = _SPACE
        client.apply(role, _binding(role))
    known = {one["spec"]["names"]["plural"] for one in definitions}
    wait_until(lambda: known <= _served(cluster), "Kueue's kinds", _SECONDS)


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

    def __init__(self, home: Path, supervisor: KeeperHandle, health: str) -> None:
        self._home = home
        self._supervisor = supervisor
        self._health = health

    @classmethod
    def start(
        cls,
        cluster: LocalCluster,
        folder: Path,
        gates: Mapping[str, bool] = GATES,
        frameworks: Sequence[str] = FRAMEWORKS,
        *,
        leader_election: bool = False,
    ) -> Kueue:
        """Install and start what a folder holds, wait until it is ready, and register its webhooks.

        ``gates`` and ``frameworks``: of the manager. ``leader_election``: it holds its lease, as an ordinary installation does.

        Raises:
            LocalClusterError: the folder lacks something; the manager ended, or is not ready in time: then the message
                ends with its last words.
        """
        files = folder / "files"
        home = Path(tempfile.mkdtemp(prefix="kueue-"))
        supervisor = KeeperHandle.spawn(home, remove=True)
        try:
            webhook, metrics, health = free_ports(3)
            authority = Authority.create("kueue-authority")
            authority.server("kueue").save(home / "tls.crt", home / "tls.key")
            bundle = base64.b64encode(authority.pair.certificate).decode()
            here = partial(redirected, port=webhook, bundle=bundle)
            _install(cluster, here(_documents(files / "crds")), _documents(files / "rbac"))
            config = home / "config.yaml"
            settings = _configuration(home, webhook, metrics, health, gates, frameworks)
            settings["leaderElection"] = _election(leads=leader_election)
            config.write_text(yaml.safe_dump(settings))
            account = cluster.kubeconfig_for_service_account(_SPACE, _ACCOUNT)
            supervisor.start(
                _PROGRAM,
                [folder / "bin" / "kueue", f"--config={config}", f"--kubeconfig={account}"],
                env={"PATH": os.defpath, "HOME": str(home), "TMPDIR": str(home)},
                cwd=home,
                log=home / "kueue.log",
            )
            kueue = cls(home, supervisor, f"http://127.0.0.1:{health}/readyz")
            kueue._wait_ready()
            cluster.client.apply(*here(_documents(files / "webhook")))
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
            return get_plain(self._health).is_success
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
    """The number of Workloads that Kueue has ever admitted; a Workload that is evicted at its end counts as not admitted."""
    count, more = 0, ""
    while True:
        page = cluster.client.get(f"/apis/{API}/workloads", limit="500", **{"continue": more})
        count += sum("Admitted" in _conditions(one) for one in page["items"])
        if not (more := page["metadata"].get("continue", "")):
            return count


def _conditions(document: Document) -> dict[str, str]:
    """Status by type."""
    return {one["type"]: one["status"] for one in document.get("status", {}).get("conditions", [])}


def _election(*, leads: bool) -> dict[str, Any]:
    if not leads:
        return {"leaderElect": False}
    return {
        "leaderElect": True,
        "resourceName": "c1f6bfd2.kueue.x-k8s.io",
        "resourceNamespace": _SPACE,
        "resourceLock": "leases",
    }


def _configuration(
    home: Path,
    webhook: int,
    metrics: int,
    health: int,
    gates: Mapping[str, bool],
    frameworks: Sequence[str],
) -> dict[str, Any]:
    return {
        "apiVersion": "config.kueue.x-k8s.io/v1beta2",
        "kind": "Configuration",
        "health": {"healthProbeBindAddress": f"127.0.0.1:{health}"},
        "metrics": {"bindAddress": f"127.0.0.1:{metrics}"},
        "webhook": {"host": "127.0.0.1", "port": webhook, "certDir": str(home)},
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
        "integrations": {"frameworks": list(frameworks)},
        "featureGates": dict(gates),
    }
