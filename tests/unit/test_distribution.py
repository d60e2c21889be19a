"""Install commands fit the installation, and a conflicting distribution is named."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from queuectl import distribution
from queuectl.cli.main import app
from queuectl.distribution import DISTRIBUTION, OTHER_PROJECT, conflict, install_command

CLONE = "'.[server]' in a clone of queuectl"


@pytest.mark.parametrize(
    ("receipt", "published", "command"),
    [
        (None, False, f"pip install {CLONE}"),
        ("uv-receipt.toml", False, f"uv tool install --force {CLONE}"),
        ("pipx_metadata.json", False, f"pipx install --force {CLONE}"),
        (None, True, f"pip install '{DISTRIBUTION}[server]'"),
        ("uv-receipt.toml", True, f"uv tool install --force '{DISTRIBUTION}[server]'"),
        ("pipx_metadata.json", True, f"pipx install --force '{DISTRIBUTION}[server]'"),
    ],
)
def test_the_install_command_fits_the_installation(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    receipt: str | None,
    published: bool,
    command: str,
) -> None:
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    monkeypatch.setattr(distribution, "PUBLISHED", published)
    if receipt:
        (tmp_path / receipt).touch()
    assert install_command("server") == command


def test_the_version_command_warns_of_the_distribution_of_another_project(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert conflict() is None
    metadata = tmp_path / f"{OTHER_PROJECT}-9.9.dist-info" / "METADATA"
    metadata.parent.mkdir()
    metadata.write_text(f"Metadata-Version: 2.1\nName: {OTHER_PROJECT}\nVersion: 9.9\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    answer = CliRunner().invoke(app, ["version"])
    assert answer.exit_code == 0
    assert answer.stdout.startswith("queuectl ")
    assert f"warning: the distribution {OTHER_PROJECT} 9.9 of another project" in answer.stderr
