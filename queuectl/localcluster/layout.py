"""The files and ports of one cluster, and their choice; kubeconfig files, and the audit log of its API server."""

from __future__ import annotations

import base64
import contextlib
import fcntl
import itertools
import json
import os
import re
import secrets
import socket
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import yaml

from queuectl.localcluster.certificates import KeyPair, write_secret
from queuectl.localcluster.errors import LocalClusterError, UnknownClusterError
from queuectl.localcluster.folders import chosen_by, expanded
from queuectl.localcluster.keeper import remove_tree

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


# ---- Files and ports

LOOPBACK = "127.0.0.1"
PORTS = (
    "etcd",
    "etcd-peer",
    "kube-apiserver",
    "kube-controller-manager",
    "kube-scheduler",
    "kwok",
)
# Below the ports that the kernel uses for outgoing connections, so that no connection takes one of these.
_PORT_RANGE = range(20_000, 32_000)
_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,40}[a-z0-9])?")
_DESCRIPTION = "cluster.json"


def clusters() -> Path:
    """The folder of all clusters: `$XDG_STATE_HOME/queuectl/clusters`, otherwise under `~/.local/state`."""
    base = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    return expanded(base, "XDG_STATE_HOME") / "queuectl" / "clusters"


@dataclass(frozen=True)
class Layout:
    """The folder of one cluster.

    Attributes:
        name: Name of the cluster, and of its folder.
        ports: Loopback port of each server.
        description: Further data from the creation of the cluster.
    """

    name: str
    ports: dict[str, int]
    description: dict[str, Any] = field(default_factory=dict)

    @property
    def home(self) -> Path:
        """The folder with all files of this cluster."""
        return clusters() / self.name

    @property
    def pki(self) -> Path:
        """Keys and certificates."""
        return self.home / "pki"

    @property
    def logs(self) -> Path:
        """The folder with a log for each component."""
        return self.home / "logs"

    @property
    def etcd_data(self) -> Path:
        """The data folder of etcd."""
        return self.home / "etcd"

    @property
    def server(self) -> str:
        """URL of the API server."""
        return self.url("kube-apiserver")

    def url(self, port: str, scheme: str = "https") -> str:
        """URL of the server on a named port."""
        return f"{scheme}://{LOOPBACK}:{self.ports[port]}"

    def kubeconfig(self, who: str) -> Path:
        """The kubeconfig of a component or user."""
        return self.home / "kubeconfig" / f"{who}.yaml"

    def write(self, **description: Any) -> Layout:
        """Save the cluster for `find`, with `description` added to the saved data."""
        known = self.description | description
        content = json.dumps(
            {"name": self.name, "ports": self.ports, "description": known}, indent=1
        )
        draft = self.home / f"{_DESCRIPTION}.new"
        draft.write_text(content)
        draft.rename(self.home / _DESCRIPTION)
        return Layout(self.name, self.ports, known)

    def remove(self) -> None:
        """Remove the folder. Without effect if it does not exist."""
        remove_tree(self.home)


def create(name: str | None) -> Layout:
    """Create the folder of a new cluster and reserve its ports.

    Args:
        name: Its name; None = a random name.

    Raises:
        LocalClusterError: The name is invalid or taken.
    """
    name = name or f"c-{secrets.token_hex(4)}"
    if not _NAME.fullmatch(name):
        raise LocalClusterError(
            f"cluster name {name!r} must be of lower-case letters, digits and inner hyphens, at most 42 long"
        )
    with chosen_by("XDG_STATE_HOME"):
        clusters().mkdir(parents=True, exist_ok=True, mode=0o700)
    with _locked():
        layout = Layout(name, _ports_of(PORTS))
        if layout.home.exists():
            raise LocalClusterError(
                f"a cluster named {name} exists already in {layout.home}; choose another name, or take it down first: queuectl localcluster down --name {name}"
            )
        try:
            layout.home.mkdir(mode=0o700)
            for folder in (
                layout.pki,
                layout.logs,
                layout.home / "kubeconfig",
                layout.home / "tmp",
            ):
                folder.mkdir()
            return layout.write()
        except BaseException:  # also after an interrupt
            layout.remove()
            raise


def reserve(place: Layout, names: Sequence[str]) -> Layout:
    """Reserve further ports for a cluster, which programs that start later listen on.

    Raises:
        LocalClusterError: No port is free.
    """
    with _locked():
        return Layout(place.name, place.ports | _ports_of(names), place.description).write()


def find(name: str) -> Layout | None:
    """The cluster of this name, running or not, or None; also None for an incomplete one."""
    try:
        content = json.loads((clusters() / name / _DESCRIPTION).read_bytes())
    except (OSError, ValueError):
        return None
    return Layout(content["name"], content["ports"], content["description"])


def existing(name: str) -> Layout:
    """The cluster of this name, running or not.

    Raises:
        UnknownClusterError: No cluster has the name.
        LocalClusterError: Its creation or its removal was interrupted.
    """
    place = find(name)
    if place is None and name in names():
        raise LocalClusterError(
            f"cluster {name} is incomplete; take it down to remove what is left of it"
        )
    if place is None:
        raise unknown(name)
    return place


def unknown(name: str) -> UnknownClusterError:
    """The error that no cluster has this name."""
    known = ", ".join(names())
    others = f"; clusters of this machine: {known}" if known else ""
    return UnknownClusterError(f"no cluster has the name {name}{others}")


def names() -> list[str]:
    """The names of all clusters on this machine, also of those whose creation or removal was interrupted."""
    with contextlib.suppress(FileNotFoundError):
        return sorted(path.name for path in clusters().iterdir() if path.is_dir())
    return []


def find_all() -> list[Layout]:
    """Every cluster on this machine, by name; running or not."""
    return [layout for name in names() if (layout := find(name))]


@contextlib.contextmanager
def _locked() -> Iterator[None]:
    with chosen_by("XDG_STATE_HOME"):
        file = (clusters() / ".lock").open("wb")
    with file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _ports_of(names: Sequence[str]) -> dict[str, int]:
    return dict(zip(names, free_ports(len(names)), strict=True))


def free_ports(count: int) -> list[int]:
    """Free loopback ports, of no cluster. No other call returns them while this process runs.

    Raises:
        LocalClusterError: No port is free.
    """
    reserved = {port for layout in find_all() for port in layout.ports.values()}
    # A random start separates machines that share a network namespace but not the folder.
    start = secrets.randbelow(len(_PORT_RANGE))
    candidates = (
        _PORT_RANGE[(start + step) % len(_PORT_RANGE)] for step in range(len(_PORT_RANGE))
    )
    free = (port for port in candidates if port not in reserved and _is_free(port) and _claim(port))
    chosen = list(itertools.islice(free, count))
    if len(chosen) < count:
        raise LocalClusterError("no free ports on loopback")
    return chosen


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return False
    return True


def _claim(port: int) -> bool:
    """Claim a TCP port for the program that will listen on it.

    This process keeps the UDP port of the same number until it ends: the claim holds for every process of the machine, and leaves
    no file.
    """
    claim = socket.socket(type=socket.SOCK_DGRAM)
    try:
        claim.bind((LOOPBACK, port))
    except OSError:
        claim.close()
        return False
    claim.detach()  # open until this process ends
    return True


# ---- Kubeconfig files


def write_kubeconfig(
    path: Path, *, cluster: str, server: str, authority: bytes, user: str, identity: KeyPair | str
) -> Path:
    """Write a kubeconfig with one context.

    Args:
        path: The file to write, in an existing folder.
        cluster: Name of the cluster and of the context.
        server: URL of the API server.
        authority: The CA of the server, as PEM.
        user: Name of the user entry; it has no effect.
        identity: A client certificate or a bearer token.

    Returns:
        The path.
    """
    credentials: dict[str, Any]
    if isinstance(identity, KeyPair):
        credentials = {
            "client-certificate-data": _encode(identity.certificate),
            "client-key-data": _encode(identity.key),
        }
    else:
        credentials = {"token": identity}
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [
            {
                "name": cluster,
                "cluster": {"server": server, "certificate-authority-data": _encode(authority)},
            }
        ],
        "users": [{"name": user, "user": credentials}],
        "contexts": [
            {"name": cluster, "context": {"cluster": cluster, "user": user, "namespace": "default"}}
        ],
        "current-context": cluster,
    }
    write_secret(path, yaml.safe_dump(document, sort_keys=False).encode())
    return path


def _encode(content: bytes) -> str:
    return base64.b64encode(content).decode()


# ---- The audit log
#
# The variable QUEUECTL_AUDIT_LOGS is the folder of the logs. Each cluster has one file with its name. Without the variable,
# the API server writes no log. It has the requests of queuectl, and all creations, bindings, evictions and deletions of pods.

AUDIT_LOGS: Final = "QUEUECTL_AUDIT_LOGS"
_POLICY: Final = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    # A watch that ends with the API server has no later stage than ResponseStarted.
    "omitStages": ["RequestReceived"],
    # Requests that no rule matches are not logged.
    "rules": [
        {"level": "Metadata", "userGroups": ["system:serviceaccounts:queuectl-system"]},
        {
            "level": "Metadata",
            "verbs": ["create", "delete", "deletecollection"],
            "resources": [{"group": "", "resources": ["pods", "pods/binding", "pods/eviction"]}],
        },
    ],
}


def audit_flags(layout: Layout, policy_file: str = "") -> tuple[str, ...]:
    """The flags of the API server for the log; none without the variable and without a policy of the cluster."""
    if policy_file:
        return _logged(Path(policy_file), layout.logs / "audit.log")
    wanted = os.environ.get(AUDIT_LOGS)
    if not wanted:
        return ()
    logs = expanded(wanted, AUDIT_LOGS)
    logs.mkdir(parents=True, exist_ok=True)
    policy = layout.home / "audit-policy.yaml"
    policy.write_text(yaml.safe_dump(_POLICY))
    return _logged(policy, logs / f"{layout.name}.log")


def _logged(policy: Path, log: Path) -> tuple[str, ...]:
    # Without a size, the server starts another file after 100 MB.
    return (
        f"--audit-policy-file={policy}",
        f"--audit-log-path={log}",
        "--audit-log-maxsize=100000",
    )
