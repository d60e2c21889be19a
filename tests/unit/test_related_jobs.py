"""The dependencies near a job: bounded, with cycles and missing jobs, and what was left out is counted."""

from __future__ import annotations

from dataclasses import replace

from queuectl.control.questions.dependencies import DependencyIndex
from queuectl.domain.gates import Dependency, JobName
from queuectl.domain.jobs import JobOutcome, JobRecord
from queuectl.domain.ledger import Entry, State
from queuectl.domain.related_jobs import LEVELS, MOST_RELATED, RelatedJobs
from queuectl.state.mirror import Mirror
from queuectl.web.dependencies import HIDDEN, graph_of
from tests.api.support import job


def index(jobs: dict[str, list[str]], **changed: JobRecord) -> DependencyIndex:
    """Of Jobs of one namespace: each name with the names of those that it waits for."""
    mirror = Mirror({"jobs": "Job"})
    for name, after in jobs.items():
        gates = tuple(Dependency("Job", other).gate for other in after)
        record = changed.get(name.replace("-", "_")) or job(name)
        mirror.jobs[name] = replace(record, uid=name, gates=gates)
    return DependencyIndex(mirror, lambda _: None)


def near(jobs: dict[str, list[str]], name: str = "own", **changed: JobRecord) -> RelatedJobs | None:
    return index(jobs, **changed).near(entry(name))


def entry(name: str = "own") -> Entry:
    return Entry(name, "Job", "team-a", name, State.PENDING)


def levels(found: RelatedJobs | None) -> dict[str, int]:
    assert found is not None
    return {each.name.name: each.level for each in found.jobs}


def test_a_job_without_dependencies_has_no_graph() -> None:
    assert near({"own": [], "other": ["third"], "third": []}) is None
    assert near({}) is None


def test_jobs_before_and_after_are_shown_up_to_some_steps() -> None:
    chain = {f"j{n}": [f"j{n - 1}"] if n else [] for n in range(12)}
    found = near(chain, "j6")
    assert found is not None
    assert levels(found) == {f"j{n}": n - 6 for n in range(6 - LEVELS, 7 + LEVELS)}
    assert found.left_out == 2
    assert len(found.edges) == 2 * LEVELS


def test_cycles_end_and_missing_jobs_have_a_place() -> None:
    found = near({"own": ["a", "gone"], "a": ["b"], "b": ["own"]})
    assert found is not None
    assert levels(found) == {"own": 0, "a": -1, "gone": -1, "b": -2}
    assert len(found.edges) == 4
    assert [each.observed is None for each in found.jobs] == [False, False, True, False]
    alone = near({"own": ["own"]})
    assert alone is not None
    assert len(alone.edges) == 1
    graph = graph_of(found, entry(), sees_all=True, finished={})
    words = {box.title: box.word for box in graph.boxes}
    assert words["Job/gone"] == "not in the cluster"
    assert "waits" not in words["Job/a"]


def test_many_dependents_are_counted_and_not_drawn() -> None:
    jobs: dict[str, list[str]] = {"own": ["first"], "first": []}
    jobs |= {f"after-{n}": ["own"] for n in range(2_000)}
    found = near(jobs)
    assert found is not None
    assert len(found.jobs) == MOST_RELATED + 1
    assert found.left_out == 2_000 - (MOST_RELATED - 1)
    graph = graph_of(found, entry(), sees_all=True, finished={})
    assert graph.height < 5_000


def test_a_reader_without_the_right_to_list_sees_only_the_names_that_the_job_has() -> None:
    done = replace(job("a"), outcome=JobOutcome.SUCCEEDED)
    found = near({"own": ["a"], "a": ["b"], "b": [], "later": ["own"]}, a=done)
    assert found is not None
    hidden = graph_of(found, entry(), sees_all=False, finished={})
    assert [box.title for box in hidden.boxes] == ["Job/own", "Job/a", HIDDEN, HIDDEN]
    assert [box.word for box in hidden.boxes] == ["Pending", "", "", ""]
    assert {box.uid for box in hidden.boxes} == {""}
    seen = graph_of(found, entry(), sees_all=True, finished={})
    assert [box.title for box in seen.boxes] == ["Job/own", "Job/a", "Job/b", "Job/later"]
    assert (seen.boxes[1].sign, seen.boxes[1].word) == ("✓", "Succeeded")
    assert "Job/a succeeds" in seen.boxes[0].conditions
    ended = {JobName("job", "team-a", "b"): replace(entry("b"), state=State.FINISHED)}
    assert graph_of(found, entry(), sees_all=True, finished=ended).boxes[2].word != ""
