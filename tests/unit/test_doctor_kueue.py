"""Findings on the parts of a Kueue whose controller does not run."""

from __future__ import annotations

from typing import Any

import pytest

from queuectl.cli.doctor.findings import Level
from queuectl.cli.doctor.kueue import KueueParts, judged

OWNED = {"meta.helm.sh/release-name": "kueue", "meta.helm.sh/release-namespace": "kueue-system"}


def definition(name: str, annotations: dict[str, str] | None = None) -> dict[str, Any]:
    return {"metadata": {"name": name, "annotations": annotations}, "spec": {}}


@pytest.mark.parametrize(
    ("parts", "levels"),
    [
        (KueueParts(0, [definition("a")], [], []), []),
        (KueueParts(0, [definition("a")], ["m"], []), [Level.PROBLEM]),
        (KueueParts(0, [definition("a")], [], ["clusterqueue/a"]), [Level.WARNING]),
        (KueueParts(1, [definition("a")], ["m"], ["clusterqueue/a"]), []),
        (KueueParts(1, [definition("a", OWNED)], ["m"], []), [Level.WARNING]),
        (KueueParts(0, [definition("a", OWNED | {"helm.sh/resource-policy": "keep"})], [], []), []),
        (KueueParts(0, [definition(n, OWNED) for n in "ab"], ["m"], ["c/a"]),
         [Level.WARNING, Level.PROBLEM, Level.WARNING]),
    ],
)  # fmt: skip
def test_only_what_a_stopped_kueue_leaves_is_reported(
    parts: KueueParts, levels: list[Level]
) -> None:
    assert [one.level for one in judged(parts)] == levels


def test_the_fix_of_a_release_deletes_no_definition() -> None:
    [found] = judged(KueueParts(1, [definition(n, OWNED) for n in "abcd"], [], []))
    assert "a, b, c and 1 more" in found.message
    assert "kubectl -n kueue-system delete secret -l owner=helm,name=kueue" in found.fix
