"""helm renders the chart: the committed manifests are its output, and each value has its effect."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import yaml

from queuectl.cluster.apply import manifests as base
from queuectl.localcluster.prometheus import check_rules
from tests.support import chart
from tests.support.chart import BASE_VALUES, CHART, DEPLOY, documents, helm

pytestmark = pytest.mark.system

SUPPORTED = ("1.36", "1.37")
IMAGE = {"image": {"repository": "registry.example.com/queuectl"}}
RUNBOOKS = "https://docs.example.com/how-to"
ALL: Mapping[str, Any] = {
    **IMAGE,
    "imagePullSecrets": [{"name": "registry"}],
    "database": {"sslMode": "verify-full", "caSecretName": "database-ca", "passwordFiles": True, "pgbouncer": "transaction"},
    "settings": {"QUEUECTL_IN_FLIGHT": "16"},
    "podLabels": {"team": "platform"},
    "podAnnotations": {"note": "text"},
    "nodeSelector": {"pool": "system"},
    "tolerations": [{"key": "system", "operator": "Exists"}],
    "affinity": {"nodeAffinity": {}},
    "extraVolumes": [{"name": "oidc", "secret": {"secretName": "oidc"}}],
    "extraVolumeMounts": [{"name": "oidc", "mountPath": "/etc/queuectl/oidc"}],
    "networkPolicy": {"apiFrom": [{"podSelector": {}}]},
    "serviceMonitor": {"enabled": True, "labels": {"release": "prometheus"}},
    "prometheusRule": {"enabled": True, "runbookBaseUrl": RUNBOOKS, "recordingRules": True, "labels": {"release": "prometheus"}},
    "dashboards": {"enabled": True, "annotations": {"folder": "queuectl"}},
    "kueueKeys": {"enabled": True},
    "queuedGpus": {"enabled": True},
    "forceDelete": {"enabled": True},
    "namespace": {"create": True},
}  # fmt: skip


def of_kind(found: list[Any], kind: str) -> list[Any]:
    return [one for one in found if one["kind"] == kind]


def pod(values: Mapping[str, Any]) -> Any:
    [deployment] = of_kind(documents(values), "Deployment")
    return deployment["spec"]["template"]["spec"]


@pytest.fixture(scope="module")
def all_documents() -> list[Any]:
    return documents(ALL)


def test_the_committed_manifests_are_those_of_the_chart() -> None:
    rendered = chart.manifests()
    committed = {*(DEPLOY / "optional").iterdir(), *(DEPLOY / "base").iterdir()}
    assert committed == {*rendered, DEPLOY / "base" / "kustomization.yaml"}
    for file, text in rendered.items():
        assert file.read_text() == text, f"{file.name}: run `make manifests`"


def test_lint_has_no_findings() -> None:
    for values in (IMAGE, ALL):
        done = helm("lint", CHART, "--strict", "--kube-version", SUPPORTED[0], values=values)
        findings = [line for line in done.stdout.splitlines() if line.startswith("[")]
        assert (done.returncode, findings) == (0, ["[INFO] Chart.yaml: icon is recommended"])


@pytest.mark.parametrize("release", SUPPORTED)
def test_the_chart_renders_for_each_supported_version(release: str) -> None:
    for values in (IMAGE, ALL):
        found = documents(values, release)
        assert {one["apiVersion"] for one in found if "AdmissionPolicy" in one["kind"]} == {
            "admissionregistration.k8s.io/v1"
        }


@pytest.mark.parametrize(
    ("values", "release", "message"),
    [
        ({}, "1.36", "image.repository is required"),
        (IMAGE, "1.35", "chart requires kubeVersion: >=1.36.0-0"),
        ({**IMAGE, "replicaCount": 2}, "1.36", "'replicaCount' not allowed"),
        ({**IMAGE, "replicas": "2"}, "1.36", "got string, want integer"),
        ({**IMAGE, "settings": {"QUEUECTL_LISTEN": "0.0.0.0:80"}}, "1.36", "QUEUECTL_LISTEN"),
        ({**IMAGE, "prometheusRule": {"enabled": True}}, "1.36", "runbookBaseUrl is required"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_wrong_values_are_refused(values: Mapping[str, Any], release: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        documents(values, release)


def test_each_object_is_in_the_namespace_of_the_release() -> None:
    found = documents(ALL, namespace="gpu-queues")
    assert "queuectl-system" not in str(found)
    assert {one["metadata"].get("namespace", "gpu-queues") for one in found} == {"gpu-queues"}
    [policy] = [one for one in of_kind(found, "ValidatingAdmissionPolicy") if one["metadata"]["name"] == "queuectl-pods"]  # fmt: skip
    assert "system:serviceaccount:gpu-queues:queuectl" in str(policy)


def test_the_training_operator_is_named_in_both_lists() -> None:
    operator = {"namespace": "training", "serviceAccount": "operator"}
    text = str(documents({**IMAGE, "trainingOperator": operator}))
    assert text.count("system:serviceaccount:training:operator") == 2
    assert "kubeflow:" not in text


@pytest.mark.parametrize(
    ("image", "expected"),
    [
        ({"repository": "r/q"}, f"r/q:{version('queuectl')}"),
        ({"repository": "r/q", "tag": "main"}, "r/q:main"),
        ({"repository": "r/q", "tag": "main", "digest": f"sha256:{'0' * 64}"}, f"r/q@sha256:{'0' * 64}"),
    ],
)  # fmt: skip
def test_the_migration_and_the_controller_run_the_same_image(image: Any, expected: str) -> None:
    shown = pod({"image": image})
    assert [one["image"] for one in (*shown["initContainers"], *shown["containers"])] == [
        expected
    ] * 2


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


def test_only_the_namespace_of_prometheus_reads_the_metrics() -> None:
    [policy] = of_kind(documents(IMAGE), "NetworkPolicy")
    metrics = next(
        rule for rule in policy["spec"]["ingress"] if rule["ports"] == [{"port": "metrics"}]
    )
    [source] = metrics["from"]
    assert source["namespaceSelector"]["matchLabels"] == {
        "kubernetes.io/metadata.name": "monitoring"
    }
    none = documents({**IMAGE, "networkPolicy": {"metricsFrom": []}})
    assert [rule["ports"] for rule in of_kind(none, "NetworkPolicy")[0]["spec"]["ingress"]] == [
        [{"port": "https"}]
    ]
    assert not of_kind(documents({**IMAGE, "networkPolicy": {"enabled": False}}), "NetworkPolicy")


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
    linked = yaml.safe_load(yaml.safe_dump(alerts).replace("RUNBOOK_BASE", RUNBOOKS))
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
    for one in of_kind(all_documents, "ConfigMap"):
        assert one["metadata"]["labels"]["grafana_dashboard"] == "1"
        found |= one["data"]
    committed = {
        file.name: file.read_text().rstrip("\n") for file in (CHART / "dashboards").iterdir()
    }
    assert {name: text.rstrip("\n") for name, text in found.items()} == committed


def test_the_base_is_the_chart_without_opt_ins_and_monitoring() -> None:
    def names(found: list[Any]) -> set[tuple[str, str]]:
        return {(one["kind"], one["metadata"]["name"]) for one in found}

    assert names(documents(BASE_VALUES)) == names([*base()])
