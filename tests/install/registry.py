"""A registry of images on the address of the bridge, with TLS and a password."""

from __future__ import annotations

import json
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import httpx2

from queuectl.localcluster import LocalCluster, build
from queuectl.localcluster.certificates import Authority
from queuectl.localcluster.client import wait_until
from queuectl.localcluster.layout import free_ports
from queuectl.localcluster.progress import LineProgress
from queuectl.localcluster.versions import Unit
from tests.real import network, settings
from tests.real.node import Node

REGISTRY: Final = Unit(
    name="registry",
    module="github.com/distribution/distribution/v3",
    version="v3.0.0",
    programs={"registry": "cmd/registry"},
    minutes=3.0,
)

USER: Final = "queuectl"
PASSWORD: Final = "pull-secret"
_HASH: Final = "$2b$04$JKq.ij6aypQjrawwI3LvGetzzjMWLzb1qip1PJP.gKcI4pm0erb9u"
"""The password by bcrypt, the only form that the registry reads."""
_SECONDS: Final = 60.0


def is_built() -> bool:
    """Whether the cache has the program. A run on real nodes has no network to build it."""
    return build.cached(REGISTRY).programs["registry"].exists()


def ensure() -> Path:
    """The program from the cache, or built."""
    return build.ensure(LineProgress(), units=(REGISTRY,)).programs["registry"]


@dataclass(frozen=True)
class Registry:
    """A registry that runs.

    Attributes:
        address: host and port, as nodes and the API server name it.
        authority: file with its certificate authority.
    """

    address: str
    authority: Path

    def trusted_by(self, node: Node) -> None:
        """Let the containerd of a node trust its certificate."""
        folder = f"{settings.REGISTRIES}/{self.address}"
        node.check("mkdir", "-p", folder)
        node.check("cp", self.authority, f"{folder}/ca.crt")

    def push(self, node: Node, archive: Path, name: str) -> str:
        """Push an image from an archive through a node, which then has it no longer. Returns its repository."""
        node.import_archive(archive)
        local, pushed = f"docker.io/library/{name}", f"{self.address}/{name}"
        node.images("tag", local, pushed)
        login = ("--local", "--user", f"{USER}:{PASSWORD}", "--tlscacert", str(self.authority))
        node.images("push", *login, pushed)
        node.images("rm", "--sync", local, pushed)
        return pushed.rpartition(":")[0]


@contextmanager
def running(cluster: LocalCluster) -> Iterator[Registry]:
    """An empty registry alongside the control plane. It refuses requests without the password."""
    home = cluster.kubeconfig.parents[1]
    folder = home / "registry"
    folder.mkdir()
    authority = home / "pki" / "ca.crt"
    pair = Authority.load(authority, home / "pki" / "ca.key").server("registry", [network.GATEWAY])
    pair.save(folder / "tls.crt", folder / "tls.key")
    (folder / "htpasswd").write_text(f"{USER}:{_HASH}\n")
    [port] = free_ports(1)
    file = folder / "config.json"
    file.write_text(
        json.dumps(
            {
                "version": "0.1",
                "storage": {"filesystem": {"rootdirectory": str(folder / "images")}},
                "auth": {"htpasswd": {"realm": "images", "path": str(folder / "htpasswd")}},
                "http": {
                    "addr": f"127.0.0.1:{port}",
                    "tls": {"certificate": str(folder / "tls.crt"), "key": str(folder / "tls.key")},
                },
            }
        )
    )
    cluster.supervisor.start(
        "registry",
        [ensure(), "serve", file],
        env={},
        cwd=folder,
        log=cluster.log("registry"),
    )
    trusted = ssl.create_default_context(cafile=str(authority))
    with httpx2.Client(verify=trusted, trust_env=False) as client:
        wait_until(lambda: _refuses(client, port), "the registry", _SECONDS)
    yield Registry(f"{network.GATEWAY}:{port}", authority)


def _refuses(client: httpx2.Client, port: int) -> bool:
    """Whether it answers, and refuses a request without a password."""
    try:
        return client.get(f"https://127.0.0.1:{port}/v2/").status_code == httpx2.codes.UNAUTHORIZED
    except httpx2.TransportError:
        return False


if __name__ == "__main__":
    ensure()
