"""The charge of a pod whose requests are transformed, excluded or unknown to its queue: the rule, and its effect on the plan."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest
import typer
import yaml
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from queuectl.cli.plan import plan_command
from queuectl.domain.quantity import PODS, Resources, parse_quantity
from queuectl.domain.rules import MOST, Rules
from queuectl.objects.configuration.queue_config import build

GPU = "nvidia.com/gpu"
Doc = dict[str, Any]

app = typer.Typer()
app.command()(plan_command)


def configuration(**resources: Any) -> Doc:
    return {"apiVersion": "config.kueue.x-k8s.io/v1beta2", "kind": "Configuration", "resources": resources}  # fmt: skip


def rules(transformations: list[Doc], excluded: tuple[str, ...] = ()) -> Rules:
    prefixes = list(excluded)
    body = configuration(transformations=transformations, excludeResourcePrefixes=prefixes)
    return build([body], 1).rules


def amounts(written: Mapping[str, str]) -> dict[str, int]:
    return {name: parse_quantity(name, text, round_up=True) for name, text in written.items()}


def to(source: str, strategy: str | None = "Replace", by: str | None = None, **outputs: str) -> Doc:
    """A transformation; output names are written with ``_`` and stand under ``example.com/``."""
    named = {f"example.com/{name.replace('_', '-')}": amount for name, amount in outputs.items()}
    rest = {"strategy": strategy, "multiplyBy": by}
    return {"input": source, "outputs": named} | {k: v for k, v in rest.items() if v is not None}


CREDITS = "example.com/credits"
OVERAGE = [to("e/mem", by="e/dev", over="1"), to("e/dev", "Retain", over="-1024")]

# what the pod asks, what it is charged
CASES: dict[str, tuple[list[Doc], dict[str, str], dict[str, str]]] = {
    "a request without transformation stays": ([to(GPU, credits="10")], {"cpu": "1"}, {"cpu": "1"}),
    "replace": ([to(GPU, credits="10")], {GPU: "2", "cpu": "1"}, {CREDITS: "20", "cpu": "1"}),
    "retain": ([to(GPU, "Retain", credits="10")], {GPU: "2"}, {GPU: "2", CREDITS: "20"}),
    "retain is the default": ([to(GPU, None, credits="10")], {GPU: "2"}, {GPU: "2", CREDITS: "20"}),
    "replace by nothing": ([to(GPU)], {GPU: "2", "cpu": "1"}, {"cpu": "1"}),
    "two sources of one output add up": (
        [to("e/mig-1g", credits="10"), to("e/mig-2g", credits="15")],
        {"e/mig-1g": "2", "e/mig-2g": "1"},
        {CREDITS: "35"},
    ),
    "an output is not transformed again": (
        [to(GPU, credits="2"), to(CREDITS, x="5")],
        {GPU: "3"},
        {CREDITS: "6"},
    ),
    "parts of a core count": ([to("cpu", credits="3000")], {"cpu": "100m"}, {CREDITS: "300"}),
    "factors can be fractions": ([to("memory", credits="3m")], {"memory": "100M"}, {CREDITS: "300k"}),
    "what is left rounds up once per pod": ([to("cpu", credits="1")], {"cpu": "1100m"}, {CREDITS: "2"}),
    "cpu can be an output": (
        [{"input": GPU, "strategy": "Replace", "outputs": {"cpu": "250m"}}],
        {GPU: "3"},
        {"cpu": "750m"},
    ),
    "multiplied by another request": (
        [to("e/cores", by="e/dev", total="1")],
        {"e/dev": "2", "e/cores": "20"},
        {"e/dev": "2", "example.com/total": "40"},
    ),
    "multiplied by part of a core": (
        [to("e/mem", "Retain", by="cpu", quota="1")],
        {"e/mem": "1024", "cpu": "500m"},
        {"e/mem": "1024", "cpu": "500m", "example.com/quota": "512"},
    ),
    "the multiplier is not asked for": ([to("e/cores", by="e/dev", total="1")], {"e/cores": "20"}, {"example.com/total": "20"}),
    "the retained amount is not multiplied": (
        [{"input": "e/a", "multiplyBy": "e/b", "outputs": {"e/a": "1"}}],
        {"e/a": "1", "e/b": "2"},
        {"e/a": "3", "e/b": "2"},
    ),
    "an allowance, exceeded": (OVERAGE, {"e/mem": "2048", "e/dev": "2"}, {"e/dev": "2", "example.com/over": "2048"}),
    "an allowance, used up": (OVERAGE, {"e/mem": "1024", "e/dev": "2"}, {"e/dev": "2"}),
    "an allowance, not used up, gives nothing back": (OVERAGE, {"e/mem": "512", "e/dev": "2"}, {"e/dev": "2"}),
    "an allowance takes nothing from what the pod asks itself": (
        [{"input": "e/credit", "strategy": "Replace", "outputs": {"e/gpu": "-1"}}],
        {"e/gpu": "8", "e/credit": "3"},
        {"e/gpu": "8"},
    ),
    "an output that the pod also asks for is added": (
        [{"input": "e/credit", "strategy": "Replace", "outputs": {"e/gpu": "1"}}],
        {"e/gpu": "1", "e/credit": "1"},
        {"e/gpu": "2"},
    ),
    "an output of the retained name is added": (
        [{"input": "e/gpu", "outputs": {"e/gpu": "5"}}],
        {"e/gpu": "1"},
        {"e/gpu": "6"},
    ),
    "pods are pods": ([to(PODS, credits="1")], {PODS: "1"}, {PODS: "1"}),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_a_pod_is_charged_what_the_transformations_make_of_it(name: str) -> None:
    transformations, asked, charged = CASES[name]
    found = rules(transformations).charged(Resources(amounts(asked)))
    assert dict(found) == amounts(charged)


EXCLUDED: dict[str, tuple[Doc, dict[str, int]]] = {
    "multiplies": (to("e/cores", by="x.com/dev", total="1"), {"example.com/total": 40}),
    "is transformed": (to("x.com/dev", total="3"), {"e/cores": 20, "example.com/total": 6}),
    "is transformed, and not retained": (
        to("x.com/dev", "Retain", total="3"),
        {"e/cores": 20, "example.com/total": 6},
    ),
    "is an output": (
        {"input": "e/cores", "strategy": "Replace", "outputs": {"x.com/dev": "1"}},
        {"x.com/dev": 20},
    ),
}


@pytest.mark.parametrize("how", EXCLUDED)
def test_only_the_request_for_an_excluded_resource_is_not_charged(how: str) -> None:
    transformation, charged = EXCLUDED[how]
    made = rules([transformation], excluded=("x.com/", "po"))
    asked = Resources({"x.com/dev": 2, "e/cores": 20, PODS: 1, "y.com/x.com/": 1})
    assert dict(made.charged(asked)) == {**charged, PODS: 1, "y.com/x.com/": 1}


def test_an_amount_beyond_all_bounds_counts_as_the_largest_there_is() -> None:
    made = rules([to("e/c", credits="10G")])
    assert made.charged(Resources({"e/c": 10**10}))[CREDITS] == MOST


requests = st.dictionaries(st.sampled_from(["cpu", "memory", GPU, "e/x"]), st.integers(1, 10**6))


@given(requests)
def test_without_transformations_the_pod_is_charged_what_it_asks(asked: dict[str, int]) -> None:
    assert Rules().charged(Resources(asked)) == Resources(asked)


factors = st.sampled_from(["-2", "0", "1m", "0.5", "3"])


@given(
    requests,
    st.dictionaries(st.sampled_from(["cpu", GPU, "e/x"]), st.tuples(factors, st.booleans())),
)
def test_a_charge_is_never_negative_and_what_is_retained_never_less(
    asked: dict[str, int], made: dict[str, tuple[str, bool]]
) -> None:
    transformations = [
        to(source, "Retain" if retain else "Replace", out=factor) for source, (factor, retain) in made.items()
    ]  # fmt: skip
    charged = rules(transformations).charged(Resources(asked))
    assert all(amount > 0 for amount in charged.values())
    for name, amount in asked.items():
        if name not in made or made[name][1]:
            assert charged[name] >= amount


# ---- through the plan


def flavor_and_queue(quota: Mapping[str, object]) -> list[Doc]:
    resources = [{"name": name, "nominalQuota": amount} for name, amount in quota.items()]
    group = {"coveredResources": list(quota), "flavors": [{"name": "any", "resources": resources}]}
    spec = {"namespaceSelector": {}, "resourceGroups": [group]}
    head = {"apiVersion": "kueue.x-k8s.io/v1beta2"}
    return [
        {**head, "kind": "ResourceFlavor", "metadata": {"name": "any"}},
        {**head, "kind": "ClusterQueue", "metadata": {"name": "cq"}, "spec": spec},
        {**head, "kind": "LocalQueue", "metadata": {"name": "lq"}, "spec": {"clusterQueue": "cq"}},
    ]


def job(name: str, pods: int, **requests: str) -> Doc:
    asked = {key.replace("gpu", GPU): amount for key, amount in requests.items()}
    limits = {key: amount for key, amount in asked.items() if "/" in key}
    container = {"name": "c", "resources": {"requests": asked, "limits": limits}}
    template = {"spec": {"containers": [container], "restartPolicy": "Never"}}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "labels": {"kueue.x-k8s.io/queue-name": "lq"}},
        "spec": {"parallelism": pods, "completions": pods, "template": template},
    }


def planned(documents: list[Doc], *options: str) -> tuple[list[str], dict[str, str]]:
    """Names of what starts, and of what waits with the code of its reason."""
    text = yaml.safe_dump_all(documents)
    result = CliRunner().invoke(
        app, ["-f", "-", "-o", "json", "--explain", "0", *options], input=text
    )
    assert result.exit_code == 0, result.output
    answer = json.loads(result.stdout)
    waits = {gang["workload"]: gang["reasons"][0]["code"] for gang in answer["pending"]}
    return [gang["workload"] for gang in answer["admitted"]], waits


@pytest.mark.parametrize(("quota", "starts"), [(79, False), (80, True)])
def test_quota_of_credits_is_what_gpus_cost(quota: int, starts: bool) -> None:
    settings = configuration(transformations=[to(GPU, credits="10")])
    gang = job("train", 4, gpu="2")
    admitted, waits = planned([settings, *flavor_and_queue({CREDITS: quota}), gang])
    assert (admitted, waits) == ((["default/train"], {}) if starts else ([], {"default/train": "ExceedsMaxQuota"}))  # fmt: skip


def test_running_gangs_are_charged_by_the_same_rule() -> None:
    settings = configuration(transformations=[to(GPU, credits="10")])
    shares = {
        "name": "main",
        "flavors": {CREDITS: "any"},
        "resourceUsage": {CREDITS: "40"},
        "count": 2,
    }
    template = job("x", 1, gpu="2")["spec"]["template"]
    running = {
        "apiVersion": "kueue.x-k8s.io/v1beta2",
        "kind": "Workload",
        "metadata": {"name": "old"},
        "spec": {
            "queueName": "lq",
            "podSets": [{"name": "main", "count": 2, "template": template}],
        },
        "status": {"admission": {"clusterQueue": "cq", "podSetAssignments": [shares]}},
    }
    quota = flavor_and_queue({CREDITS: 100})
    fits, fits_not = job("fits", 3, gpu="2"), job("waits", 4, gpu="2")
    assert planned([settings, *quota, running, fits]) == (["default/fits"], {})
    assert planned([settings, *quota, running, fits_not]) == ([], {"default/waits": "WaitingForQuota"})  # fmt: skip


@pytest.mark.parametrize(
    ("resources", "code"),
    [
        ({}, "NoMatchingFlavor"),
        ({"quotaCheckStrategy": "BlockUndeclared"}, "NoMatchingFlavor"),
        ({"quotaCheckStrategy": "IgnoreUndeclared"}, None),
        ({"excludeResourcePrefixes": ["memory"]}, None),
        ({"transformations": [to("memory")]}, None),
        ({"excludeResourcePrefixes": ["mem", "cp"]}, None),
        ({"excludeResourcePrefixes": ["nvidia.com/"]}, "NoMatchingFlavor"),
    ],
)
def test_a_resource_that_the_queue_does_not_cover_blocks_unless_a_rule_transforms_it(
    resources: Doc, code: str | None
) -> None:
    quota = flavor_and_queue({GPU: 8, "cpu": 8})
    asked = job("train", 1, gpu="1", cpu="1", memory="1Gi")
    admitted, waits = planned([configuration(**resources), *quota, asked])
    assert waits == ({"default/train": code} if code else {})
    assert admitted == ([] if code else ["default/train"])


def test_ignoring_undeclared_resources_ignores_no_quota_that_is_declared() -> None:
    settings = configuration(quotaCheckStrategy="IgnoreUndeclared")
    asked = job("train", 1, gpu="9", memory="1Gi")
    assert planned([settings, *flavor_and_queue({GPU: 8}), asked])[1] == {"default/train": "ExceedsMaxQuota"}  # fmt: skip


# ---- the source of the Configuration


def test_the_configuration_is_read_from_a_file_of_its_own_or_from_the_stream(tmp_path: Any) -> None:
    settings = tmp_path / "settings.yaml"
    settings.write_text(yaml.safe_dump(configuration(quotaCheckStrategy="IgnoreUndeclared")))
    documents = [*flavor_and_queue({GPU: 8}), job("train", 1, gpu="1", memory="1Gi")]
    assert planned(documents, "--config", str(settings))[0] == ["default/train"]
    assert planned(documents)[0] == []


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("apiVersion: queuectl.dev/v1\nkind: Cohort\nmetadata: {name: a}\n", "document 1 (Cohort/a): kind: queuectl.dev/v1 Cohort is not a Configuration"),
        ("apiVersion: queuectl.dev/v1\nkind: Configuration\nfairShare: {}\n", "document 1 (Configuration/default): fairShare: unknown field"),
        ("apiVersion: queuectl.dev/v1\nkind: Configuration\n", "is given twice, first as stdin: document 1 (Configuration/default)"),
    ],
)  # fmt: skip
def test_a_wrong_or_a_second_configuration_is_refused(tmp_path: Any, text: str, says: str) -> None:
    settings = tmp_path / "settings.yaml"
    settings.write_text(text)
    stream = yaml.safe_dump(configuration() if "twice" in says else job("train", 1))
    result = CliRunner().invoke(app, ["-f", "-", "--config", str(settings)], input=stream)
    assert result.exit_code == 2
    assert says in result.output.replace("\n", " ")
