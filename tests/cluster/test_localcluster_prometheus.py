"""A Prometheus of a keeper with other programs: it has its own folder in that of the keeper, and ends with it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from queuectl.localcluster import LocalClusterError
from queuectl.localcluster.prometheus import Prometheus
from queuectl.localcluster.supervisor import KeeperHandle

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.system


@pytest.fixture
def keeper(tmp_path: Path) -> Iterator[KeeperHandle]:
    supervisor = KeeperHandle.spawn(tmp_path, remove=False)
    yield supervisor
    supervisor.shutdown()


def answers(server: Prometheus) -> bool:
    try:
        return server.query("vector(1)") != []
    except LocalClusterError:
        return False


def test_it_can_end_without_its_keeper(keeper: KeeperHandle) -> None:
    with Prometheus.start([], keeper=keeper) as server:
        assert answers(server)
        assert (keeper.directory / "prometheus" / "data").is_dir()
    assert not answers(server)
    assert not (keeper.directory / "prometheus").exists()
    assert keeper.alive()
    server.stop()


def test_it_ends_with_its_keeper(keeper: KeeperHandle) -> None:
    server = Prometheus.start([], keeper=keeper)
    keeper.shutdown()
    assert not answers(server)
    server.stop()


@pytest.mark.parametrize("shared", [True, False])
def test_a_failed_start_reports_the_reason_and_leaves_nothing(
    keeper: KeeperHandle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, shared: bool
) -> None:
    wrong = tmp_path / "rules.yaml"
    wrong.write_text("groups: [{name: one, rules: [{record: x, expr: 'sum('}]}]")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with pytest.raises(
        LocalClusterError, match=r"Prometheus does not start; end of its log:(.|\n)*parse"
    ):
        Prometheus.start([], rules=[wrong], keeper=keeper if shared else None)
    assert not list(tmp_path.glob("*prometheus*"))
    assert keeper.alive()
