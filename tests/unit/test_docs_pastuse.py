"""The worked example of docs/explanation/past-usage.md is what the code computes."""

from __future__ import annotations

from queuectl.domain.quantity import GPU
from queuectl.domain.rules import UsageFairness
from tests.support.pages import PAGES
from tests.unit.test_pastuse import DAY, World, config

TEXT = PAGES["past-usage.md"].read_text()
DAYS = ("Monday", "Thursday", "Saturday", "Sunday", "next Sunday")
RULE = UsageFairness(half_life=7 * DAY, sampling=300.0, resource_weights={GPU: 1.0})


def rows() -> list[str]:
    world = World(config(RULE))
    lines = []
    for name, day in zip(DAYS, (0, 3, 5, 6, 13), strict=True):
        match name:
            case "Monday":
                lines.append(row(name, world, 0.0))
                world.start("vision", 0.0, gpus=64, queue="busy")
                continue
            case "Thursday":
                world.end("vision", day * DAY)
                lines.append(row(name, world, day * DAY))
                world.start("speech", day * DAY, gpus=64, queue="idle")
                continue
            case "Sunday":
                world.end("speech", day * DAY)
        lines.append(row(name, world, day * DAY))
    return lines


def row(name: str, world: World, at: float) -> str:
    vision, speech = world.used(at, "busy"), world.used(at, "idle")
    first = (
        "speech"
        if speech < vision
        else "vision"
        if vision < speech
        else "the gang that queued first"
    )
    return f"| {name} | {vision:.2f} | {speech:.2f} | {first} |"


def test_the_worked_example_has_the_computed_figures() -> None:
    for line in rows():
        assert line in TEXT, line


def test_the_formula_gives_the_number_on_the_page() -> None:
    assert f"64 · (1 − 0.5^(3/7)) = {64 * (1 - 0.5 ** (3 / 7)):.2f}" in TEXT  # noqa: RUF001 - as people write it


def test_a_start_counts_at_once_as_much_as_the_page_states() -> None:
    world = World(config(RULE))
    world.start("vision", 0.0, gpus=64)
    assert f"({world.used(0.0):.2f} for 64 GPUs)" in TEXT
