"""The part of NVIDIA's MIG manager that queuectl and its users see: it follows the label of a node, and changes the node's resources.

No GPU is cut. The device plugin, which would offer the instances, is a part of it.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from queuectl.localcluster.client import Client

CONFIG: Final = "nvidia.com/mig.config"
STATE: Final = "nvidia.com/mig.config.state"
_POLL_SECONDS: Final = 0.2


class MigManager:
    """For all nodes with the label.

    Attributes:
        offers: GPU resources of a node by configuration; another configuration fails.
        nodes: the configuration of each node, as it is.
        paused: it takes no label up while this is set.
    """

    def __init__(self, client: Client, offers: Mapping[str, Mapping[str, int]]) -> None:
        self._client = client
        self.offers = offers
        self.nodes: dict[str, str] = {}
        self.paused = threading.Event()
        self._stopped = threading.Event()

    def run(self) -> None:
        """Follow the labels until stopped."""
        while not self._stopped.wait(_POLL_SECONDS):
            if self.paused.is_set():
                continue
            for node in self._client.get("/api/v1/nodes")["items"]:
                labels, name = node["metadata"]["labels"], node["metadata"]["name"]
                wanted = labels.get(CONFIG)
                if wanted is not None and (self.nodes.get(name) != wanted or STATE not in labels):
                    self._reconfigure(name, wanted)

    def _reconfigure(self, name: str, wanted: str) -> None:
        path = f"/api/v1/nodes/{name}"
        self._client.patch(path, _state("pending"))
        self.nodes[name] = wanted
        offered = self.offers.get(wanted)
        if offered is None:
            self._client.patch(path, _state("failed"))
            return
        known = {resource: None for offers in self.offers.values() for resource in offers}
        amounts = {**known, **{resource: str(n) for resource, n in offered.items()}}
        status = {"capacity": amounts, "allocatable": amounts}
        self._client.patch(f"{path}/status", {"status": status})
        self._client.patch(path, _state("success"))

    def stop(self) -> None:
        self._stopped.set()


def _state(value: str) -> dict[str, Any]:
    return {"metadata": {"labels": {STATE: value}}}


@contextmanager
def mig_manager(client: Client, offers: Mapping[str, Mapping[str, int]]) -> Iterator[MigManager]:
    """A MIG manager that follows the labels in a thread."""
    manager = MigManager(client, offers)
    thread = threading.Thread(target=manager.run, name="mig-manager")
    thread.start()
    try:
        yield manager
    finally:
        manager.stop()
        thread.join()
