"""The graph of dependencies: its cycles are those that a search from each job finds, and its work is linear in its edges."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queuectl.domain.dependency_graph import DependencyGraph, JobFound
from queuectl.domain.gates import Dependency, DependencyStatus, JobName
from queuectl.domain.jobs import JobOutcome
from tests.support.work import lines_run


def name(number: int) -> JobName:
    return JobName.of("Job", "team-a", f"step-{number}")


def after(*numbers: int) -> tuple[str, ...]:
    return tuple(Dependency("Job", f"step-{number}").gate for number in numbers)


CHAINS: Mapping[str, Callable[[int], Iterable[tuple[int, ...]]]] = {
    "a chain": lambda n: [(k - 1,) if k else () for k in range(n)],
    "a ring": lambda n: [((k - 1) % n,) for k in range(n)],
    "layers": lambda n: [tuple(range((k // 20 - 1) * 20, k // 20 * 20)) if k >= 20 else () for k in range(n)],
    "layers in a circle": lambda n: [tuple((k // 20 * 20 - 20 + j) % n for j in range(20)) for k in range(n)],
    "one job on which all depend": lambda n: [(0,) if k else () for k in range(n)],
}  # fmt: skip


def jobs_of(shape: str, number: int) -> dict[JobName, JobFound]:
    return {name(k): JobFound(None, after(*on)) for k, on in enumerate(CHAINS[shape](number))}


def look_at_all(jobs: dict[JobName, JobFound]) -> None:
    graph = DependencyGraph(jobs)
    for job, known in jobs.items():
        graph.statuses(job, known.gates)


@pytest.mark.parametrize("shape", CHAINS)
def test_the_work_for_all_jobs_grows_with_the_number_of_their_dependencies(shape: str) -> None:
    few, many = (lines_run(partial(look_at_all, jobs_of(shape, n))) for n in (400, 800))
    assert many < 2.2 * few


@pytest.mark.parametrize("shape", CHAINS)
def test_a_deletion_of_all_jobs_costs_as_much_as_their_creation(shape: str) -> None:
    def delete(jobs: dict[JobName, JobFound]) -> Callable[[], object]:
        return partial(DependencyGraph(jobs).put, dict.fromkeys(jobs))

    few, many = (lines_run(delete(jobs_of(shape, n))) for n in (400, 800))
    assert many < 2.2 * few


@pytest.mark.parametrize("shape", ["a chain", "layers"])
def test_an_event_of_one_job_costs_the_same_however_many_jobs_wait_behind_its_dependents(
    shape: str,
) -> None:
    def events(number: int) -> Callable[[], object]:
        graph = DependencyGraph(jobs_of(shape, number))

        def run() -> None:
            graph.put({name(0): JobFound(None, ("example.com/gate",))})
            graph.put({name(0): JobFound(JobOutcome.SUCCEEDED, ())})
            graph.put({name(0): None})
            graph.put({name(0): JobFound(None, ())})

        return run

    few, many = (lines_run(events(n)) for n in (400, 800))
    assert many <= few


def test_jobs_that_are_created_in_their_order_one_by_one_start_no_search() -> None:
    def create(jobs: dict[JobName, JobFound]) -> None:
        graph = DependencyGraph()
        for job, known in jobs.items():
            graph.put({job: known})

    few, many = (lines_run(partial(create, jobs_of("a chain", n))) for n in (400, 800))
    assert many < 2.2 * few


def test_an_event_concerns_the_direct_dependents_only() -> None:
    graph = DependencyGraph(jobs_of("a chain", 10))
    assert graph.put({name(3): JobFound(JobOutcome.SUCCEEDED, ())}) == {name(4)}
    assert graph.put({name(3): None}) == {name(4)}
    assert graph.put({name(3): JobFound(None, ())}) == {name(4)}
    assert graph.put({name(3): JobFound(None, ("example.com/gate",))}) == set()


def test_an_edge_that_closes_or_opens_a_cycle_concerns_all_jobs_of_it() -> None:
    graph = DependencyGraph(jobs_of("a chain", 4))
    ring = {name(k) for k in range(3)}
    assert graph.put({name(0): JobFound(None, after(2))}) == ring
    assert graph.put({name(0): JobFound(None, after(3))}) == {*ring, name(3)}
    assert graph.put({name(0): JobFound(None, ())}) == {*ring, name(3)}


def test_a_long_cycle_is_shown_without_its_jobs() -> None:
    jobs = jobs_of("a ring", 12)
    standing = DependencyGraph(jobs).statuses(name(0), after(11))[after(11)[0]]
    assert standing.status is DependencyStatus.CYCLE
    assert standing.cycle_text == "a cycle"


NUMBERS = st.integers(0, 7)
FOUND = st.none() | st.builds(
    JobFound,
    st.sampled_from([None, None, None, JobOutcome.SUCCEEDED, JobOutcome.FAILED]),
    st.lists(NUMBERS, max_size=3).map(lambda numbers: after(*numbers)),
)


def waits_for(jobs: Mapping[JobName, JobFound], first: JobName, target: JobName) -> bool:
    seen, queue = {first}, [first]
    for job in queue:
        known = jobs.get(job)
        gates = known.gates if known is not None and known.outcome is None else ()
        named = [name(number) for number in range(8) if after(number)[0] in gates]
        if target in named:
            return True
        queue += [one for one in named if one not in seen]
        seen.update(named)
    return False


def all_statuses(
    graph: DependencyGraph, jobs: Mapping[JobName, JobFound]
) -> dict[JobName, dict[str, DependencyStatus]]:
    return {
        job: {gate: one.status for gate, one in graph.statuses(job, known.gates).items()}
        for job, known in jobs.items()
        if known.outcome is None
    }


@given(st.lists(st.dictionaries(NUMBERS.map(name), FOUND, max_size=3), max_size=12))
def test_after_any_changes_the_cycles_are_those_that_a_search_from_each_job_finds(
    changes: list[dict[JobName, JobFound | None]],
) -> None:
    graph, jobs = DependencyGraph(), dict[JobName, JobFound]()
    for change in changes:
        before = all_statuses(graph, jobs)
        affected = graph.put(change)
        for job, known in change.items():
            jobs.pop(job, None)
            jobs.update({job: known} if known is not None else {})
        now = all_statuses(graph, jobs)
        missed = {j for j in now if now[j] != before.get(j) and j not in change} - affected
        assert not missed
        for job in now:
            for gate, status in now[job].items():
                other = name(int(gate.rpartition("-")[2].partition(":")[0]))
                ended = other not in jobs or jobs[other].outcome is not None
                cycle = not ended and (other == job or waits_for(jobs, other, job))
                assert (status is DependencyStatus.CYCLE) == cycle
