"""Each file that names the version of queuectl names the same one."""

from __future__ import annotations

import shutil
from pathlib import Path

from tests.packaging.versions import PLACES, ROOT, mentions, set_version, version


def test_each_file_that_repeats_the_version_has_that_of_the_project() -> None:
    other = {mention for mention in mentions() if mention.version != version()}
    assert other == set()


def test_the_lock_file_and_the_manifests_repeat_it() -> None:
    files = {mention.file for mention in mentions()}
    assert Path("uv.lock") in files
    assert any(file.is_relative_to("deploy") for file in files)


def test_a_new_version_reaches_each_place_and_changes_nothing_else(tmp_path: Path) -> None:
    for file in {mention.file for mention in mentions()}:
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / file, tmp_path / file)
    set_version("98.76.54", tmp_path)
    assert version(tmp_path) == "98.76.54"
    assert {mention.version for mention in mentions(tmp_path)} == {"98.76.54"}
    set_version(version(), tmp_path)
    for place in PLACES:
        for file in ROOT.glob(place.files):
            changed = tmp_path / file.relative_to(ROOT)
            assert not changed.exists() or changed.read_text() == file.read_text()
