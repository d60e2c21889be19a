"""The first process of a node's namespaces: it sets up mounts and network, and supervises the programs of the node.

    python -m tests.real.node_init HOME NAME ADDRESS GATEWAY POD_ROUTE...

`tests.real.node` starts it in new namespaces for mounts, processes, network, host name and cgroups. If it ends, the kernel
ends every process of the node at once, with its network and its mounts, like a machine that loses its power. The folder HOME
remains: it holds the disks of the node.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import subprocess
import sys
import time
import uuid
from pathlib import Path
from typing import Final

from queuectl.localcluster.keeper import Keeper
from tests.real.needs import HIERARCHIES
from tests.real.settings import DISK_FILE

_CGROUPS: Final = Path("/sys/fs/cgroup")
_KUBELET: Final = Path("/var/lib/kubelet")
_DISKS: Final = {
    "containerd": "/var/lib/containerd",
    "cni": "/var/lib/cni",
    "pods": "/var/log/pods",
}
_KERNEL_SETTINGS: Final = {
    "vm/overcommit_memory": "1",
    "vm/panic_on_oom": "0",
    "kernel/panic": "10",
    "kernel/panic_on_oops": "1",
    "kernel/keys/root_maxkeys": "1000000",
    "kernel/keys/root_maxbytes": "25000000",
}
"""Settings of the whole machine that a kubelet makes. Each node has its own files in their place."""


def _run(*command: str | Path) -> None:
    subprocess.run([str(word) for word in command], check=True)


def _mount(home: Path) -> None:
    """Give the node its own /run, /etc and /var, its disks and its view of the cgroups."""
    volatile = home / "volatile"
    volatile.mkdir(exist_ok=True)
    _run("mount", "-t", "tmpfs", "-o", "size=64m", "volatile", volatile)
    for name in ("etc", "var"):
        upper, work = volatile / f"{name}-upper", volatile / f"{name}-work"
        upper.mkdir()
        work.mkdir()
        layers = f"lowerdir=/{name},upperdir={upper},workdir={work}"
        _run("mount", "-t", "overlay", "-o", layers, "overlay", f"/{name}")
    _run("mount", "-t", "tmpfs", "-o", "size=64m", "run", "/run")
    for name, target in _DISKS.items():
        (home / name).mkdir(exist_ok=True)
        Path(target).mkdir(parents=True, exist_ok=True)
        _run("mount", "--bind", home / name, target)
    # The kubelet has its own small file system, which a test fills. The kernel frees the device with the last mount.
    _KUBELET.mkdir(parents=True, exist_ok=True)
    _run("mount", "-o", "loop", home / DISK_FILE, _KUBELET)
    _run("mount", "-t", "sysfs", "sysfs", "/sys")
    _run("mount", "-t", "tmpfs", "-o", "size=1m", "cgroup", _CGROUPS)
    for name, options in HIERARCHIES.items():
        (_CGROUPS / name).mkdir()
        _run("mount", "-t", "cgroup", "-o", options, name, _CGROUPS / name)


def _replace_kernel_files(volatile: Path) -> None:
    """Separate files for the settings that a kubelet makes, and for the id of the boot, which changes with each start."""
    files = {f"sys/{name}": value for name, value in _KERNEL_SETTINGS.items()}
    files["sys/kernel/random/boot_id"] = str(uuid.UUID(bytes=secrets.token_bytes(16), version=4))
    for name, value in files.items():
        own = volatile / name.replace("/", "-")
        own.write_text(f"{value}\n")
        _run("mount", "--bind", own, Path("/proc", name))


def _connect(name: str, address: str, gateway: str, routes: list[str]) -> None:
    """Wait for the cable, eth0, and use it. A route is `POD_RANGE=NODE_ADDRESS`."""
    _run("hostname", name)
    while not Path("/sys/class/net/eth0").exists():
        time.sleep(0.02)
    for device in ("lo", "eth0"):
        _run("ip", "link", "set", device, "up")
    _run("ip", "address", "add", f"{address}/24", "dev", "eth0")
    _run("ip", "route", "add", "default", "via", gateway)
    for route in routes:
        pods, _, node = route.partition("=")
        if node != address:
            _run("ip", "route", "add", pods, "via", node)
    Path("/proc/sys/net/ipv4/ip_forward").write_text("1")
    with Path("/etc/hosts").open("w") as hosts:
        hosts.write(f"127.0.0.1 localhost\n{address} {name}\n{gateway} kubernetes\n")
    Path("/etc/resolv.conf").write_text("")


class NodeInit(Keeper):
    """A keeper that also collects processes whose parents have ended, as the first process of a machine does."""

    def _reap(self) -> None:
        own = {program.pid: program for program in self._programs.values()}
        with contextlib.suppress(ChildProcessError):
            while ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT):
                if ended.si_pid in own:
                    own[ended.si_pid].poll()
                else:
                    os.waitpid(ended.si_pid, 0)


def main() -> None:
    """Set up the node and serve requests until it is killed."""
    home, name, address, gateway, *routes = sys.argv[1:]
    _mount(Path(home))
    _replace_kernel_files(Path(home, "volatile"))
    _connect(name, address, gateway, routes)
    # No process is the parent of the first one of a namespace.
    NodeInit(Path(home), owner=0, remove=False).run()


if __name__ == "__main__":
    main()
