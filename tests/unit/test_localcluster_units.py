"""Units beside the control plane's own: no part of a cluster, kept apart by how they are built."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, replace

from queuectl.localcluster import cache
from queuectl.localcluster.versions import ALL_UNITS, HELM, PROMETHEUS, REQUIRED, UNITS


def test_build_tags_are_part_of_the_recipe() -> None:
    plain = replace(PROMETHEUS, tags=())
    assert cache.folder(plain) != cache.folder(PROMETHEUS)


def test_a_unit_without_a_later_field_stays_where_it_was_before() -> None:
    for unit in UNITS:
        left_out = ("minutes", "reports", "tags", "patched")
        recipe = {k: v for k, v in asdict(unit).items() if k not in left_out}
        digest = hashlib.sha256(json.dumps(recipe, sort_keys=True).encode()).hexdigest()
        assert cache.folder(unit).name == f"{unit.key}-{digest[:8]}"


def test_no_cluster_needs_a_prometheus_or_helm() -> None:
    assert (*UNITS, PROMETHEUS, HELM) == ALL_UNITS
    assert not {*PROMETHEUS.programs, *HELM.programs} & set(REQUIRED)


def test_prometheus_is_known_by_the_version_that_people_call_it_by() -> None:
    assert PROMETHEUS.minor == "3.13"
    assert PROMETHEUS.variables["github.com/prometheus/common/version.Version"] == "3.13.5"
    assert [unit.minor for unit in UNITS] == ["1.36", "3.6", "0.8", "1.9"]
