"""A shell alongside real nodes and queuectl, for manual use: `make e2e-real KEEP=1`."""

from __future__ import annotations

import os
import subprocess

from tests.real.cluster import real_installation


def main() -> None:
    """Start everything, and end it when the shell ends."""
    with real_installation() as installation:
        kubectl = installation.cluster.kubectl
        assert kubectl is not None
        environment = os.environ | {
            "KUBECONFIG": str(installation.cluster.kubeconfig),
            "QUEUECTL_SERVER": installation.controller.api,
            "PATH": f"{kubectl.parent}:{os.environ['PATH']}",
        }
        for node in installation.nodes.values():
            print(f"{node.shape.name}: logs in {node.home}")
        print("kubectl and queuectl use this cluster. It ends with this shell.", flush=True)
        subprocess.run([os.environ.get("SHELL", "/bin/sh")], env=environment, check=False)


if __name__ == "__main__":
    main()
