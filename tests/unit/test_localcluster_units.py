"""Units alongside the control plane's own: no part of a cluster, kept apart by how they are built."""

from __future__ import annotations

from dataclasses import replace

from queuectl.localcluster import build
from queuectl.localcluster.versions import PROMETHEUS, UNITS, kubectl, kubernetes


def test_build_tags_are_part_of_the_recipe() -> None:
    plain = replace(PROMETHEUS, tags=())
    assert build.folder(plain) != build.folder(PROMETHEUS)


def test_a_cluster_is_made_of_the_programs_that_it_runs() -> None:
    assert [program for unit in UNITS for program in unit.programs] == [
        "kube-apiserver",
        "kube-controller-manager",
        "kube-scheduler",
        "etcd",
        "kwok",
        "training-operator",
    ]


def test_the_units_of_a_cluster_choose_the_versions_of_their_libraries_together() -> None:
    assert {(unit.module, unit.version) for unit in UNITS} == set(kubernetes().modules)
    assert {unit.modules for unit in UNITS} == {kubernetes().modules}
    assert kubectl().modules == kubernetes().modules


def test_another_release_of_kubernetes_has_its_own_libraries() -> None:
    assert kubernetes("1.34.4").modules == (("k8s.io/kubernetes", "v1.34.4"),)


def test_prometheus_is_known_by_the_version_that_people_call_it_by() -> None:
    assert PROMETHEUS.minor == "3.13"
    assert PROMETHEUS.variables["github.com/prometheus/common/version.Version"] == "3.13.5"
    assert [unit.minor for unit in UNITS] == ["1.36", "3.6", "0.8", "1.9"]
