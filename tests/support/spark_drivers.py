"""Simulated containers of the drivers of SparkApplications: Spark itself, as a process of this machine.

KWOK runs no program. For each driver that runs, this module starts Spark with the properties, the pod template and a token of the
driver, as its container would have them. The program of the application is a Spark Connect server, which runs until it is stopped. Spark
creates the executors, and deletes them when the driver ends. The executors run no program. As the program of an executor does, they fail
after their driver ends: a driver that is ended early leaves them, and they have the application as their owner, which still exists.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread
from typing import Final

from queuectl.demo.scenario import FAIL_SECONDS, Document
from queuectl.localcluster import ApiServerError, LocalCluster, operators
from queuectl.localcluster.errors import UnreachableError

_PODS: Final = "spark-role in (driver,executor)"
_APPLICATION: Final = "spark-app-selector"
"""The label with the id of one run of an application."""
_PERIOD_SECONDS: Final = 0.2
_STOP_SECONDS: Final = 30.0
_PROGRAM: Final = "org.apache.spark.sql.connect.service.SparkConnectServer"
_TOKEN_SECONDS: Final = 3600


@contextmanager
def simulated_drivers(cluster: LocalCluster) -> Iterator[None]:
    """Run the containers of all drivers of the cluster in the block."""
    drivers = _Drivers(cluster)
    thread = Thread(target=drivers.follow, name="spark-drivers", daemon=True)
    thread.start()
    try:
        yield
    finally:
        drivers.ended.set()
        thread.join()


class _Drivers:
    def __init__(self, cluster: LocalCluster) -> None:
        self._cluster = cluster
        self._running: dict[str, str] = {}  # the program by the uid of the pod
        self.ended = Event()

    def follow(self) -> None:
        while not self.ended.wait(_PERIOD_SECONDS):
            try:
                self._turn()
            except (ApiServerError, UnreachableError):
                continue  # the API server is restarted, or a namespace ends
        for uid in list(self._running):
            self._cluster.supervisor.kill(self._running.pop(uid))

    def _turn(self) -> None:
        pods = self._cluster.client.get("/api/v1/pods", labelSelector=_PODS)["items"]
        pods = [pod for pod in pods if pod["status"].get("phase") == "Running"]
        drivers = [pod for pod in pods if _labels(pod)["spark-role"] == "driver"]
        alive = {
            pod["metadata"]["uid"]: pod
            for pod in drivers
            if "deletionTimestamp" not in pod["metadata"]
        }
        for uid in [uid for uid in self._running if uid not in alive]:
            self._cluster.supervisor.signal(self._running.pop(uid), signal.SIGTERM)
        for uid, pod in alive.items():
            if uid not in self._running:
                self._running[uid] = self._start(pod)
        served = {_labels(pod).get(_APPLICATION) for pod in drivers}
        for pod in pods:
            if _labels(pod).get(_APPLICATION) not in served:
                self._fail(pod)

    def _fail(self, pod: Document) -> None:
        path = f"/api/v1/namespaces/{pod['metadata']['namespace']}/pods/{pod['metadata']['name']}"
        self._cluster.client.patch(path, {"metadata": {"annotations": {FAIL_SECONDS: "0"}}})

    def _start(self, pod: Document) -> str:
        meta = pod["metadata"]
        name = f"spark-driver-{meta['uid']}"
        log = self._cluster.log(name)
        folder = log.parent.parent / "tmp" / name
        (folder / "conf").mkdir(parents=True)
        files = _mounted(self._cluster, pod)
        (folder / "spark.properties").write_text(files["spark.properties"])
        (folder / "executor.yaml").write_text(files["podspec-configmap-key"])
        (folder / "token").write_text(token_of_pod(self._cluster, pod))
        (folder / "ca.crt").write_bytes(self._cluster.authority)
        installed = operators.ensure()
        argv: list[str | Path] = [
            installed.home / "bin" / "spark-submit",
            "--deploy-mode=client",
            "--properties-file",
            folder / "spark.properties",
            "--class",
            _PROGRAM,
            *_overrides(folder, self._cluster.server),
            "spark-internal",
        ]
        environment = {
            **installed.environment(folder),
            "PATH": "/usr/bin:/bin",
            "HOME": str(folder),
            "TMPDIR": str(folder),
            "SPARK_CONF_DIR": str(folder / "conf"),
            "SPARK_LOCAL_IP": "127.0.0.1",
        }
        self._cluster.supervisor.start(name, argv, env=environment, cwd=folder, log=log)
        return name


def _labels(pod: Document) -> dict[str, str]:
    labels: dict[str, str] = pod["metadata"]["labels"]
    return labels


def _mounted(cluster: LocalCluster, pod: Document) -> dict[str, str]:
    """The files of the ConfigMaps of a pod. Spark creates them after the pod."""
    namespace = pod["metadata"]["namespace"]
    names = [one["configMap"]["name"] for one in pod["spec"]["volumes"] if "configMap" in one]
    found: dict[str, str] = {}
    deadline = time.monotonic() + _STOP_SECONDS
    for name in names:
        path = f"/api/v1/namespaces/{namespace}/configmaps/{name}"
        while not cluster.client.exists(path) and time.monotonic() < deadline:
            time.sleep(_PERIOD_SECONDS)
        found |= cluster.client.get(path)["data"]
    return found


def token_of_pod(cluster: LocalCluster, pod: Document) -> str:
    """A token as in a projected volume of the pod, which names the pod."""
    meta = pod["metadata"]
    reference = {"apiVersion": "v1", "kind": "Pod", "name": meta["name"], "uid": meta["uid"]}
    account = pod["spec"]["serviceAccountName"]
    path = f"/api/v1/namespaces/{meta['namespace']}/serviceaccounts/{account}/token"
    spec = {"boundObjectRef": reference, "expirationSeconds": _TOKEN_SECONDS}
    request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
    token: str = cluster.client.create(path, request)["status"]["token"]
    return token


def _overrides(folder: Path, server: str) -> list[str]:
    """Properties that differ from those of a container: its files, its address, and its program."""
    properties = {
        "spark.kubernetes.executor.podTemplateFile": folder / "executor.yaml",
        "spark.kubernetes.authenticate.driver.mounted.oauthTokenFile": folder / "token",
        "spark.kubernetes.authenticate.driver.mounted.caCertFile": folder / "ca.crt",
        "spark.kubernetes.driver.master": server,
        "spark.local.dir": folder,
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.port": 0,
        "spark.driver.blockManager.port": 0,
        "spark.connect.grpc.binding.port": 0,
        "spark.ui.enabled": "false",
        "spark.jars": "",
    }
    return [word for name, value in properties.items() for word in ("--conf", f"{name}={value}")]
