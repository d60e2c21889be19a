"""The load of reclaimed quota in Kueue's names."""

from __future__ import annotations

from tests.bench import thrash
from tests.bench.thrash_peer import mix_of

SEED = 1
STARTS = 1.0
LEVELS = "kueue.x-k8s.io/podset-required-topology", "kueue.x-k8s.io/podset-preferred-topology"


def test_each_topology_level_that_a_job_names_is_one_of_the_topology() -> None:
    mix = mix_of(list(thrash.gangs(SEED)), thrash.config(), STARTS)
    (topology,) = (one for one in mix.config if one["kind"] == "Topology")
    known = {level["nodeLabel"] for level in topology["spec"]["levels"]}
    templates = [one.document["spec"]["template"]["metadata"] for one in mix.arrivals]
    named = {t["annotations"][key] for t in templates for key in LEVELS if key in t["annotations"]}
    assert named
    assert named <= known


def test_each_node_is_ready_and_belongs_to_the_flavor() -> None:
    mix = mix_of([], thrash.config(), STARTS)
    (flavor,) = (one for one in mix.config if one["kind"] == "ResourceFlavor")
    assert len(mix.nodes) == thrash.NODES.count
    for node in mix.nodes:
        assert flavor["spec"]["nodeLabels"].items() <= node["metadata"]["labels"].items()
        assert [one["type"] for one in node["status"]["conditions"]] == ["Ready"]


def test_a_job_runs_for_its_run_time_and_its_start() -> None:
    gangs = list(thrash.gangs(SEED))
    mix = mix_of(gangs, thrash.config(), STARTS)
    assert [one.runtime for one in mix.arrivals] == [gang.runtime + STARTS for gang in gangs]


def test_the_configuration_of_queuectl_stays_as_it_is() -> None:
    config = thrash.config()
    mix_of([], config, STARTS)
    assert config == thrash.config()
