"""The real Kueue, alongside which queuectl is measured, run as its own manager on a local control plane.

This project does not build it. For a comparison, pass a folder with these files of a build of Kueue:

- ``bin/kueue``, its manager;
- ``files/crds`` and ``files/rbac``, its kinds and the roles of its manager, as its ``config/components/crd/bases`` has them
  and its ``config/components/rbac`` (``role.yaml``, ``manager_secrets_role.yaml``, for leader election also
  ``leader_election_role.yaml``);
- ``files/webhook``, the ``manifests.yaml`` of its ``config/components/webhook``.

Rendered manifests serve as well. A manager as released expects the certificate of its metrics in one folder of the whole
machine, ``/etc/kueue/metrics/certs``.

It runs outside the cluster under the ServiceAccount and the role of its own manifests. Its webhooks are registered, all of them,
under their paths on loopback: so a Job that is created and a Workload that changes cost what they cost in an ordinary
installation. Where the kinds come from ``bases``, nothing is converted between their versions, which an ordinary installation
does for each change.

A caller passes the Configuration of the manager, as an ordinary installation has it in a file. :func:`jobs_alone` is that of its
defaults (QPS 300, burst 500) with these switched off: leader election; all integrations but the one for Jobs; waitForPodsReady, for
no pods come; the visibility server, which would listen on every interface.
"""

from __future__ import annotations

import base64
import dataclasses
import json
import os
import tempfile
import time
from collections.abc import Mapping, Sequence
from functools import cached_property
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

Configuration = Mapping[str, Any]
"""The fields of the Configuration of a manager."""

_SPACE: Final = "kueue-system"
_ACCOUNT: Final = "kueue-controller-manager"
GATES: Final = {"DisableWaitForPodsReady": True, "VisibilityOnDemand": False}
"""The feature gates of a manager of HEAD. Before 0.19, waitForPodsReady is off and its gate does not exist."""
FRAMEWORKS: Final = ("batch/job",)
"""The kinds of jobs that the manager queues."""
OPTIONAL: Final = ("pod", "deployment", "statefulset")
"""Frameworks whose webhooks its chart registers only with them."""
_SECONDS: Final = 120.0
_END_SECONDS: Final = 30.0
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


def of_chart(registration: Document, frameworks: Sequence[str]) -> Document:
    """A webhook configuration without the webhooks that its chart leaves out.

    Its chart registers those for pods, Deployments and StatefulSets only with the framework of the same name
    (``charts/kueue/templates/webhook/manifests.yaml``).
    """
    absent = {f"{when}{kind}.kb.io" for when in "mv" for kind in OPTIONAL if kind not in frameworks}
    kept = [one for one in registration["webhooks"] if one["name"] not in absent]
    return registration | {"webhooks": kept}


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


@dataclasses.dataclass(frozen=True, slots=True)
class Replica:
    """One manager: the name of its program, its folder, and its ports."""

    program: str
    home: Path
    webhook: int
    metrics: int
    health: int

    @property
    def log(self) -> Path:
        return self.home / "kueue.log"


class Kueue:
    """The managers on one control plane; they end with this process, and their folder goes with them."""

    def __init__(
        self,
        cluster: LocalCluster,
        folder: Path,
        configuration: Configuration,
        *,
        as_chart: bool = False,
    ) -> None:
        """Nothing runs yet.

        Args:
            cluster: where they work.
            folder: the build.
            configuration: of each manager, without its addresses and certificates.
            as_chart: register no webhook that its chart leaves out for the frameworks of the configuration.
        """
        self._as_chart = as_chart
        self._cluster = cluster
        self._folder = folder
        self._configuration = configuration
        self._home = Path(tempfile.mkdtemp(prefix="kueue-"))
        self._authority = Authority.create("kueue-authority")
        self._replicas: list[Replica] = []
        self._supervisor = KeeperHandle.spawn(self._home, remove=True)

    @classmethod
    def start(cls, cluster: LocalCluster, folder: Path, configuration: Configuration) -> Kueue:
        """Install and start what a folder holds, wait until it is ready, and register its webhooks.

        Raises:
            LocalClusterError: the folder lacks something; the manager ended, or is not ready in time: then the message
                ends with its last words.
        """
        kueue = cls(cluster, folder, configuration)
        try:
            replica = kueue.add()
            kueue.install(replica)
            kueue.run(replica)
            kueue.wait_ready(replica)
            kueue.register(replica)
        except BaseException:
            kueue.stop()
            raise
        return kueue

    def install(self, replica: Replica) -> None:
        """Create or renew its kinds, its account and its roles. ``replica``: the manager that converts between versions of a kind."""
        files = self._folder / "files"
        definitions = self._here(_documents(files / "crds"), replica)
        _install(self._cluster, definitions, _documents(files / "rbac"))

    def add(self) -> Replica:
        """Choose the ports of one more manager and write its files; it does not run yet."""
        program = f"kueue-{len(self._replicas)}"
        home = self._home / program
        home.mkdir()
        replica = Replica(program, home, *free_ports(3))
        self._authority.server("kueue").save(home / "tls.crt", home / "tls.key")
        written = _outside(self._configuration, replica)
        (home / "config.yaml").write_text(yaml.safe_dump(written))
        self._replicas.append(replica)
        return replica

    def register(self, replica: Replica) -> None:
        """Let the API server call the webhooks of this manager."""
        self._cluster.client.apply(*self._here(self._webhooks(), replica))

    def unregister(self) -> None:
        """Let the API server call none of its webhooks, as when it is not installed."""
        client = self._cluster.client
        for document in self._webhooks():
            client.delete(client.path_of(document), missing_ok=True)

    def _webhooks(self) -> list[Document]:
        documents = _documents(self._folder / "files" / "webhook")
        if self._as_chart:
            return [
                of_chart(one, self._configuration["integrations"]["frameworks"])
                for one in documents
            ]
        return documents

    def _here(self, documents: list[Document], replica: Replica) -> list[Document]:
        """Documents whose webhooks are those of a manager."""
        bundle = base64.b64encode(self._authority.pair.certificate).decode()
        return [redirected(one, replica.webhook, bundle) for one in documents]

    @cached_property
    def _account(self) -> Path:
        """Of all managers, written once: a manager can start again without an API server."""
        return self._cluster.kubeconfig_for_service_account(_SPACE, _ACCOUNT)

    def run(self, replica: Replica) -> None:
        """Start the program of a manager."""
        home = replica.home
        config = home / "config.yaml"
        self._supervisor.start(
            replica.program,
            [self._folder / "bin" / "kueue", f"--config={config}", f"--kubeconfig={self._account}"],
            env={"PATH": os.defpath, "HOME": str(home), "TMPDIR": str(home)},
            cwd=home,
            log=replica.log,
        )

    def wait_ready(self, replica: Replica, seconds: float = _SECONDS) -> None:
        """Wait until a manager is ready, as its readiness probe reports it.

        Raises:
            LocalClusterError: it ended, or is not ready in time; the message ends with its last words.
        """
        deadline = time.monotonic() + seconds
        while not _ready(replica):
            program = self._supervisor.programs()[replica.program]
            if not program.running or time.monotonic() > deadline:
                words = replica.log.read_text(errors="replace").splitlines()
                fate = "is not ready" if program.running else f"ended with {program.returncode}"
                raise LocalClusterError(
                    "\n  ".join([f"kueue {fate}; its last words:", *words[-_LAST_LINES:]])
                )
            time.sleep(0.05)

    def end(self, replica: Replica) -> None:
        """End a manager in order: it gives its lease back."""
        self._supervisor.stop(replica.program, _END_SECONDS)

    def kill(self, replica: Replica) -> None:
        """End a manager by SIGKILL, and wait until it has ended."""
        self._supervisor.kill(replica.program)

    def ended(self, replica: Replica) -> int | None:
        """Exit code of a manager; None while it runs."""
        return self._supervisor.programs()[replica.program].returncode

    def pid_of(self, replica: Replica) -> int:
        """The process id of a manager."""
        return self._supervisor.programs()[replica.program].pid

    @property
    def pid(self) -> int:
        """The process id of the first manager."""
        return self.pid_of(self._replicas[0])

    def stop(self) -> None:
        """End all managers and remove their folder."""
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


def _ready(replica: Replica) -> bool:
    try:
        return get_plain(f"http://127.0.0.1:{replica.health}/readyz").is_success
    except httpx2.HTTPError:
        return False


def jobs_alone(
    gates: Mapping[str, bool] = GATES,
    frameworks: Sequence[str] = FRAMEWORKS,
    *,
    leader_election: bool = False,
) -> Configuration:
    """The limits of the configuration that its manifests install, for some kinds of jobs."""
    return {
        "leaderElection": {"leaderElect": leader_election},
        "clientConnection": {"qps": 300, "burst": 500},
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


def _outside(configuration: Configuration, replica: Replica) -> dict[str, Any]:
    """A configuration with what a manager outside the cluster needs: its addresses, its certificates, the place of its lease."""
    election = {"resourceName": "c1f6bfd2.kueue.x-k8s.io", "resourceNamespace": _SPACE}
    return {
        **configuration,
        "apiVersion": "config.kueue.x-k8s.io/v1beta2",
        "kind": "Configuration",
        "health": {"healthProbeBindAddress": f"127.0.0.1:{replica.health}"},
        "metrics": {"bindAddress": f"127.0.0.1:{replica.metrics}"},
        "webhook": {
            "host": "127.0.0.1",
            "port": replica.webhook,
            "certDir": str(replica.home),
        },
        "internalCertManagement": {"enable": False},
        "leaderElection": election | configuration["leaderElection"],
    }
