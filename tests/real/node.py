"""A node: containerd, a kubelet, kube-proxy and a device plugin in their own namespaces, which can lose its power."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from queuectl.localcluster import LocalCluster, layout
from queuectl.localcluster.build import Assets
from queuectl.localcluster.certificates import Authority
from queuectl.localcluster.client import wait_until
from queuectl.localcluster.errors import LocalClusterError
from queuectl.localcluster.supervisor import KeeperHandle
from tests.real import images, network, sandbox, settings

_SECONDS: Final = 60.0
_PATH: Final = os.environ | {"PATH": f"{os.environ['PATH']}:/usr/sbin:/sbin"}
_NAMESPACES: Final = ("--mount", "--net", "--pid", "--ipc", "--uts", "--cgroup", "--mount-proc")
_ENTER: Final = 'for one in $CGROUPS; do echo $$ > "$one/cgroup.procs"; done; exec "$@"'


@dataclass(frozen=True)
class Shape:
    """The attributes of a node at its creation.

    Attributes:
        name: its name.
        number: its number among the nodes of the run, from 0.
        gpus: devices of its device plugin.
        labels: its labels in addition to those that the kubelet sets.
    """

    name: str
    number: int
    gpus: int
    labels: Mapping[str, str] = field(default_factory=dict)


class Node:
    """A node of a cluster.

    Attributes:
        home: its folder, with the logs of its programs.
        shape: its attributes.
    """

    def __init__(self, cluster: LocalCluster, assets: Assets, shape: Shape, count: int) -> None:
        """Prepare its files. `count` is the number of nodes of the run."""
        run = sandbox.home()
        assert run is not None, "nodes run in the sandbox only"
        self.shape = shape
        self.home = run / cluster.name / shape.name
        self.home.mkdir(parents=True)
        self._routes = network.routes(count)
        self._programs = assets.programs
        self._supervisor = KeeperHandle(self.home)
        self._init: subprocess.Popen[bytes] | None = None
        self._control = self.home / "devices.json"
        self.set_devices()
        self._disk = self.home / settings.DISK_FILE
        self._make_disk()
        self._write_files(cluster)
        self._cgroups = [path / shape.name for path in sandbox.cgroups().values()]

    @property
    def address(self) -> str:
        """Its IP address."""
        return network.address(self.shape.number)

    def _make_disk(self) -> None:
        """The file with the disk of its kubelet. It takes as much room as is written to it."""
        with self._disk.open("wb") as file:
            file.truncate(settings.NODE_DISK)
        subprocess.run(["mkfs.ext4", "-q", "-m", "0", str(self._disk)], env=_PATH, check=True)

    def _has_disk(self) -> bool:
        """Whether its disk is in use. The kernel unmounts it some time after the end of the last process."""
        command = ["losetup", "--associated", str(self._disk)]
        return bool(subprocess.run(command, env=_PATH, check=True, capture_output=True).stdout)

    def _write_files(self, cluster: LocalCluster) -> None:
        name, pki = self.shape.name, cluster.kubeconfig.parents[1] / "pki"
        authority = Authority.load(pki / "ca.crt", pki / "ca.key")
        identities = {
            "kubelet": authority.client(f"system:node:{name}", ["system:nodes"]),
            "kube-proxy": authority.client("system:kube-proxy"),
        }
        port = cluster.server.rpartition(":")[2]
        for who, pair in identities.items():
            layout.write_kubeconfig(
                self.home / f"{who}.kubeconfig",
                cluster=cluster.name,
                server=f"https://kubernetes:{port}",
                authority=cluster.authority,
                user=who,
                identity=pair,
            )
        serving = authority.server(f"system:node:{name}", [name, self.address])
        serving.save(self.home / "kubelet.crt", self.home / "kubelet.key")
        (self.home / "ca.crt").write_bytes(cluster.authority)
        (self.home / "containerd.toml").write_text(settings.containerd())
        (self.home / "kubelet.yaml").write_text(settings.kubelet(self.home))
        proxy = settings.kube_proxy(self.home / "kube-proxy.kubeconfig")
        (self.home / "kube-proxy.yaml").write_text(proxy)

    def set_devices(self, *, unhealthy: tuple[str, ...] = (), refuse: bool = False) -> None:
        """Make devices unhealthy, or let the device plugin refuse allocations."""
        _write_control(self._control, unhealthy=unhealthy, refuse=refuse)

    def power_on(self) -> None:
        """Start the node and its programs. Its disks are those of its last run. Without effect if it runs."""
        if self._init is not None:
            return
        (self.home / "keeper.sock").unlink(missing_ok=True)
        _make_cgroups(self._cgroups)
        init = [sys.executable, "-m", "tests.real.node_init", str(self.home), self.shape.name]
        init += [self.address, network.GATEWAY, *self._routes]
        unshare = ["unshare", *_NAMESPACES, "--fork", "--kill-child", "--", *init]
        with self._log("init").open("ab") as log:
            self._init = subprocess.Popen(
                ["sh", "-c", _ENTER, "sh", *unshare],
                env=os.environ | {"CGROUPS": " ".join(map(str, self._cgroups))},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        self._until(lambda: self._first_process() is not None, "its first process")
        network.connect(self.shape.number, self._process())
        self._until(self._supervisor.alive, "its init")
        self.start("containerd", "--config", self.home / "containerd.toml")
        self._until(lambda: self.run("test", "-S", "/run/containerd/containerd.sock"), "containerd")
        self._set_up_pods()
        self.start_kubelet()
        self.start("kube-proxy", "--config", self.home / "kube-proxy.yaml")
        plugin = ["-m", "tests.real.device_plugin", str(self.shape.gpus), str(self._control)]
        self._start("device-plugin", sys.executable, *plugin)

    def _set_up_pods(self) -> None:
        """The network of pods and the images. The disk of a node that starts again has the images."""
        script = 'mkdir -p /etc/cni/net.d && printf %s "$1" > /etc/cni/net.d/10-pods.conflist'
        self.check("sh", "-c", script, "sh", settings.cni(self.shape.number))
        held = self._ctr("images", "list", "-q")
        for image in images.IMAGES:
            if image.name not in held.split():
                self.import_archive(image.archive)

    def import_archive(self, archive: Path) -> None:
        """Import an image from an OCI archive."""
        self._ctr("images", "import", str(archive))

    def images(self, *arguments: str) -> str:
        """Run a command of containerd on its images."""
        return self._ctr("images", *arguments)

    def _ctr(self, *arguments: str) -> str:
        return self.check(self._programs["ctr"], "--namespace", "k8s.io", *arguments)

    def process_of(self, container: str) -> dict[str, str]:
        """The status of the first process of a container, as the kernel shows it: the first value of each field.

        The field `root` is the first option of its root file system, `ro` or `rw`.
        """
        tasks = dict(line.split()[:2] for line in self._ctr("tasks", "list").splitlines())
        folder = f"/proc/{tasks[container]}"
        lines = self.check("cat", f"{folder}/status").splitlines()
        mounts = map(str.split, self.check("cat", f"{folder}/mounts").splitlines())
        (options,) = (mount[3] for mount in mounts if mount[1] == "/")
        return {
            name: value.split()[0]
            for name, _, value in (one.partition(":") for one in lines)
            if value.split()
        } | {"root": options.split(",")[0]}

    def kill_container(self, container: str) -> None:
        """End the first process of a container by SIGKILL."""
        self._ctr("tasks", "kill", "--signal", "SIGKILL", container)

    def power_off(self) -> None:
        """Kill every process of the node at once. Its disks remain."""
        if self._init is not None:
            self._init.kill()  # the kernel kills the first process of the node, and by it all others
            self._init.wait()
            self._until(lambda: not _has_processes(self._cgroups), "the end of its processes")
            self._until(lambda: not self._has_disk(), "the release of its disk")
            self._init = None

    def start_kubelet(self) -> None:
        """Start the kubelet, after `stop_kubelet` too."""
        labels = ",".join(f"{key}={value}" for key, value in self.shape.labels.items())
        self.start(
            "kubelet",
            f"--config={self.home / 'kubelet.yaml'}",
            f"--kubeconfig={self.home / 'kubelet.kubeconfig'}",
            f"--node-ip={self.address}",
            f"--node-labels={labels}",
            "--housekeeping-interval=5s",
        )

    def stop_kubelet(self) -> None:
        """End the kubelet by SIGKILL. Containers continue."""
        self._supervisor.kill("kubelet")

    def start(self, program: str, *arguments: str | Path) -> None:
        """Start one of the built programs in the node."""
        self._start(program, self._programs[program], *arguments)

    def _start(self, name: str, program: str | Path, *arguments: str | Path) -> None:
        folders = {str(path.parent) for path in self._programs.values()}
        path = ":".join([*sorted(folders), "/usr/sbin", "/usr/bin", "/sbin", "/bin"])
        self._supervisor.start(
            name,
            [program, *arguments],
            env={"PATH": path, "HOME": "/root"},
            cwd=Path.cwd(),
            log=self._log(name),
        )

    def run(self, *command: str | Path) -> bool:
        """Run a command in the namespaces of the node.

        Returns:
            Whether its exit code is 0.
        """
        return self._command(*command).returncode == 0

    def check(self, *command: str | Path) -> str:
        """Run a command in the namespaces of the node and return its output.

        Raises:
            LocalClusterError: its exit code is not 0; the message has its errors.
        """
        done = self._command(*command)
        if done.returncode:
            words = " ".join(map(str, command))
            raise LocalClusterError(f"{self.shape.name}: {words}: {done.stderr.strip()}")
        return done.stdout

    def _command(self, *command: str | Path) -> subprocess.CompletedProcess[str]:
        enter = ["nsenter", "--target", str(self._process()), "--mount", "--net", "--pid", "--uts"]
        words = [*enter, "--", *map(str, command)]
        return subprocess.run(words, capture_output=True, text=True, check=False)

    def _process(self) -> int:
        """The first process of the node, by its id in the sandbox."""
        found = self._first_process()
        assert found is not None, f"{self.shape.name} is off"
        return found

    def _first_process(self) -> int | None:
        if self._init is None:
            return None
        pid = self._init.pid
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        return int(children[0]) if children else None

    def _log(self, name: str) -> Path:
        return self.home / f"{name}.log"

    def log(self, name: str) -> str:
        """The output of a program of the node."""
        return self._log(name).read_text(errors="replace")

    def _until(self, done: Callable[[], bool], what: str) -> None:
        try:
            wait_until(done, f"{self.shape.name}: {what}", _SECONDS)
        except LocalClusterError as error:
            raise LocalClusterError(f"{error}\n{self.log('init')[-2000:]}") from error


def _make_cgroups(paths: list[Path]) -> None:
    for path in paths:
        path.mkdir(exist_ok=True)
        # A new cpuset has no CPU and refuses processes.
        for name in ("cpuset.cpus", "cpuset.mems"):
            for cgroup in (path.parent, path):
                if (cgroup / name).exists() and not (cgroup / name).read_text().strip():
                    (cgroup / name).write_text((cgroup.parent / name).read_text())


def _has_processes(paths: list[Path]) -> bool:
    return any(
        file.read_text() for path in paths for file in path.rglob("cgroup.procs") if file.exists()
    )


def _write_control(control: Path, *, unhealthy: tuple[str, ...] = (), refuse: bool = False) -> None:
    """Change what a running device plugin reports and does."""
    draft = control.with_suffix(".new")
    draft.write_text(json.dumps({"unhealthy": unhealthy, "refuse": refuse}))
    draft.rename(control)
