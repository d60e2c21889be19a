"""``make release``: its conditions, and what it commits and tags."""

from __future__ import annotations

import datetime as dt
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from tests.packaging.release import NotReleased, Repository, notes

DAY: Final = dt.date(2027, 3, 1)
CHANGELOG: Final = "# Changelog\n\n## Unreleased\n\n- One change.\n"
PROJECT: Final = '[project]\nname = "queuectl-k8s"\nversion = "0.1.0"\n'


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    """A clone with a project, a lock file, a manifest and a changelog."""
    (tmp_path / "pyproject.toml").write_text(PROJECT)
    (tmp_path / "uv.lock").write_text('[[package]]\nname = "queuectl-k8s"\nversion = "0.1.0"\n')
    (tmp_path / "deploy").mkdir()
    (tmp_path / "deploy/controller.yaml").write_text("image: queuectl:0.1.0\n")
    (tmp_path / "CHANGELOG.md").write_text(CHANGELOG)
    made = Repository(tmp_path)
    made.git("init", "--quiet", "--initial-branch", "main")
    made.git("config", "user.name", "A Maintainer")
    made.git("config", "user.email", "maintainer@example.com")
    made.git("add", ".")
    made.git("commit", "--quiet", "--message", "The first version")
    return made


def test_a_release_dates_the_changelog_sets_the_version_commits_and_tags(
    repository: Repository,
) -> None:
    repository.release("0.2.0", DAY)
    assert repository.git("status", "--porcelain") == ""
    assert (
        repository.git("log", "-1", "--format=%s %D") == "Release 0.2.0 HEAD -> main, tag: v0.2.0"
    )
    assert repository.git("cat-file", "-t", "v0.2.0") == "tag"
    assert "queuectl:0.2.0" in (repository.root / "deploy/controller.yaml").read_text()
    assert 'version = "0.2.0"' in (repository.root / "uv.lock").read_text()
    dated = "## Unreleased\n\n## 0.2.0 - 2027-03-01\n\n- One change.\n"
    assert repository.changelog.read_text() == f"# Changelog\n\n{dated}"
    assert notes("0.2.0", repository.root) == "- One change."


def test_the_next_release_needs_new_changes(repository: Repository) -> None:
    repository.release("0.2.0", DAY)
    with pytest.raises(NotReleased, match="the section Unreleased is empty"):
        repository.release("0.3.0", DAY)


def _a_changed_file(repository: Repository) -> None:
    (repository.root / "uv.lock").write_text("")


def _a_new_file(repository: Repository) -> None:
    (repository.root / "new").write_text("")


def _another_branch(repository: Repository) -> None:
    repository.git("switch", "--quiet", "--create", "feature")


def _no_branch(repository: Repository) -> None:
    repository.git("switch", "--quiet", "--detach")


def _a_newer_release(repository: Repository) -> None:
    repository.git("tag", "v0.10.0")


@pytest.mark.parametrize(
    ("prepare", "version", "reason"),
    [
        (_a_changed_file, "0.2.0", "the working tree has changes"),
        (_a_new_file, "0.2.0", "the working tree has changes"),
        (_another_branch, "0.2.0", "the branch is feature, not main"),
        (_no_branch, "0.2.0", "the branch is detached, not main"),
        (_a_newer_release, "0.9.0", "0.9.0 is not newer than 0.10.0"),
        (_a_newer_release, "0.10.0", "0.10.0 is not newer than 0.10.0"),
        (lambda _: None, "v0.2.0", "not a version of the form"),
        (lambda _: None, "0.2", "not a version of the form"),
        (lambda _: None, "", "not a version of the form"),
    ],
)
def test_a_refused_release_changes_nothing(
    repository: Repository,
    prepare: Callable[[Repository], None],
    version: str,
    reason: str,
) -> None:
    prepare(repository)
    before = repository.git("rev-parse", "HEAD"), repository.git("status", "--porcelain")
    with pytest.raises(NotReleased, match=reason):
        repository.release(version, DAY)
    assert (repository.git("rev-parse", "HEAD"), repository.git("status", "--porcelain")) == before


def test_make_release_needs_a_version() -> None:
    root = Path(__file__).parents[2]
    done = subprocess.run(
        ["make", "release"], cwd=root, check=False, capture_output=True, text=True
    )
    assert done.returncode != 0
    assert "not a version of the form 1.2.3" in done.stderr
