"""docs/reference/rights.md names for each right of queuectl in deploy/ the step that needs it, and a test in which it is used."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from queuectl.cluster.apply import older_manifests, opt_ins, optional
from queuectl.objects.kinds import KINDS

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "reference" / "rights.md"
HEADER = "| verbs | resources | where | step | test |"
JOB_KINDS = "job kinds"
"""Stands for the resources of all of them."""
_RESOURCES = re.compile(r"(?P<names>[a-z/, ]+) \((?P<group>[a-z0-9.-]+)\)")


class Right(NamedTuple):
    verb: str
    resource: str
    group: str
    where: str


class Line(NamedTuple):
    verbs: str
    resources: str
    where: str
    step: str
    test: str

    def rights(self) -> Iterator[Right]:
        if self.resources == JOB_KINDS:
            for kind in KINDS.values():
                yield Right(self.verbs, kind.plural, kind.group, self.where)
            return
        found = _RESOURCES.fullmatch(self.resources)
        assert found is not None, self.resources
        group = "" if found["group"] == "core" else found["group"]
        for verb in self.verbs.split(", "):
            for resource in found["names"].split(", "):
                yield Right(verb, resource, group, self.where)


LINES = [
    Line(*(cell.strip() for cell in text.strip("|").split(" | ")))
    for text in PAGE.read_text().partition(HEADER)[2].partition("\n\n")[0].splitlines()[2:]
]


def granted() -> Iterator[Right]:
    """Of all roles bound to queuectl's own account, opt-ins included."""
    opted = (one for name in opt_ins() for one in optional(name))
    documents = [*older_manifests(), *opted]
    bound = {
        (one["roleRef"]["kind"], one["roleRef"]["name"])
        for one in documents
        if one["kind"] in ("ClusterRoleBinding", "RoleBinding")
        and {"kind": "ServiceAccount", "name": "queuectl"}.items() <= one["subjects"][0].items()
    }
    for document in documents:
        if (document["kind"], document["metadata"]["name"]) in bound:
            everywhere = document["kind"] == "ClusterRole"
            for rule in document.get("rules", ()):
                yield from of_rule(rule, everywhere)


def of_rule(rule: dict[str, Any], everywhere: bool) -> Iterator[Right]:
    named = "resourceNames" in rule
    where = ("named" if named else "everywhere") if everywhere else "own namespace"
    where += ", named" if named and not everywhere else ""
    for group in rule["apiGroups"]:
        for resource in rule["resources"]:
            for verb in rule["verbs"]:
                yield Right(verb, resource, group, where)


def test_the_page_explains_each_right_once_and_no_other() -> None:
    assert Counter(right for line in LINES for right in line.rights()) == Counter(granted())


@pytest.mark.parametrize("line", LINES, ids=lambda line: f"{line.verbs} {line.resources}")
def test_a_test_uses_it(line: Line) -> None:
    assert line.step
    path, _, name = line.test.strip("`").partition("::")
    assert re.search(rf"^ *(async )?def {name}\(", (ROOT / path).read_text(), re.MULTILINE)


def test_a_policy_that_the_page_names_exists() -> None:
    documents = older_manifests()
    there = {d["metadata"]["name"] for d in documents if d["kind"].endswith("AdmissionPolicy")}
    named = {
        name.replace("RESOURCE", kind.plural)
        for line in LINES
        for name in re.findall(r"policy `([a-zA-Z-]+)`", line.step)
        for kind in KINDS.values()
    }
    assert named
    assert named <= there
