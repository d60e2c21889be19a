"""The checks of a gang follow the states of its requests for nodes."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from queuectl.domain.checks import (
    PROVISIONING,
    AdmissionCheck,
    CheckRule,
    Checks,
    CheckState,
    CheckStatus,
)
from queuectl.domain.ledger import State
from queuectl.domain.provisioning import ProvisioningConfig, ProvisioningRecord, RequestState
from queuectl.domain.quantity import GPU
from queuectl.domain.queues import ClusterQueue, FlavorQuotas, LocalQueue, ResourceGroup
from queuectl.domain.snapshot import NO_END, CapacityLease
from queuectl.domain.workload import Placement, PodSetPlacement
from queuectl.lifecycle.provisioning import reports
from queuectl.objects.kubernetes.provisioning import request_name, template_name
from queuectl.state.provisioning import ProvisioningRequests
from tests.unit.test_state import CONFIG, LIVE, RESUMED

LABEL = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
FLAVORS = tuple(FlavorQuotas(name, {GPU: 16}) for name in ("spot", "bought"))
CHECK = AdmissionCheck(
    "nodes", PROVISIONING, settings="p", provisioning=ProvisioningConfig("p", "c", retries=0)
)
PATIENT = replace(CHECK, provisioning=ProvisioningConfig("p", "c"))
QUEUE = replace(
    CONFIG.cluster_queues["cq"],
    groups=(ResourceGroup((GPU,), FLAVORS),),
    admission_checks=(CheckRule("nodes", frozenset({"spot"}), provisions=True),),
)
OTHER = ClusterQueue("other")


@pytest.mark.parametrize("leads_to", ["cq", "other", None])
def test_a_running_gang_whose_nodes_are_revoked_gets_another_flavor_wherever_its_local_queue_leads(
    leads_to: str | None,
) -> None:
    known = {} if leads_to is None else {("a", "q"): LocalQueue("a", "q", leads_to)}
    config = replace(
        CONFIG,
        cluster_queues={"cq": QUEUE, "other": OTHER},
        local_queues=known,
        checks={"nodes": CHECK},
    )
    placed = PodSetPlacement("main", (("n1", 1), ("n2", 1)), {GPU: "spot"})
    status = CheckStatus("nodes", CheckState.READY)
    entry = replace(
        LIVE, state=State.RUNNING, placement=Placement((placed,)), checks=Checks((status,))
    )
    requests = ProvisioningRequests()
    name, revoked = request_name(entry, "nodes"), RequestState.REVOKED
    requests.put(ProvisioningRecord("a", name, "r", 1, gang=entry.uid, state=revoked))
    (report,) = reports(entry, RESUMED, requests, config, 100.0)
    assert report.state is CheckState.RETRY
    assert [flavor for flavor, _ in report.unasked] == ["spot"]


@pytest.mark.parametrize("awaits_nodes", [True, False])
def test_a_gang_that_waits_for_nodes_whose_request_is_deleted_queues_again(
    awaits_nodes: bool,
) -> None:
    """Nothing would end its hold: no booking expires."""
    nodes = () if awaits_nodes else (("n1", 1), ("n2", 1))
    placed = PodSetPlacement("main", nodes, {GPU: "spot"}, awaits_nodes=awaits_nodes)
    entry = replace(
        LIVE,
        state=State.RESERVED,
        placement=None,
        lease=CapacityLease(Placement((placed,)), (), 0.0, NO_END),
        checks=Checks((CheckStatus("nodes", CheckState.READY),)),
    )
    config = replace(CONFIG, cluster_queues={"cq": QUEUE}, checks={"nodes": PATIENT})
    found = reports(entry, RESUMED, ProvisioningRequests(), config, 100.0)
    expected = [(CheckState.RETRY, "the request is deleted")] if awaits_nodes else []
    assert [(report.state, report.message) for report in found] == expected


@pytest.mark.parametrize("length", range(200, 250))
@pytest.mark.parametrize("check", ["nodes", "Spot_Nodes", "spot.nodes", ".".join("a" * 126)])
def test_the_names_of_requests_and_templates_are_valid_and_distinct(
    length: int, check: str
) -> None:
    """The API server refuses a name in which a dot is before a dash."""
    entry = replace(LIVE, name="t" * length)
    checks = [check, check.lower().replace("_", "-").replace(".", "-"), f"{check}2"]
    requests = {request_name(entry, each) for each in checks}
    templates = {template_name(each, podset) for each in requests for podset in ("a.b", "a-b")}
    assert len(requests) == len({*checks})
    assert len(templates) == 2 * len(requests)
    for name in requests | templates:
        assert re.fullmatch(f"{LABEL}([.]{LABEL})*", name)
        assert len(name) <= 253
