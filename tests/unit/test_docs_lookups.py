"""The pages in which a reader looks up a code or a key have all of them."""

from __future__ import annotations

import json
import re
from enum import StrEnum

import pytest

from queuectl.cluster.apply import manifests
from queuectl.domain.diagnosis import Limit, Remedy
from queuectl.domain.reasons import Code
from queuectl.objects import keys
from queuectl.objects.kinds import DESCRIPTIONS
from tests.support.pages import PAGES
from tests.unit.test_reasons import of_pending_gangs

DEACTIVATED = {
    Code.DEACTIVATED,
    Code.REQUEUING_LIMIT,
    Code.MAX_EXECUTION_TIME,
    Code.CHECK_REJECTED,
}


def test_the_page_on_pending_gangs_has_a_heading_for_each_reason_code() -> None:
    headings = " ".join(re.findall(r"^### (.*)$", PAGES["why.md"].read_text(), re.MULTILINE))
    codes = {code for code in Code if re.search(rf"\b{code}\b", headings)}
    assert codes == of_pending_gangs() | DEACTIVATED


@pytest.mark.parametrize(
    ("section", "codes"), [("Blocking constraints", Limit), ("Suggested fixes", Remedy)]
)
def test_the_reference_has_each_constraint_and_each_fix(section: str, codes: type[StrEnum]) -> None:
    _, _, text = PAGES["explain.md"].read_text().partition(f"\n## {section}\n")
    table = text.partition("\n\n| code |")[2].partition("\n\n")[0]
    assert set(re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)) == set(map(str, codes))


def test_the_reference_has_each_label_and_annotation() -> None:
    text = PAGES["labels.md"].read_text()
    values = {value for name, value in vars(keys).items() if name.isupper()}
    suffixes = {value.removeprefix(keys.PREFIX) for value in values if isinstance(value, str)}
    foreign = {
        *(keys.KUEUE_PREFIX, keys.KUEUE_PODSET_LABEL, keys.KUEUE_WORKLOAD),
        *(keys.REPLICA_TYPE_LABEL, keys.JOB_NAME_LABEL, keys.JOB_PODSET, keys.NAMESPACE_NAME),
    }
    missing = {s for s in suffixes - foreign if f"{s}`" not in text}
    assert missing - {""} == set()


def test_the_page_on_uninstalling_resumes_the_jobs_of_each_kind() -> None:
    """One command for Jobs, one for TrainJobs, which have no templates, and one for the other kinds, by the rights of queuectl."""
    text = PAGES["uninstall.md"].read_text()
    [role] = [
        one
        for one in manifests()
        if (one["kind"], one["metadata"]["name"]) == ("ClusterRole", "queuectl")
    ]
    [verbs] = re.findall(r"select\(\.verbs == (\[.*?\])", text)
    [excluded] = re.findall(r"grep -vxE '(.*)'", text)
    named = [
        f"{rule['resources'][0]}.{rule['apiGroups'][0]}"
        for rule in role["rules"]
        if rule["verbs"] == json.loads(verbs)
    ]
    listed = {name for name in named if not re.fullmatch(excluded, name)}
    missing = [one for one in DESCRIPTIONS if f"{one.plural}.{one.group}" not in listed]
    assert len(listed) == len(DESCRIPTIONS) - len(missing)
    assert missing == [one for one in DESCRIPTIONS if one.patches is not None]
    assert all(f"kubectl get {one.plural} -A" in text for one in missing)
    assert {one.suspend for one in DESCRIPTIONS} == {"spec.runPolicy.suspend", "spec.suspend"}
