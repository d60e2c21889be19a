"""The workflows and the support policy agree with the project, and the workflows have no more rights than they need."""

from __future__ import annotations

import json
import re
import subprocess
import tomllib
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from queuectl.db.embedded import MINIMUM_MAJOR
from queuectl.localcluster.versions import ALL_UNITS, KUBERNETES, ON_DEMAND, SUPPORTED
from tests.image.programs import BUILDKIT
from tests.packaging.krew import archive_name
from tests.packaging.versions import ROOT
from tests.real.programs import CONTAINERD, COREDNS
from tests.support.prometheus_operator import PROMETHEUS_OPERATOR
from tests.support.workflows import ACTIONLINT

FOLDER: Final = ROOT / ".github/workflows"
WORKFLOWS: Final = {file.stem: yaml.safe_load(file.read_text()) for file in FOLDER.glob("*.yml")}
JOBS: Final = [(name, job) for name, flow in WORKFLOWS.items() for job in flow["jobs"].items()]
POLICY: Final = (ROOT / "docs/reference/support.md").read_text().partition("\n## ")[0]
OF_TESTS: Final = (ACTIONLINT, BUILDKIT, CONTAINERD, COREDNS, PROMETHEUS_OPERATOR)
RENOVATE: Final = json.loads((ROOT / ".github/renovate.json").read_text())


def steps() -> list[dict[str, Any]]:
    return [step for _, (_, job) in JOBS for step in job.get("steps", ())]


def matrix(job: str) -> list[str]:
    [values] = WORKFLOWS["test"]["jobs"][job]["strategy"]["matrix"].values()
    return list(values)


def supported(part: str) -> set[str]:
    """The versions in a row of the table of the policy. ``1.33 to 1.37`` has all between."""
    [row] = re.findall(rf"^\| {part} \| ([^|]*) \|", POLICY, re.MULTILINE)
    if found := re.fullmatch(r"(\d+)\.(\d+) to \1\.(\d+)", row.strip()):
        major, first, last = found.groups()
        return {f"{major}.{minor}" for minor in range(int(first), int(last) + 1)}
    return set(re.findall(r"[\d.]*\d", row))


def test_each_action_is_pinned_by_its_full_version() -> None:
    used = [step["uses"] for step in steps() if "uses" in step]
    assert used
    assert [one for one in used if not re.fullmatch(r"[\w/-]+@v\d+\.\d+\.\d+", one)] == []


@pytest.mark.parametrize(("workflow", "job"), JOBS, ids=lambda part: str(part)[:30])
def test_each_job_has_a_time_limit_and_each_workflow_can_only_read_by_default(
    workflow: str, job: tuple[str, dict[str, Any]]
) -> None:
    assert WORKFLOWS[workflow]["permissions"] == {"contents": "read"}
    _, described = job
    assert "timeout-minutes" in described or "uses" in described


def test_a_pull_request_runs_without_secrets() -> None:
    # YAML 1.1 reads the key `on` as true.
    triggers = {trigger for flow in WORKFLOWS.values() for trigger in flow[True]}
    assert "pull_request_target" not in triggers
    assert "secrets." not in (FOLDER / "test.yml").read_text()


def test_no_script_contains_an_expression() -> None:
    """An expression in a script is replaced before the shell reads it, so that its value could be code."""
    scripts = [step["run"] for step in steps() if "run" in step]
    allowed = re.compile(r"\$\{\{ matrix\.\w+ \}\}")
    assert [script for script in scripts if "${{" in allowed.sub("", script)] == []


def make_targets() -> set[str]:
    return set(re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


def test_contributors_read_about_each_make_target() -> None:
    page = (ROOT / "docs" / "contributing.md").read_text()
    described = set(re.findall(r"`make ([a-z0-9-]+)", page))
    assert make_targets() - described == set()


def test_make_help_lists_each_target_with_a_description() -> None:
    printed = subprocess.run(["make", "-C", ROOT, "--no-print-directory", "help"], capture_output=True, text=True, check=True)  # fmt: skip
    listed = {line.split("\t")[0].strip() for line in printed.stdout.splitlines()}
    assert listed == make_targets() - {"controlplane", "operators"}


def test_each_make_target_of_the_workflows_exists() -> None:
    targets = make_targets()
    used = [
        word
        for step in steps()
        for words in re.findall(r"\bmake ([a-z][a-z0-9 -]*)", step.get("run", ""))
        for word in words.split()
    ]
    assert len(used) > 5
    assert set(used) - targets == set()


def test_python_is_tested_as_the_policy_and_the_package_state() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    prefix = "Programming Language :: Python :: 3."
    named = {
        f"3.{line.removeprefix(prefix)}"
        for line in project["classifiers"]
        if line.startswith(prefix)
    }
    assert set(matrix("python")) == named == supported("Python, for the packages")
    image = re.findall(r"BASE=python:(\S+)-slim", (ROOT / "Dockerfile").read_text())
    assert set(image) == supported("Python in the image")
    assert set(image) <= set(matrix("system")) <= named


def test_postgres_is_tested_as_the_policy_states() -> None:
    assert set(matrix("postgres")) == supported("PostgreSQL")
    assert min(map(int, matrix("postgres"))) == MINIMUM_MAJOR


def test_kubernetes_is_tested_as_the_policy_states() -> None:
    minors = [release.rpartition(".")[0] for release in SUPPORTED]
    assert supported("Kubernetes") == set(minors)
    assert matrix("versions") == minors


def test_renovate_finds_each_program_that_is_built_from_source() -> None:
    found = set()
    for manager in RENOVATE["customManagers"]:
        patterns = [pattern.strip("/") for pattern in manager["managerFilePatterns"]]
        [text] = manager["matchStrings"]
        expression = re.compile(text.replace("(?<", "(?P<"))
        for file in _files():
            if any(re.search(pattern, str(file)) for pattern in patterns):
                found |= {
                    (one.groupdict().get("depName"), one["currentValue"])
                    for one in expression.finditer((ROOT / file).read_text())
                }
    units = {(unit.module, unit.version) for unit in (*ALL_UNITS, *ON_DEMAND, *OF_TESTS)}
    kubernetes = {(module, number) for module, number in units if module == "k8s.io/kubernetes"}
    assert units - kubernetes <= found
    assert (None, KUBERNETES) in found
    assert {name for name, _ in found} >= {"uv"}


def _files() -> list[Path]:
    found = [ROOT / "Dockerfile", ROOT / "Makefile", *(ROOT / "queuectl/localcluster").glob("*.py")]
    return [file.relative_to(ROOT) for file in (*found, *(ROOT / "tests").rglob("*.py"))]


def test_only_the_sdist_and_the_wheel_go_to_pypi(tmp_path: Path) -> None:
    """An upload with another file of a release fails."""
    [command] = [
        one["run"] for one in WORKFLOWS["release"]["jobs"]["pypi"]["steps"] if "run" in one
    ]
    packages = {"queuectl_k8s-1.2.0-py3-none-any.whl", "queuectl_k8s-1.2.0.tar.gz"}
    (tmp_path / "dist").mkdir()
    for name in (*packages, "queuectl.cdx.json", "queuectl.yaml", archive_name()):
        (tmp_path / "dist" / name).touch()
    subprocess.run(command, shell=True, check=True, cwd=tmp_path)
    assert {file.name for file in (tmp_path / "dist").iterdir()} == packages
