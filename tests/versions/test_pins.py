"""The changes of node affinity that the API server accepts on a gated pod, and where kube-scheduler then binds it."""

from __future__ import annotations

from typing import Any, Final

import msgspec
import pytest

from queuectl.localcluster import ApiServerError
from queuectl.localcluster.client import Client, Document, wait_until
from queuectl.objects.keys import GATE
from queuectl.objects.kubernetes.node_affinity import REQUIRED
from queuectl.objects.kubernetes.pods import pin_patch, read_pod
from queuectl.objects.kubernetes.wire import WirePod
from tests.system.installation import Installation

pytestmark = pytest.mark.system

ACCOUNT: Final = "system:serviceaccount:queuectl-system:queuectl"
CREATOR: Final = "system:serviceaccount:kube-system:job-controller"
NODE: Final = "b1-r1-h2"
ON_LINUX: Final = {"key": "kubernetes.io/os", "operator": "In", "values": ["linux"]}
NEVER: Final = {"key": "kubernetes.io/os", "operator": "In", "values": ["plan9"]}
NOT_FIRST: Final = {"key": "metadata.name", "operator": "NotIn", "values": ["b0-r0-h0"]}
PREFERRED: Final = {
    "preferredDuringSchedulingIgnoredDuringExecution": [
        {"weight": 1, "preference": {"matchExpressions": [ON_LINUX]}}
    ]
}
APART: Final = {
    "preferredDuringSchedulingIgnoredDuringExecution": [
        {
            "weight": 1,
            "podAffinityTerm": {
                "topologyKey": "kubernetes.io/hostname",
                "labelSelector": {"matchLabels": {"a": "b"}},
            },
        }
    ]
}


def requiring(*terms: Document, **more: Any) -> Document:
    return {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": list(terms)}, **more}}


OWN: Final[dict[str, Document | None]] = {
    "none": None,
    "preferred": {"nodeAffinity": PREFERRED},
    "other-pods": {"podAntiAffinity": APART},
    "one-term": requiring({"matchExpressions": [ON_LINUX]}, **PREFERRED),
    "terms": requiring(
        {"matchExpressions": [NEVER]}, {"matchExpressions": [ON_LINUX], "matchFields": [NOT_FIRST]}, {}
    ),
    "fields": requiring({"matchFields": [NOT_FIRST]}) | {"podAntiAffinity": APART},
}  # fmt: skip
"""The affinity of pods that can run on the node."""
FIRST: Final = {"matchExpressions": [ON_LINUX]}
REFUSED: Final = {
    "another term": requiring(FIRST, {"matchFields": [NOT_FIRST]}),
    "no term": {"nodeAffinity": None},
    "a term changes": requiring({"matchExpressions": [NEVER]}),
    "an addition in front": requiring({"matchExpressions": [NEVER, ON_LINUX]}),
    "two names": requiring(FIRST | {"matchFields": [{**NOT_FIRST, "values": ["a", "b"]}]}),
    "other pods": requiring(FIRST) | {"podAntiAffinity": APART},
}
"""Changes of a gated pod that requires FIRST."""


def created(client: Client, pods: str, name: str, gate: str, affinity: Document | None) -> Document:
    spec = {
        "containers": [{"name": "main", "image": "example.com/main:1"}],
        "schedulingGates": [{"name": gate}],
        **({"affinity": affinity} if affinity else {}),
    }
    return client.create(pods, {"metadata": {"name": name}, "spec": spec})


def test_a_pin_is_accepted_with_any_affinity_and_leads_to_its_node(
    installation: Installation,
) -> None:
    client = installation.cluster.client
    queuectl = installation.cluster.client_for_user(ACCOUNT)
    creator = installation.cluster.client_for_user(CREATOR)
    with installation.cluster.namespace("pins") as namespace:
        pods = f"/api/v1/namespaces/{namespace}/pods"
        for name, affinity in OWN.items():
            found = created(creator, pods, name, GATE, affinity)
            record = read_pod(msgspec.convert(found, WirePod))
            pinned = queuectl.patch(f"{pods}/{name}", pin_patch(record, NODE))
            assert read_pod(msgspec.convert(pinned, WirePod)).pin == NODE
            # All else stays.
            left = {k: v for k, v in pinned["spec"]["affinity"].items() if k != "nodeAffinity"}
            assert left == {k: v for k, v in (affinity or {}).items() if k != "nodeAffinity"}

        def bound() -> bool:
            nodes = {one["spec"].get("nodeName") for one in client.get(pods)["items"]}
            return nodes == {NODE}

        wait_until(bound, "all pods are on the node", 60.0)
    queuectl.close()
    creator.close()


def test_the_api_server_refuses_other_changes_of_a_gated_pod(installation: Installation) -> None:
    client = installation.cluster.client
    with installation.cluster.namespace("pins") as namespace:
        pods = f"/api/v1/namespaces/{namespace}/pods"
        created(client, pods, "gated", "example.com/own", requiring(FIRST))
        for name, affinity in REFUSED.items():
            with pytest.raises(ApiServerError) as refusal:
                client.patch(f"{pods}/gated", {"spec": {"affinity": affinity}})
            assert refusal.value.status == 422, name
