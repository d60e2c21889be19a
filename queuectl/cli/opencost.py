"""GPU prices in the files of OpenCost: the custom pricing model (``default.json``), and the CSV of its CSV provider.

The prices are those that OpenCost uses for the same nodes: its sources (``customprovider.go`` and ``csvprovider.go``) decide the cases
that its documentation leaves open.
"""

from __future__ import annotations

import csv
import io
import json
from dataclasses import dataclass
from typing import Any, Final

from queuectl.domain.errors import BadInput

Json = dict[str, Any]

_GPU: Final = "gpu"
_COLUMNS: Final = ("InstanceID", "Region", "AssetClass", "InstanceIDField", "MarketPriceHourly")
_SPOT: Final = (
    "spotLabel is set: OpenCost has no GPU price for spot nodes in this file and charges 0 there;"
    " use a CSV file for spot prices"
)


@dataclass(frozen=True, slots=True)
class GpuPrices:
    """``prices``: entries of ``queuectl.accounting.prices``. ``warnings``: what the file does not price as its author can expect."""

    prices: tuple[Json, ...]
    warnings: tuple[str, ...] = ()


def read_prices(text: str, file: str) -> GpuPrices:
    """The GPU prices of a file.

    Raises:
        BadInput: it is neither of the two files, a price is not a number, or no GPU price is given. ``file`` is its name in the message.
    """
    try:
        found = _of_model(text, file) if text.lstrip().startswith("{") else _of_csv(text, file)
    except csv.Error as error:
        raise BadInput(f"{file}: is not CSV: {error}") from None
    if not found.prices:
        raise BadInput(f"{file}: has no price of a GPU")
    return found


def _of_model(text: str, file: str) -> GpuPrices:
    try:
        model = json.loads(text)
    except ValueError as error:
        raise BadInput(f"{file}: {error}") from None
    except RecursionError:
        raise BadInput(f"{file}: is nested too deeply") from None
    prices: list[Json] = []
    warnings: list[str] = []
    label, value = model.get("spotLabel"), model.get("spotLabelValue")
    if label and value:
        if not (isinstance(label, str) and isinstance(value, str)):
            raise BadInput(f"{file}: spotLabel and spotLabelValue must be texts")
        prices.append({"name": "spot", "nodeLabels": {label: value}, "gpuHour": 0.0})
        warnings.append(f"{file}: {_SPOT}")
    if "GPU" in model:
        prices.append({"name": "on-demand", "gpuHour": _amount(model["GPU"], f"{file}: GPU")})
    return GpuPrices(tuple(prices) if "GPU" in model else (), tuple(warnings))


def _of_csv(text: str, file: str) -> GpuPrices:
    lines = csv.DictReader(io.StringIO(text))
    missing = [name for name in _COLUMNS if name not in (lines.fieldnames or ())]
    if missing:
        raise BadInput(f"{file}: has no column {', '.join(missing)}")
    prices: dict[tuple[str, str], Json] = {}
    warnings: list[str] = []
    for row in lines:
        where = f"{file}: line {lines.line_num}"
        if row["AssetClass"] != _GPU:
            continue
        if row["Region"]:
            warnings.append(f"{where}: OpenCost uses no GPU price with a Region; it is left out")
            continue
        field, value = row["InstanceIDField"], row["InstanceID"]
        prices[field, value] = {  # the last one counts
            "name": value,
            "nodeLabels": {field: value},
            "gpuHour": _amount(row["MarketPriceHourly"], f"{where}: MarketPriceHourly"),
        }
    return GpuPrices(tuple(prices.values()), tuple(warnings))


def _amount(cost: object, where: str) -> float:
    try:
        amount = float(str(cost))
    except ValueError:
        amount = -1.0
    if not 0 <= amount < float("inf"):
        raise BadInput(f"{where}: {cost!r} is not a price")
    return amount
