"""The shipped recording rules, evaluated by promtool, hide no gap in the series of the exporters."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
import yaml

from queuectl.telemetry.signal.names import HONORED, NVIDIA
from queuectl.telemetry.signal.queries import Dialect, PodSignal, Raw, Recorded
from queuectl.telemetry.signal.trust import Trust
from tests.support.promtool import promtool
from tests.utilization.stage import RULES

pytestmark = pytest.mark.system

SCRAPE, WINDOW, END = 30, 8 * 60, 12 * 60
SAMPLES = WINDOW // SCRAPE
TRUST = Trust(("dcgm-exporter",))
SERIES = (
    'DCGM_FI_PROF_GR_ENGINE_ACTIVE{job="dcgm-exporter",namespace="team",pod="train-0",UUID="GPU-0"}'
)
DIALECTS: dict[str, Dialect] = {
    "raw": Raw(NVIDIA, TRUST),
    "recorded": Recorded(SCRAPE, trust=TRUST),
}
OURS = Trust(TRUST.jobs, labels=(("cluster", "ours"),))
OF_ONE_CLUSTER: dict[str, Dialect] = {
    "raw": Raw(NVIDIA, OURS),
    "recorded": Recorded(SCRAPE, trust=OURS),
}


def failures(folder: Path, test: Mapping[str, object]) -> str:
    """The errors of promtool for one test with the recording rules; empty if it passes."""
    file = folder / "test.yaml"
    document = {"rule_files": [str(RULES)], "evaluation_interval": "30s", "tests": [test]}
    file.write_text(yaml.safe_dump(document))
    code, output = promtool("test", "rules", file)
    return output if code else ""


def seen(
    folder: Path,
    dialect: Dialect,
    missing: set[int],
    least: float,
    most: float,
    per_scrape: int = 1,
) -> str:
    """The errors of promtool for a check: the share of existing samples in the last eight minutes is between two bounds.

    Args:
        folder: for promtool's files.
        dialect: the names of the exporter.
        missing: indexes of missing samples, counted back from the newest, which is 0.
        least: minimum of the share.
        most: maximum of the share.
        per_scrape: samples in one configured scrape interval.
    """
    interval = SCRAPE // per_scrape
    values = [
        "stale" if number in missing else "0" for number in reversed(range(END // interval + 1))
    ]
    query = dialect.pods(HONORED, WINDOW)[PodSignal.SAMPLES]
    share = f"({query.text}) / {query.full} / {SAMPLES}"
    inside = f"count(({share}) >= {least} <= {most})"
    test = {
        "interval": f"{interval}s",
        "input_series": [{"series": SERIES, "values": " ".join(values)}],
        "promql_expr_test": [
            {"expr": inside, "eval_time": f"{END}s", "exp_samples": [{"labels": "{}", "value": 1}]}
        ],
    }
    return failures(folder, test)


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize(
    ("missing", "share"),
    [
        (set(), 1.0),
        ({5}, 15 / 16),
        (set(range(0, 16, 2)), 1 / 2),
        (set(range(5, 10)), 11 / 16),
        (set(range(4, 12)), 1 / 2),
        (set(range(7)), 9 / 16),
    ],
    ids=["all", "one missing", "every second", "2.5 min", "4 min", "the newest 3.5 min"],
)
def test_the_share_of_samples_in_a_window_is_that_of_the_scrapes(
    tmp_path: Path, dialect: str, missing: set[int], share: float
) -> None:
    """The rules differ by up to two and a half samples, because each evaluation includes the two minutes before it."""
    slack = 2.6 / SAMPLES
    assert seen(tmp_path, DIALECTS[dialect], missing, share - slack, share + slack) == ""


def test_an_evaluation_without_samples_counts_as_missing(
    tmp_path: Path,
) -> None:
    """Exporters are scraped twice in each configured interval, and half of the window is missing."""
    missing = set(range(8, 24))
    assert seen(tmp_path, DIALECTS["recorded"], missing, 0.5, 0.76, per_scrape=2) == ""


EACH = 'job="dcgm-exporter",namespace="team",pod="train-0",Hostname="n"'
BUSY, COARSE = "DCGM_FI_PROF_GR_ENGINE_ACTIVE", "DCGM_FI_DEV_GPU_UTIL"
NEEDS = {
    PodSignal.MEMORY_HELD: ("DCGM_FI_DEV_FB_USED", "DCGM_FI_DEV_FB_FREE"),
    PodSignal.TENSOR: ("DCGM_FI_PROF_PIPE_TENSOR_ACTIVE",),
    PodSignal.MEMORY_BUSY: ("DCGM_FI_PROF_DRAM_ACTIVE",),
}


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize(
    ("signal", "use"), [*((signal, BUSY) for signal in NEEDS), (PodSignal.MEMORY_HELD, COARSE)]
)
@pytest.mark.parametrize("gpus", [1, 2])
def test_a_pod_has_a_value_only_if_each_of_its_gpus_has_one(
    tmp_path: Path, dialect: str, signal: PodSignal, use: str, gpus: int
) -> None:
    """The pod has two GPUs, of which ``gpus`` export the metric."""
    metrics = [(use, 2), *((name, gpus) for name in NEEDS[signal])]
    series = [
        {"series": f'{name}{{{EACH},UUID="GPU-{number}"}}', "values": f"1x{END // SCRAPE}"}
        for name, count in metrics
        for number in range(count)
    ]
    query = DIALECTS[dialect].pods(HONORED, WINDOW)[signal]
    found = [{"labels": "{}", "value": 1}] if gpus == 2 else []
    test = {
        "interval": f"{SCRAPE}s",
        "input_series": series,
        "promql_expr_test": [
            {"expr": f"count({query.text})", "eval_time": f"{END}s", "exp_samples": found}
        ],
    }
    assert failures(tmp_path, test) == ""


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("same", [True, False], ids=["two at once", "one after the other"])
def test_a_gpu_of_exporters_with_several_host_names_is_one_gpu(
    tmp_path: Path, dialect: str, same: bool
) -> None:
    """Without NODE_NAME, DCGM's exporter reports the name of its own pod as the host name."""
    samples = END // SCRAPE
    other = "_ " * (samples - 4) + "0 0 0 0 0"
    values = {"exporter-a": f"0x{samples}", "exporter-b": f"0x{samples}" if same else other}
    labels = 'job="dcgm-exporter",namespace="team",pod="train-0",UUID="GPU-0"'
    series = [
        {"series": f'{BUSY}{{{labels},Hostname="{host}"}}', "values": text}
        for host, text in values.items()
    ]
    query = DIALECTS[dialect].pods(HONORED, WINDOW)[PodSignal.GPUS]
    one = [{"labels": "{}", "value": 1}]
    test = {
        "interval": f"{SCRAPE}s",
        "input_series": series,
        "promql_expr_test": [
            {"expr": f"sum({query.text})", "eval_time": f"{END}s", "exp_samples": one},
            {
                "expr": DIALECTS[dialect].gpus(WINDOW).text,
                "eval_time": f"{END}s",
                "exp_samples": one,
            },
        ],
    }
    assert failures(tmp_path, test) == ""


def of_cluster(cluster: str, values: str) -> list[dict[str, str]]:
    """The series of the GPUs of a pod, which has the same name in each cluster."""
    labels = f'cluster="{cluster}",job="dcgm-exporter",namespace="team",pod="train-0"'
    return [
        {"series": f'{BUSY}{{{labels},UUID="GPU-{cluster}-{number}"}}', "values": values}
        for number in range(2)
    ]


@pytest.mark.parametrize("dialect", OF_ONE_CLUSTER)
@pytest.mark.parametrize("measured", [True, False], ids=["measured", "silent"])
def test_a_pod_of_the_same_name_in_another_cluster_does_not_count(
    tmp_path: Path, dialect: str, *, measured: bool
) -> None:
    """A server has the metrics of both. The other pod is idle, and this one is busy, or its exporter is silent."""
    samples = END // SCRAPE
    series = of_cluster("theirs", f"0x{samples}")
    series += of_cluster("ours", f"1x{samples}") if measured else []
    asked = OF_ONE_CLUSTER[dialect]
    values = {PodSignal.BUSY: 1, PodSignal.MEAN: 1, PodSignal.GPUS: 2}
    queries = {signal: asked.pods(HONORED, WINDOW)[signal].text for signal in values}
    checks = [(f"sum({text})", values[signal]) for signal, text in queries.items()]
    checks.append((asked.gpus(WINDOW).text, 2))
    test = {
        "interval": f"{SCRAPE}s",
        "input_series": series,
        "promql_expr_test": [
            {
                "expr": text,
                "eval_time": f"{END}s",
                "exp_samples": [{"labels": "{}", "value": value}] if measured else [],
            }
            for text, value in checks
        ],
    }
    assert failures(tmp_path, test) == ""
