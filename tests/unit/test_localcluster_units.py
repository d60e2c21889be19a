"""Units beside the control plane's own: built when asked for, kept apart by how they are built."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, replace

from queuectl.localcluster import cache
from queuectl.localcluster.versions import PROMETHEUS, REQUIRED, UNITS


def test_build_tags_are_part_of_the_recipe() -> None:
    plain = replace(PROMETHEUS, tags=())
    assert cache.folder(plain) != cache.folder(PROMETHEUS)


def test_a_unit_without_build_tags_stays_where_it_was_before_there_were_any() -> None:
    for unit in UNITS:
        recipe = {k: v for k, v in asdict(unit).items() if k not in ("minutes", "tags")}
        digest = hashlib.sha256(json.dumps(recipe, sort_keys=True).encode()).hexdigest()
        assert cache.folder(unit).name == f"{unit.key}-{digest[:8]}"


def test_no_cluster_needs_a_prometheus() -> None:
    assert PROMETHEUS not in UNITS
    assert not set(PROMETHEUS.programs) & set(REQUIRED)
