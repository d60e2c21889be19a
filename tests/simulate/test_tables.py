"""Traces, events and utilization are read strictly: an error names the file, the line and the column."""

from __future__ import annotations

import gzip

import pytest

from queuectl.domain.errors import BadInput
from queuectl.simulate.trace import (
    ByJob,
    Curve,
    Distribution,
    NodeEvent,
    constant,
    read_events,
    read_trace,
    read_utilization,
)
from tests.simulate.cases import SLICE, trace


def test_a_job_has_the_values_of_its_row() -> None:
    more = "job_id,priority,limit_s,expected_s,checkpoint_s,gpu_util_pct,name,topology_level,user"
    (job,) = read_trace(
        trace("5,60,2,8,ml/train,a,-3,90,50,10,25,big,rack,ann", more=more).encode(), "t.csv"
    )
    assert (job.submit, job.duration, job.pods, job.gpus_per_pod) == (5, 60, 2, 8)
    assert (job.queue, job.job_id, job.priority) == (("ml", "train"), "a", -3)
    assert (job.limit, job.expected, job.checkpoint, job.utilization) == (90, 50, 10, 0.25)
    assert (job.name, job.topology_level, job.user) == ("big", "rack", "ann")


def test_a_job_without_a_namespace_is_in_the_namespace_default() -> None:
    (job,) = read_trace(trace("0,1,1,8,a").encode(), "t.csv")
    assert job.queue == ("default", "a")
    assert (job.priority, job.limit, job.checkpoint, job.utilization) == (None, None, None, None)


def test_jobs_of_one_instant_are_ordered_by_duration_and_then_by_line() -> None:
    rows = trace("7,9,1,1,a", "7,5,1,1,b", "3,99,1,1,c", "7,5,1,1,d")
    jobs = read_trace(rows.encode(), "t.csv")
    assert [job.queue[1] for job in jobs] == ["c", "b", "d", "a"]
    assert [job.rank for job in jobs] == [0, 1, 2, 3]


def test_a_gzipped_trace_is_the_same_as_a_plain_one() -> None:
    packed = SLICE.read_bytes()
    assert read_trace(packed, "t") == read_trace(gzip.decompress(packed), "t")


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("x,1,1,1,a", "submit_s: 'x' is not a number"),
        ("-1,1,1,1,a", "submit_s: '-1' is not a number of at least 0"),
        ("nan,1,1,1,a", "submit_s: 'nan' is not a number of at least 0"),
        ("0,,1,1,a", "duration_s: is empty"),
        ("0,1,0,1,a", "nodes_or_pods: '0' is not an integer of at least 1"),
        ("0,1,1.5,1,a", "nodes_or_pods: '1.5' is not an integer of at least 1"),
        ("0,1,1,0.46,a", "gpus_per_pod: '0.46' is not an integer of at least 0"),
        ("0,1,1,1", "4 cells instead of 5"),
        ("1e15,1,1,1,a", "submit_s: '1e15' is later than second 1e+11"),
    ],
)
def test_a_wrong_cell_of_a_trace_is_named(row: str, message: str) -> None:
    with pytest.raises(BadInput) as error:
        read_trace(trace("0,1,1,1,a", row).encode(), "t.csv")
    assert str(error.value).startswith(f"t.csv: line 3: {message}")


@pytest.mark.parametrize(
    ("column", "value", "message"),
    [
        ("checkpoint_s", "0", "checkpoint_s: '0' is not a number of seconds greater than 0"),
        ("limit_s", "-5", "limit_s: '-5' is not a number of at least 0"),
        ("gpu_util_pct", "101", "gpu_util_pct: '101' is not a number from 0 to 100"),
    ],
)
def test_a_wrong_optional_cell_is_named(column: str, value: str, message: str) -> None:
    with pytest.raises(BadInput) as error:
        read_trace(trace(f"0,1,1,1,a,{value}", more=column).encode(), "t.csv")
    assert str(error.value) == f"t.csv: line 2: {message}"


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"submit_s,duration_s\n", "line 1: nodes_or_pods: the header does not have this column"),
        (b"", "line 1: submit_s: the header does not have this column"),
        (b"queue,queue\n", "line 1: queue: is given twice"),
        (b"\xff\xfe", "not UTF-8 text: invalid start byte at byte 0"),
        (gzip.compress(b"abc", mtime=0)[:-4], "not a complete gzip file"),
        (trace('0,1,1,1,"a').encode(), "line 2: unexpected end of data"),
    ],
)
def test_a_file_that_is_not_a_trace_is_refused(data: bytes, message: str) -> None:
    with pytest.raises(BadInput) as error:
        read_trace(data, "t.csv")
    assert str(error.value).startswith(f"t.csv: {message}")


def test_a_job_id_is_given_once() -> None:
    with pytest.raises(BadInput, match=r"t.csv: line 3: job_id: 'x' is also in line 2"):
        read_trace(trace("0,1,1,1,a,x", "0,1,1,1,a,x", more="job_id").encode(), "t.csv")


@pytest.mark.parametrize("header", ["", "time,node,state\n", "seconds,name,what\n"])
def test_events_have_an_optional_header(header: str) -> None:
    events = read_events(f"{header}9,n1,up\n3,n1,down\n".encode(), "e.csv")
    assert events == (NodeEvent(3, "n1", up=False), NodeEvent(9, "n1", up=True))


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("3,n1,gone", "state: 'gone' is not one of down, up"),
        ("3,,up", "node: is empty"),
        ("3,n1", "2 cells instead of 3 (time, node, state)"),
        ("x,n1,up", "time: 'x' is not a number"),
        ("1e15,n1,up", "time: '1e15' is later than second 1e+11"),
    ],
)
def test_a_wrong_cell_of_an_event_is_named(row: str, message: str) -> None:
    with pytest.raises(BadInput) as error:
        read_events(f"0,n1,down\n{row}\n".encode(), "e.csv")
    assert str(error.value) == f"e.csv: line 2: {message}"


def test_utilization_is_by_job_or_a_distribution() -> None:
    by_job = read_utilization(b"job_id,gpu_util_pct\na,50\n", "u.csv")
    assert by_job == ByJob({"a": constant(0.5)})
    over_time = read_utilization(b"job_id,after_s,gpu_util_pct\na,5,50\na,60,0\n", "u.csv")
    assert over_time == ByJob({"a": Curve(((0, 0.5), (60, 0)))})
    drawn = read_utilization(b"percentile,philly,other\n0,0,9\n50,40,9\n100,90,9\n", "u.csv")
    assert isinstance(drawn, Distribution)
    (job,) = read_trace(trace("0,1,1,1,a").encode(), "t.csv")
    places = (0.0, 0.3, 0.5, 0.51, 1.0)
    shares = [drawn.applied(job, iter([place]).__next__).utilization for place in places]
    assert shares == [0.0, 0.4, 0.4, 0.9, 0.9]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "has no rows"),
        (b"name,value\na,1\n", "line 1: the header has neither job_id and gpu_util_pct nor"),
        (b"job_id,gpu_util_pct\na,101\n", "line 2: gpu_util_pct: '101' is not a number from 0"),
        (b"job_id,gpu_util_pct\na,1\na,1\n", "line 3: job_id: 'a' is given twice"),
        (
            b"job_id,after_s,gpu_util_pct\na,9,1\na,9,1\n",
            "line 3: after_s: is not later than in the row of 'a' before",
        ),
        (b"percentile,x\n0,\n", "line 2: x: is empty"),
    ],
)
def test_wrong_utilization_is_refused(data: bytes, message: str) -> None:
    with pytest.raises(BadInput) as error:
        read_utilization(data, "u.csv")
    assert str(error.value).startswith(f"u.csv: {message}")
