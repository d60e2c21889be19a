"""Write the nodes and queues of a trace: ``python -m tests.traces NAME=NODES... > cluster.json``."""

from __future__ import annotations

import json
import sys

from tests.traces.clusters import virtual_clusters


def main() -> None:
    sizes = {name: int(count) for name, _, count in (arg.partition("=") for arg in sys.argv[1:])}
    items = virtual_clusters(sizes)
    json.dump({"apiVersion": "v1", "kind": "List", "items": items}, sys.stdout, indent=1)


main()
