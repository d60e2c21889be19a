"""The reason of a workload in a row of a list."""

from __future__ import annotations

from typing import Any

from queuectl.domain.reasons import Code
from queuectl.web.short_reasons import short_reason


def quota(**fields: Any) -> dict[str, Any]:
    return {"resource": "nvidia.com/gpu", "needs": 64, "nominal": 32, "used": 15, **fields}


ODD: list[Any] = [None, {}, [1, {}], [quota(needs="9")], [quota(left=64)]]


def test_a_reason_is_a_few_words() -> None:
    short, gpus = Code.WAITING_FOR_QUOTA, {"quota": [quota()]}
    table: list[tuple[Code, str, Any, str]] = [
        (short, "47 more", gpus, "47 GPUs short of quota"),
        (short, "", {"quota": [quota(needs=18)]}, "1 GPU short of quota"),
        (short, "", {"quota": [quota(left=60)]}, "4 GPUs short of quota"),
        (short, "", {"quota": [quota(resource="cpu", needs=99_500, nominal=0, used=0), quota()]}, "47 GPUs short of quota"),
        (short, "", {"quota": [quota(resource="cpu", needs=99_500, nominal=0, used=0)]}, "99500m cpu short of quota"),
        *((short, "x", {"quota": odd}, "Waiting for quota") for odd in ODD),
        (Code.TOPOLOGY_PLACEMENT_FAILED, "no rack has 2 nodes with 8 free GPUs: the best has 11", {}, "No rack has 2 nodes with 8 free GPUs"),
        (Code.TOPOLOGY_PLACEMENT_FAILED, "x" * 65, {}, "Topology placement failed"),
        (Code.TOPOLOGY_PLACEMENT_FAILED, "", {}, "Topology placement failed"),
        (Code.BACKOFF, "start 3 failed (PodsReadyTimeout); the next is tried in 240 s", {}, "Start 3 failed"),
        (Code.HELD, "by ann: waits for the data", {}, "by ann: waits for the data"),
        (Code.HELD, "by ann: " + "x" * 99, {}, "by ann: " + "x" * 55 + "…"),
        (Code.SUCCEEDED, "", {}, "-"),
        (Code.PODS_READY, "all pods are ready", {}, "Pods ready"),
    ]  # fmt: skip
    for code, message, details, words in table:
        assert short_reason(code, message, details) == words
