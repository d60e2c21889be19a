"""The Python of the documentation runs against the API. ``make test-docs`` runs it on a real control plane."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from queuectl.domain.commands import Command
from tests.api.serving import serving
from tests.api.support import (
    LIVES,
    FixedClusterReader,
    FixedDiagnoser,
    job,
    live_through,
)
from tests.doubles.store import MemoryStore
from tests.planner.build import gang, holding, node, podset, world
from tests.support.python_pages import NOTEBOOK, PAGE, blocks, run


class ObeyedStore(MemoryStore):
    """A store whose commands are executed at once."""

    async def add_command(self, command: Command) -> Command:
        kept = await super().add_command(command)
        self.database.outcomes[kept.id] = "done"
        return kept


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    store = ObeyedStore()
    for name, life in (("train", "running"), ("next", "pending")):
        for change in live_through(job(name), *LIVES[life]):
            store._write(change, 1)
    train = gang("train", podset(count=1, gpu=4))
    cluster = world([node("n1", gpu=8)], [], [holding(train, {"n1": 1})])
    with serving(
        store, FixedDiagnoser(), cluster_reader=FixedClusterReader(cluster, store)
    ) as served:
        yield served


@pytest.mark.parametrize("path", [PAGE, NOTEBOOK], ids=["page", "notebook"])
def test_its_code_runs(
    path: Path, address: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("QUEUECTL_SERVER", address)
    monkeypatch.setenv("KUBECONFIG", "/nowhere")
    run(path)
    assert len(blocks(path)) >= 7
    assert "add quota for 8 more nvidia.com/gpu" in capsys.readouterr().out
