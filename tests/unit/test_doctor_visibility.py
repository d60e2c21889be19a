"""Findings on the aggregated API."""

from __future__ import annotations

from queuectl.cli.doctor.findings import Level
from queuectl.cli.doctor.visibility import judged_service


def test_an_aggregated_api_that_does_not_answer_is_a_problem_of_the_whole_cluster() -> None:
    down = {"type": "Available", "status": "False", "message": "no endpoints"}
    found = judged_service({"status": {"conditions": [{"type": "Other"}, down]}})
    assert found.level is Level.PROBLEM
    assert "no namespace of the cluster can be deleted" in found.message
    assert "no endpoints" in found.message
    assert "kubectl delete apiservice v1.visibility.queuectl.dev" in found.fix
    up = {"type": "Available", "status": "True"}
    assert judged_service({"status": {"conditions": [up]}}).level is Level.OK
    for nothing in ({}, {"status": None}, {"status": {"conditions": None}}):
        assert judged_service(nothing).level is Level.UNKNOWN
