"""Steps are printed when they end; without live output, a long step prints a progress line. A stop reports what it removed."""

from __future__ import annotations

import io
import os
import tempfile
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from queuectl.cli.main import app
from queuectl.demo import controller
from queuectl.demo import demo_run as module
from queuectl.demo.demo_run import Steps


def output(*, terminal: bool, fails: bool = False) -> str:
    out = io.StringIO()
    try:
        with Steps(Console(file=out, width=100, force_terminal=terminal)) as steps:
            steps.step("Building", "Starting")
            steps.tick("half")
            steps.step("Starting")
            if fails:
                raise RuntimeError
            steps.finish("All is up.")
    except RuntimeError:
        out.write("failed")
    return out.getvalue()


def test_each_step_is_printed_once_when_it_is_done():
    lines = output(terminal=False).splitlines()
    assert [line.split("  ")[0] for line in lines] == ["✓ Building", "✓ Starting", "All is up."]


def test_a_failed_step_is_not_printed_as_done():
    assert "✓ Starting" not in output(terminal=False, fails=True)


def test_a_terminal_gets_its_cursor_back_whatever_happens():
    shown = output(terminal=True, fails=True)
    assert shown.rindex("\x1b[?25h") > shown.rindex("\x1b[?25l")


def test_a_long_step_gives_a_sign_of_life(monkeypatch: pytest.MonkeyPatch):
    assert "half" not in output(terminal=False)
    monkeypatch.setattr(module, "_HEARTBEAT_SECONDS", 0.0)
    assert "half" in output(terminal=False)


def stop(monkeypatch: pytest.MonkeyPatch, folder: Path) -> tuple[int, str]:
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    monkeypatch.setenv("XDG_STATE_HOME", str(folder))
    result = CliRunner().invoke(app, ["demo", "--down"])
    return result.exit_code, result.stdout


def test_a_stop_without_the_cluster_names_the_folder_where_it_is_not(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    assert stop(monkeypatch, tmp_path) == (1, "No demo is running.\n")
    (tmp_path / controller.home_of("demo").name).mkdir()
    code, shown = stop(monkeypatch, tmp_path)
    assert code == 1
    assert f"Its cluster is not in {tmp_path}/queuectl/clusters." in shown
    assert not list(tmp_path.glob("queuectl-demo*"))


def test_a_demo_whose_cluster_was_half_removed_can_be_stopped(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    (tmp_path / "queuectl" / "clusters" / "demo" / "etcd").mkdir(parents=True)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    with pytest.raises(module.DemoIsUp, match="stop it with `queuectl demo --down`"):
        module.run(Console(file=io.StringIO()), keep=True)
    assert stop(monkeypatch, tmp_path) == (0, "The demo is stopped.\n")
    assert not list((tmp_path / "queuectl" / "clusters").iterdir())


def test_the_folder_of_another_user_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    home = controller.home_of("demo")
    home.mkdir()
    monkeypatch.setattr(controller, "home_of", lambda _: home)
    monkeypatch.setattr(os, "geteuid", lambda: home.stat().st_uid + 1)
    with pytest.raises(controller.ControllerFailed, match=f"{home} belongs to another user"):
        module.run(Console(file=io.StringIO()), keep=True)


def test_an_interrupted_stop_does_not_claim_that_everything_is_removed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    def interrupted(_: str) -> bool:
        raise KeyboardInterrupt

    monkeypatch.setattr(controller, "take_down", interrupted)
    code, shown = stop(monkeypatch, tmp_path)
    assert (code, shown) == (130, "\nInterrupted. Repeat the command to remove the rest.\n")
