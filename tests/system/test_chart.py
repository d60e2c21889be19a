"""helm renders the chart: the committed manifests are its output, and the common values have their effect."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from queuectl.cluster.apply import Document, manifests, older_manifests
from queuectl.localcluster import build
from queuectl.localcluster.prometheus import check_rules
from queuectl.localcluster.versions import kubectl
from tests.support import chart
from tests.support.chart import (
    BASE_VALUES,
    CHART,
    DEPLOY,
    WEBHOOK,
    documents,
    helm,
    rendered,
)
from tests.support.chart_values import ALL, IMAGE, RUNBOOK, by_name, of_kind, pod

pytestmark = pytest.mark.system


@pytest.fixture(scope="module")
def all_documents() -> list[Any]:
    return documents(ALL)


def test_the_committed_manifests_are_those_of_the_chart() -> None:
    rendered = chart.manifests()
    folders = ("base", "older-servers", "optional")
    committed = {file for folder in folders for file in (DEPLOY / folder).glob("*.yaml")}
    assert {file for file in committed if file.name != "kustomization.yaml"} == {*rendered}
    for file, text in rendered.items():
        assert file.read_text() == text, f"{file.name}: run `make manifests`"


def test_lint_has_no_findings() -> None:
    for values in (IMAGE, ALL):
        for release in ("1.33", "1.36"):
            mutation = {"mutation": "auto" if release == "1.33" else "policy"}
            given = {**values, **mutation}
            done = helm("lint", CHART, "--strict", "--kube-version", release, values=given)
            findings = [line for line in done.stdout.splitlines() if line.startswith("[")]
            assert (done.returncode, findings) == (0, ["[INFO] Chart.yaml: icon is recommended"])


@pytest.mark.parametrize(
    ("values", "release", "message"),
    [
        ({}, "1.36", "image.repository is required"),
        (IMAGE, "1.32", "chart requires kubeVersion: >=1.33.0-0"),
        ({**IMAGE, "mutation": "policy"}, "1.33", "mutation: policy needs Kubernetes 1.36"),
        ({**IMAGE, "mutation": "policy"}, "v1.35.4-gke.1", "set the value mutation to auto"),
        ({**IMAGE, "mutation": "none"}, "1.36", "mutation"),
        ({**IMAGE, "webhook": {"replicas": 0}}, "1.36", "webhook/replicas"),
        ({**IMAGE, "replicaCount": 2}, "1.36", "'replicaCount' not allowed"),
        ({**IMAGE, "replicas": "2"}, "1.36", "got string, want integer"),
        ({**IMAGE, "settings": {"QUEUECTL_LISTEN": "0.0.0.0:80"}}, "1.36", "QUEUECTL_LISTEN"),
        ({**IMAGE, "prometheusRule": {"enabled": True}}, "1.36", "runbookUrl is required"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_wrong_values_are_refused(values: Mapping[str, Any], release: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        documents(values, release)


def test_the_containers_read_the_certificate_authority_and_the_passwords() -> None:
    shown = pod(ALL)
    [volume] = [one for one in shown["volumes"] if one["name"] == "database"]
    files = {
        item["path"]: source["secret"]["name"]
        for source in volume["projected"]["sources"]
        for item in source["secret"]["items"]
    }
    assert files.pop("ca.crt") == "database-ca"
    assert set(files.values()) == {"queuectl-database"}
    for container in (*shown["initContainers"], *shown["containers"]):
        env = {one["name"]: one.get("value") for one in container["env"]}
        [mount] = [one for one in container["volumeMounts"] if one["name"] == "database"]
        assert (env["QUEUECTL_DATABASE_PGBOUNCER"], "QUEUECTL_DATABASE_DIRECT_URL" in env) == (
            "transaction",
            True,
        )
        assert (env["PGSSLMODE"], env["PGSSLROOTCERT"]) == (
            "verify-full",
            f"{mount['mountPath']}/ca.crt",
        )
        passwords = {value for name, value in env.items() if name.endswith("PASSWORD_FILE")}
        assert passwords <= {f"{mount['mountPath']}/{name}" for name in files}
        assert len(passwords) == len([name for name in env if name.endswith("DATABASE_URL")])


def test_the_values_of_the_pods_are_in_the_pods() -> None:
    shown = pod(ALL)
    for name in ("imagePullSecrets", "nodeSelector", "tolerations", "affinity"):
        assert shown[name] == ALL[name]
    [container] = shown["containers"]
    env = {one["name"]: one.get("value") for one in container["env"]}
    assert (env["QUEUECTL_IN_FLIGHT"], env["QUEUECTL_FORCE_DELETE_SECONDS"]) == ("16", "300")
    assert ALL["extraVolumeMounts"][0] in container["volumeMounts"]
    assert ALL["extraVolumes"][0] in shown["volumes"]


def test_the_rules_are_those_of_the_files_with_links_to_the_runbook(
    all_documents: list[Any], tmp_path: Path
) -> None:
    for rule in of_kind(all_documents, "PrometheusRule"):
        file = tmp_path / f"{rule['metadata']['name']}.yaml"
        file.write_text(yaml.safe_dump(rule["spec"]))
        assert rule["metadata"]["labels"]["release"] == "prometheus"
        assert check_rules(file).count("SUCCESS") == 1
    alerts, recording = (
        yaml.safe_load((CHART / "rules" / f"{name}.yaml").read_text())
        for name in ("alerts", "rules")
    )
    specs = [rule["spec"] for rule in of_kind(all_documents, "PrometheusRule")]
    linked = yaml.safe_load(yaml.safe_dump(alerts).replace("RUNBOOK_URL", RUNBOOK))
    assert specs == [linked, recording]


def test_prometheus_finds_the_metrics_port_of_each_pod(all_documents: list[Any]) -> None:
    [monitor] = of_kind(all_documents, "ServiceMonitor")
    selected = monitor["spec"]["selector"]["matchLabels"].items()
    [service] = [one for one in of_kind(all_documents, "Service") if selected <= one["metadata"]["labels"].items()]  # fmt: skip
    assert [port["name"] for port in service["spec"]["ports"]] == [
        monitor["spec"]["endpoints"][0]["port"]
    ]
    assert "annotations" not in service["metadata"], "else Prometheus would scrape it twice"


def test_each_dashboard_is_a_config_map(all_documents: list[Any]) -> None:
    found: dict[str, str] = {}
    maps = of_kind(all_documents, "ConfigMap")
    for one in [one for one in maps if one["metadata"]["name"] != "queuectl-ca"]:
        assert one["metadata"]["labels"]["grafana_dashboard"] == "1"
        found |= one["data"]
    committed = {
        file.name: file.read_text().rstrip("\n") for file in (CHART / "dashboards").iterdir()
    }
    assert {name: text.rstrip("\n") for name, text in found.items()} == committed


def test_the_base_is_the_chart_without_opt_ins_and_monitoring() -> None:
    assert by_name(documents(BASE_VALUES)) == by_name(manifests())


def test_the_manifests_for_older_servers_are_the_chart_with_the_webhook() -> None:
    expected = by_name(documents(BASE_VALUES | WEBHOOK, "1.33"))
    assert by_name(older_manifests()) == expected
    built = subprocess.run(
        [build.program(kubectl()), "kustomize", DEPLOY / "older-servers"],
        capture_output=True,
        check=True,
    )
    kustomized = by_name(yaml.safe_load_all(built.stdout))
    assert list(map(words, kustomized.values())) == [words(expected[name]) for name in kustomized]
    assert kustomized.keys() == expected.keys()


def words(document: Document) -> list[str]:
    """kustomize changes the line breaks of expressions."""
    return json.dumps(document, sort_keys=True).replace("\\n", " ").split()


def test_the_account_of_an_operator_that_is_not_installed_is_not_trusted() -> None:
    account = "system:serviceaccount:ray-system:kuberay-operator"
    trusting = [name for name, text in rendered(BASE_VALUES).items() if account in text]
    assert "validating-policies" in trusting
    without = rendered({**BASE_VALUES, "kubeRayOperator": {"serviceAccount": ""}})
    assert [name for name, text in without.items() if "ray-system" in text] == []
    assert "system:serviceaccount:jobset-system:" in without["validating-policies"]
