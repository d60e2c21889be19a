"""The chart agrees with the package, and its values with their schema and their page. tests/system/test_chart.py renders it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

import jsonschema
import pytest
import yaml

from queuectl.api.reading import merged
from queuectl.cluster.apply import older_manifests
from queuectl.cluster.server import MINIMUM, Server
from queuectl.control.settings import settings_names
from queuectl.distribution import version
from tests.support.chart import (
    CHART,
    DEPLOY,
    KINDS,
    PAGE,
    default,
    defaults,
    described,
    kinds,
    page,
)
from tests.support.codeblocks import fenced
from tests.support.pages import PAGES, ROOT

METADATA = yaml.safe_load((CHART / "Chart.yaml").read_text())
SCHEMA = json.loads((CHART / "values.schema.json").read_text())
DESCRIBED = dict(described())
GLOBAL = "global"
"""Values that Helm gives to each chart of a chart."""


def resolved(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    name = schema.get("$ref", "").removeprefix("#/definitions/")
    found: Mapping[str, Any] = SCHEMA["definitions"][name] if name else schema
    return found


def in_schema(schema: Mapping[str, Any], path: str = "") -> Iterator[str]:
    """The values of the schema, except the parts of those that are described as a whole."""
    operators = {
        f"{name}Operator": inner
        for pattern, inner in schema.get("patternProperties", {}).items()
        for name in re.findall(r"\w+(?=[|)])", pattern)
    }
    for name, inner in {**schema["properties"], **operators}.items():
        below = f"{path}.{name}".lstrip(".")
        if below in DESCRIBED or "properties" not in resolved(inner):
            yield below
        else:
            yield from in_schema(resolved(inner), below)


def in_file(values: Mapping[str, Any], path: str = "") -> Iterator[str]:
    """The values of values.yaml, in the same way."""
    for name, inner in values.items():
        below = f"{path}.{name}".lstrip(".")
        if below in DESCRIBED or not isinstance(inner, dict):
            yield below
        else:
            yield from in_file(inner, below)


def accepted(values: Mapping[str, Any]) -> bool:
    """With the defaults, as Helm does it: a null removes one."""
    validator = jsonschema.Draft7Validator(SCHEMA)
    return validator.is_valid(merged(defaults(), values))


def nested(path: str, value: Any) -> Any:
    for name in reversed(path.split(".")):
        value = {name: value}
    return value


def test_the_chart_has_the_version_of_the_package() -> None:
    assert METADATA["version"] == METADATA["appVersion"] == version()


def test_the_chart_refuses_servers_that_are_not_supported() -> None:
    assert METADATA["kubeVersion"] == f">={Server(MINIMUM)}.0-0"


def test_the_mutation_by_policies_is_refused_on_servers_that_need_the_webhook() -> None:
    oldest = min(minor for minor in range(30, 50) if not Server((1, minor)).needs)
    assert f'"<1.{oldest}.0-0"' in (CHART / "templates" / "checks.yaml").read_text()


def test_each_value_is_described_and_in_the_schema() -> None:
    assert list(DESCRIBED) == list(in_file(defaults()))
    assert {*DESCRIBED, GLOBAL} == set(in_schema(SCHEMA))


def test_the_page_has_each_value_with_its_default_and_description() -> None:
    assert PAGE.read_text() == page(), "run `make manifests`"


def test_the_chart_has_the_descriptions_of_the_kinds() -> None:
    assert KINDS.read_text() == kinds(), "run `make manifests`"


def test_the_schema_accepts_the_defaults() -> None:
    jsonschema.validate(defaults(), SCHEMA)


@pytest.mark.parametrize("group", sorted({path.rpartition(".")[0] for path in DESCRIBED}))
def test_an_unknown_value_is_refused(group: str) -> None:
    values = {"unknown": "x"}
    for name in reversed(group.split(".") if group else []):
        values = {name: values}  # type: ignore[dict-item]
    assert not accepted(values)
    assert not accepted({"unknownOperator": {"namespace": "x"}})


@pytest.mark.parametrize("path", DESCRIBED)
def test_a_value_of_another_type_is_refused(path: str) -> None:
    assert not accepted(nested(path, {"x": 1} if isinstance(default(path), str) else "text"))


NEEDED = [path for path in DESCRIBED if path.endswith("Operator.namespace")] + [
    *("webhook.replicas", "database.bundled.size", "tls.hosts"),
    *("queuedGpus.resources", "forceDelete.afterSeconds"),
    *("preemption.managedPriority", "preemption.priorityClasses", "preemption.namespaces"),
]


@pytest.mark.parametrize("path", NEEDED)
def test_a_value_that_an_object_cannot_lack_is_not_removed(path: str) -> None:
    """Otherwise an admission policy would name another account, for example."""
    assert not accepted(nested(path, None))


@pytest.mark.parametrize(
    "path", ["affinity", "networkPolicy.metricsFrom", "resources", "image.tag"]
)
def test_a_value_without_which_all_objects_are_complete_can_be_removed(path: str) -> None:
    assert accepted(nested(path, None))


@pytest.mark.parametrize(
    ("path", "wrong", "right"),
    [
        ("image.repository", "r.example.com/queuectl:1.2", "r.example.com:5000/a/queuectl"),
        ("image.repository", "{queuectl}", "queuectl"),
        ("image.tag", "1.2 #3", "v1.2-rc_3"),
        ("database.caSecretName", "A B", "ca.example"),
        ("tls.issuerRef", {"kind": "ClusterIssuer"}, {"kind": "ClusterIssuer", "name": "internal"}),
        ("tls.hosts", ["queues.example.com:8443"], ["*.example.com", "2001:db8::1", "::1"]),
        ("tls.hosts", ["192.0.2.7:8443"], ["192.0.2.7"]),
        ("queuedGpus.resources", "^a$\nb", "^a$"),
        ("prometheusRule.runbookUrl", "https://a.example/b: c", "https://a.example:80/b?c=d"),
        ("prometheusRule.runbookUrl", "https://a.example/{{b}}", "https://a.example/%7B"),
        *(
            (f"{group}.labels", {"app.kubernetes.io/name": "x"}, {"release": "x"})
            for group in ("dashboards", "serviceMonitor", "prometheusRule")
        ),
        ("podLabels", {"app.kubernetes.io/name": "x"}, {"team": "x"}),
    ],
)
def test_a_value_that_gives_a_wrong_object_is_refused(path: str, wrong: Any, right: Any) -> None:
    assert not accepted(nested(path, wrong))
    assert accepted(nested(path, right))


CONTRADICTING = {"QUEUECTL_TLS", "QUEUECTL_VISIBILITY_SECRET"}
"""Settings that cannot work with those that the chart sets."""


def test_a_setting_is_not_one_that_the_chart_sets() -> None:
    templates = [file.read_text() for file in (CHART / "templates").iterdir()]
    own = CONTRADICTING | set(re.findall(r"- name: (QUEUECTL_\w+)", "".join(templates)))
    for name in settings_names():
        assert accepted({"settings": {name: "1"}}) == (name not in own), name
    assert not accepted({"settings": {"PATH": "/bin"}})
    assert not accepted({"settings": {"QUEUECTL_IN_FLIGHT": 16}})


def test_the_chart_accepts_the_settings_that_pages_show() -> None:
    settings = [
        yaml.safe_load(block.text)
        for file in PAGES.values()
        for block in fenced(file.read_text())
        if block.language == "yaml" and "QUEUECTL_" in block.text
    ]
    assert len(settings) >= 2
    assert [values for values in settings if not accepted(values)] == []


@pytest.mark.parametrize("folder", ["base", "older-servers"])
def test_the_kustomization_has_each_file_of_its_folder(folder: str) -> None:
    kustomization = yaml.safe_load((DEPLOY / folder / "kustomization.yaml").read_text())
    files = {file.name for file in (DEPLOY / folder).iterdir()}
    assert {*kustomization["resources"], "kustomization.yaml"} - {"../base"} == files


ADDRESS = re.compile(
    r"\b(deployment|statefulset|service)[ /](queuectl[a-z0-9-]*)|(queuectl[a-z0-9-]*)\.queuectl-system\.svc"
)


NAMED = re.compile(r"^kind: (Service|StatefulSet)\nmetadata:\n  name: (\S+)$", re.MULTILINE)


def test_pages_and_examples_name_services_and_workloads_of_the_chart() -> None:
    there = {
        (one["kind"].lower(), one["metadata"]["name"])
        for one in older_manifests()
        if one["kind"] in ("Deployment", "Service", "StatefulSet")
    }
    for template in ("bundled-database", "visibility"):
        text = (CHART / "templates" / f"{template}.yaml").read_text()
        there |= {(kind.lower(), name) for kind, name in NAMED.findall(text)}
    files = [*PAGES.values(), *(ROOT / "docs" / "examples").rglob("*.yaml")]
    named = {
        (found[1] or "service", found[2] or found[3])
        for file in files
        for line in file.read_text().splitlines()
        if "kubectl" in line or ".svc" in line
        for found in ADDRESS.finditer(line)
    }
    assert named >= {("service", "queuectl"), ("statefulset", "queuectl-webhook")}
    assert named <= there
