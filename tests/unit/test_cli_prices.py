"""``queuectl config prices``: the GPU prices of a file of OpenCost as the Configuration of the server."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from queuectl.cli.opencost import read_prices
from queuectl.domain.errors import BadInput
from tests.api.serving import serving
from tests.doubles.store import MemoryStore
from tests.support.cli import queuectl_with

HEAD = "EndTimestamp,InstanceID,Region,AssetClass,InstanceIDField,InstanceType,MarketPriceHourly,Version\n"
EXAMPLE = Path(__file__).parents[2] / "docs" / "examples" / "opencost-pricing.csv"
MODEL = {"provider": "custom", "CPU": "0.031611", "RAM": "0.004237", "GPU": "0.95"}
ON_DEMAND = {"name": "on-demand", "gpuHour": 0.95}


def row(value: str, price: str = "2.5", *, kind: str = "gpu", region: str = "") -> str:
    return f"2030-01-01 00:00:00 UTC,{value},{region},{kind},nvidia.com/gpu.product,,{price},\n"


def priced(value: str, price: float) -> dict[str, Any]:
    return {
        "name": value,
        "nodeLabels": {"nvidia.com/gpu.product": value},
        "gpuHour": price,
    }


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (json.dumps(MODEL), [ON_DEMAND]),
        (json.dumps({**MODEL, "spotLabel": "", "spotLabelValue": ""}), [ON_DEMAND]),
        (HEAD + row("A") + row("B", "1"), [priced("A", 2.5), priced("B", 1.0)]),
        (HEAD + row("A") + row("A", "3"), [priced("A", 3.0)]),
        (HEAD + row("host", kind="node") + row("A"), [priced("A", 2.5)]),
    ],
)
def test_each_gpu_price_of_the_file_is_an_entry(text: str, expected: list[dict[str, Any]]) -> None:
    found = read_prices(text, "prices")
    assert (list(found.prices), found.warnings) == (expected, ())


def test_gpus_of_spot_nodes_cost_nothing_as_in_opencost() -> None:
    text = json.dumps({**MODEL, "spotLabel": "capacity", "spotLabelValue": "spot"})
    found = read_prices(text, "default.json")
    spot = {"name": "spot", "nodeLabels": {"capacity": "spot"}, "gpuHour": 0.0}
    assert list(found.prices) == [spot, ON_DEMAND]
    (warning,) = found.warnings
    assert warning.startswith("default.json: spotLabel is set")


def test_a_gpu_price_with_a_region_is_left_out_with_a_warning() -> None:
    found = read_prices(HEAD + row("A", region="eu") + row("B"), "prices.csv")
    assert list(found.prices) == [priced("B", 2.5)]
    assert found.warnings == (
        "prices.csv: line 2: OpenCost uses no GPU price with a Region; it is left out",
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "prices: Expecting property name"),
        (json.dumps({"CPU": "1"}), "prices: has no price of a GPU"),
        (json.dumps({"GPU": "cheap"}), "prices: GPU: 'cheap' is not a price"),
        (json.dumps({"GPU": "-1"}), "prices: GPU: '-1' is not a price"),
        (
            json.dumps({"GPU": "1", "spotLabel": ["a"], "spotLabelValue": "b"}),
            "prices: spotLabel and",
        ),
        ('{"GPU":' + "[" * 100_000, "prices: is nested too deeply"),
        (HEAD + row("a" * 200_000), "prices: is not CSV: field larger than field limit"),
        (json.dumps({"GPU": "nan"}), "prices: GPU: 'nan' is not a price"),
        (HEAD + row("host", kind="node"), "prices: has no price of a GPU"),
        (HEAD + row("A", "?"), "prices: line 2: MarketPriceHourly: '\\?' is not a price"),
        ("name,price\nA,1\n", "prices: has no column InstanceID, Region"),
    ],
)
def test_another_file_is_refused(text: str, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        read_prices(text, "prices")


def test_the_output_keeps_the_rest_of_the_configuration(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    store = MemoryStore()
    before = {
        "apiVersion": "queuectl.dev/v1",
        "kind": "Configuration",
        "metadata": {"name": "default"},
        "fairSharing": {"preemptionStrategies": ["LessThanInitialShare"]},
        "queuectl": {"accounting": {"currency": "EUR", "prices": [{"name": "old", "gpuHour": 9}]}},
    }
    asyncio.run(store.put_config(before))
    with serving(store) as address:
        command = ("config", "prices", "-f", str(EXAMPLE), "--server", address)
        found = queuectl_with(monkeypatch, capsys, *command)
        printed = yaml.safe_load(found.out)
        assert printed["fairSharing"] == before["fairSharing"]
        assert printed["queuectl"]["accounting"] == {
            "currency": "EUR",
            "prices": [priced("NVIDIA-H100-80GB-HBM3", 2.9), priced("NVIDIA-A100-SXM4-80GB", 1.6)],
        }
        (tmp_path / "new.yaml").write_text(found.out)
        stored = queuectl_with(
            monkeypatch, capsys, "apply", "-f", str(tmp_path / "new.yaml"), "--server", address
        )
    assert (stored.code, stored.out.splitlines()[0]) == (0, "configuration/default configured")


def test_a_server_without_a_configuration_gets_one(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with serving(MemoryStore()) as address:
        command = ("config", "prices", "-f", str(EXAMPLE), "--server", address)
        printed = yaml.safe_load(queuectl_with(monkeypatch, capsys, *command).out)
    assert (printed["kind"], printed["metadata"]) == ("Configuration", {"name": "default"})


def test_a_file_with_a_byte_order_mark_is_read(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "default.json"
    file.write_text(json.dumps(MODEL), encoding="utf-8-sig")
    with serving(MemoryStore()) as address:
        command = ("config", "prices", "-f", str(file), "--server", address)
        found = queuectl_with(monkeypatch, capsys, *command)
    assert yaml.safe_load(found.out)["queuectl"]["accounting"]["prices"] == [ON_DEMAND], found.err


def test_a_missing_file_is_bad_input(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = queuectl_with(monkeypatch, capsys, "config", "prices", "-f", "/nowhere.csv")
    assert (found.code, "/nowhere.csv" in found.err) == (2, True)
