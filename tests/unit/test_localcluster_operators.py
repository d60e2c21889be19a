"""Operators of a local cluster: their order, and their webhooks on loopback."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import pytest
import yaml

from queuectl.localcluster import ClusterSpec
from queuectl.localcluster.installation import webhooks
from queuectl.localcluster.operators import OPERATORS, with_needs
from queuectl.localcluster.versions import ALL_UNITS, ON_DEMAND

URL = "https://127.0.0.1:20000"


def hook(name: str, resource: str) -> dict[str, Any]:
    return {
        "name": name,
        "clientConfig": {"service": {"name": "s", "namespace": "n", "path": f"/{name}"}},
        "rules": [{"apiGroups": ["x"], "operations": ["CREATE"], "resources": [resource]}],
    }


@pytest.fixture
def manifests(tmp_path: Path) -> Path:
    found = [hook("own", "jobsets"), hook("pod", "pods"), hook("other", "others")]
    documents = [
        {"kind": f"{kind}WebhookConfiguration", "metadata": {"name": "c"}, "webhooks": hooks}
        for kind, hooks in (("Mutating", found), ("Validating", found[2:]))
    ]
    path = tmp_path / "webhooks.yaml"
    path.write_text(yaml.safe_dump_all(documents))
    return path


def test_webhooks_on_the_own_kinds_and_on_pods_are_served_on_loopback(manifests: Path) -> None:
    [mutating] = webhooks(OPERATORS["jobset"], manifests, {"jobsets"}, URL, b"pem")
    assert mutating["metadata"] == {"name": "jobset-mutating"}
    assert [one["clientConfig"] for one in mutating["webhooks"]] == [
        {"url": f"{URL}/{name}", "caBundle": base64.b64encode(b"pem").decode()}
        for name in ("own", "pod")
    ]


def test_webhooks_on_pods_see_only_the_pods_of_the_operator(manifests: Path) -> None:
    [mutating] = webhooks(OPERATORS["jobset"], manifests, {"jobsets"}, URL, b"pem")
    own, pod = mutating["webhooks"]
    assert "objectSelector" not in own
    assert pod["objectSelector"]["matchExpressions"] == [
        {"key": "jobset.sigs.k8s.io/jobset-name", "operator": "Exists"}
    ]


def test_an_operator_starts_once_and_after_those_that_it_needs() -> None:
    for name, operator in OPERATORS.items():
        order = [one.name for one in with_needs([name, name])]
        assert order == [*(one.name for one in with_needs(operator.needs)), name]


def test_every_operator_is_part_of_the_control_plane_or_built_on_demand() -> None:
    units = [unit.key for unit in (*ALL_UNITS, *ON_DEMAND)]
    assert all(units.count(one.unit.key) == 1 for one in OPERATORS.values())


def test_an_unknown_operator_is_refused() -> None:
    with pytest.raises(ValueError, match="'jobsets' is none of training-operator, jobset"):
        ClusterSpec(operators=("jobsets",))
