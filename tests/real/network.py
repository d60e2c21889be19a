"""The network between the control plane and the nodes: a bridge in the network namespace of the run.

The servers of the control plane listen on loopback only. Nodes and pods reach each of them at the address of the bridge, on
the same port: the kernel redirects these connections to loopback.
"""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Final

BRIDGE: Final = "nodes"
GATEWAY: Final = "10.88.0.1"
"""The address of the control plane, CoreDNS, queuectl and every other server of the run, as nodes and pods see it."""

DOMAIN: Final = "cluster.local"
POD_RANGE: Final = "10.244.0.0/16"
SERVICE_RANGE: Final = "10.0.0.0/16"

_REDIRECT: Final = f"""
table ip loopback {{
  chain prerouting {{
    type nat hook prerouting priority dstnat;
    ip daddr {GATEWAY} tcp dport != 53 dnat to 127.0.0.1
  }}
}}
"""


def address(number: int) -> str:
    """The address of a node."""
    return f"10.88.0.{10 + number}"


def pods(number: int) -> str:
    """The addresses of the pods of a node."""
    return f"10.244.{number}.0/24"


def create(count: int) -> None:
    """Create the bridge for nodes 0 to `count` - 1, with routes to their pods, and to Services through the kube-proxy of node 0."""
    _ip("link", "add", BRIDGE, "type", "bridge")
    _ip("address", "add", f"{GATEWAY}/24", "dev", BRIDGE)
    _ip("link", "set", BRIDGE, "up")
    for number in range(count):
        _ip("route", "add", pods(number), "via", address(number))
    _ip("route", "add", SERVICE_RANGE, "via", address(0))
    for name, value in {
        "ip_forward": "1",
        f"conf/{BRIDGE}/route_localnet": "1",
    }.items():
        Path("/proc/sys/net/ipv4", name).write_text(value)
    subprocess.run(["nft", "-f", "-"], input=_REDIRECT, text=True, check=True)


def remove() -> None:
    """Remove the bridge with its routes, and the redirection. The next cluster of the run creates its own."""
    _ip("link", "delete", BRIDGE)
    subprocess.run(["nft", "delete", "table", "ip", "loopback"], check=True)


def routes(count: int) -> list[str]:
    """For each node the range of its pods and its address, as the init of a node takes them."""
    return [f"{pods(number)}={address(number)}" for number in range(count)]


def connect(number: int, process: int) -> None:
    """Give the network namespace of a process a device eth0 on the bridge."""
    cable = f"node{number}"
    _ip("link", "add", cable, "type", "veth", "peer", "name", "eth0", "netns", str(process))
    _ip("link", "set", cable, "master", BRIDGE, "up")


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True)
