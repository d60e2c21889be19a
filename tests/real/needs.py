"""The conditions under which a machine can run real nodes, and how to fulfill them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

_CONTROLLERS: Final = ("cpu", "cpuacct", "cpuset", "memory", "devices", "freezer", "blkio", "pids")

HIERARCHIES: Final = {name: name for name in _CONTROLLERS} | {"systemd": "none,name=systemd"}
"""The cgroup hierarchies (v1) that containerd and the kubelet use, with the options of a mount."""

CNI: Final = Path("/usr/lib/cni")
"""Where Debian installs the CNI plugins."""

_PACKAGES: Final = {
    "runc": "runc",
    "nft": "nftables",
    "debootstrap": "debootstrap",
    "mkfs.ext4": "e2fsprogs",
    "ip": "iproute2",
    "unshare": "util-linux",
    "setpriv": "util-linux",
    "nsenter": "util-linux",
    str(CNI / "ptp"): "containernetworking-plugins",
}


def machine() -> str | None:
    """The reason why no node can run on this machine, or None."""
    if sys.platform != "linux" or os.geteuid():
        return "real nodes need Linux and root: they create namespaces, mounts and cgroups"
    missing = [name for name in HIERARCHIES if not Path("/sys/fs/cgroup", name, "tasks").exists()]
    if missing:
        return f"real nodes need cgroup v1 in /sys/fs/cgroup; it has no {', '.join(missing)}"
    made = subprocess.run(
        ["unshare", "--mount", "--net", "--pid", "--fork", "ip", "link", "set", "lo", "up"],
        capture_output=True,
        text=True,
        check=False,
    )
    return f"real nodes need namespaces: {made.stderr.strip()}" if made.returncode else None


def packages() -> str | None:
    """The sentence that names the missing packages and their installation; None if all programs exist."""
    missing = sorted(set(_missing()))
    if not missing:
        return None
    return (
        f"real nodes need the packages {', '.join(missing)}. Install them on Debian: "
        f"apt-get update && apt-get install --yes {' '.join(missing)}"
    )


def _missing() -> Iterator[str]:
    path = os.environ.get("PATH", os.defpath) + ":/usr/sbin:/sbin"
    for program, package in _PACKAGES.items():
        if shutil.which(program, path=path) is None:
            yield package
