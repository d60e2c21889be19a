"""The labels of jobs in the ledger, by which lists are selected."""

from __future__ import annotations

import pytest

from queuectl.domain.ledger import State, violations
from queuectl.domain.queries import WorkloadFilter
from queuectl.domain.selectors import label_selector
from queuectl.objects.kinds import KINDS
from tests.control.alike import ALIKE
from tests.control.rig import gang, rig


@pytest.mark.parametrize("kind", ALIKE)
async def test_lists_know_the_labels_that_a_running_job_has_now(
    database_url: str, kind: str
) -> None:
    async def labeled(text: str) -> list[str]:
        page = await world.store.list_workloads(WorkloadFilter(labels=label_selector(text)))
        return [entry.uid for entry in page.entries]

    async with rig(database_url, 4) as world:
        document = gang(kind, "train", 1)
        document["metadata"]["labels"] |= {"run": "one", "team": "nlp"}
        uid = world.cluster.submit(document)
        before = await world.until_state(uid, State.RUNNING)
        assert await labeled("run=one,team") == [uid]
        resource = KINDS[kind].plural
        (job,) = world.cluster.server.all(resource)
        world.cluster.server.edit(resource, job, lambda d: d["metadata"]["labels"].update(run="2"))
        entry = await world.until_entry(
            uid, lambda entry: ("run", "2") in entry.labels, "the label"
        )
        assert (await labeled("run=one"), await labeled("run=2")) == ([], [uid])
        assert (entry.attempt, entry.since) == (before.attempt, before.since)
        assert violations(entry) == []
