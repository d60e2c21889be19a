"""Draws a committed dashboard as a picture, from what a Prometheus answers to the queries of its panels.

For the documentation, where no Grafana is at hand. The grid, titles, legends, units and kinds of panel are read from the
dashboard's JSON; colours and type are not Grafana's, and nothing is drawn that the panels' queries did not answer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from deploy.grafana.series import (
    HIDDEN,
    Series,
    Source,
    aligned,
    broken,
    in_unit,
    legend,
    plain,
    row_key,
    seconds,
    short,
)

Json = Mapping[str, Any]

_COLUMN: Final = 0.62  # inches of a column of Grafana's grid, and of a row
_ROW: Final = 0.36
_COLORS: Final = (
    *("#4c78a8", "#f58518", "#54a24b", "#e45756", "#72b7b2", "#b279a2"),
    *("#eeca3b", "#9d755d", "#ff9da6", "#7f7f7f"),
)
_INK, _FAINT, _PAPER, _BACK = "#24292f", "#6e7781", "#ffffff", "#eef0f3"
_LEGEND_ROWS: Final = 2  # of names of series below a panel
_ROWS: Final = 7  # of a table, and bars of a bar gauge


def draw(model: Json, source: Source) -> Figure:
    """The whole dashboard. ``model``: its JSON; choices above it (variables) are the source's business."""
    panels = model["panels"]
    height = max(p["gridPos"]["y"] + p["gridPos"]["h"] for p in panels) + 2
    figure = Figure(figsize=(24 * _COLUMN, height * _ROW), facecolor=_BACK)
    FigureCanvasAgg(figure)
    figure.text(
        0.008, 1 - 0.9 / height, model["title"], size=14, weight="bold", color=_INK, va="center"
    )
    for panel in panels:
        place = panel["gridPos"]
        at = (place["x"] / 24, 1 - (place["y"] + 2 + place["h"]) / height)
        size = (place["w"] / 24, place["h"] / height)
        if panel["type"] == "row":
            x, y = at[0] + 0.008, at[1] + size[1] / 2
            figure.text(x, y, panel["title"], size=10.5, weight="bold", color=_FAINT, va="center")
        else:
            _Panel(panel, source).draw(figure, at, size)
    return figure


@dataclass(frozen=True)
class _Panel:
    panel: Json
    source: Source

    def draw(self, figure: Figure, at: tuple[float, float], size: tuple[float, float]) -> None:
        """A card with its title, and within it what the panel shows."""
        wide, high = (float(part) for part in figure.get_size_inches())
        gap = 0.05
        box = (
            at[0] + gap / wide,
            at[1] + gap / high,
            size[0] - 2 * gap / wide,
            size[1] - 2 * gap / high,
        )
        card = figure.add_axes(box, facecolor=_PAPER, xticks=[], yticks=[])
        for spine in card.spines.values():
            spine.set_color("#d0d7de")
        card.text(0.08 / (box[2] * wide), 1 - 0.15 / (box[3] * high), self.panel["title"], size=8.5, weight="bold",
                  color=_INK, va="center", transform=card.transAxes)  # fmt: skip
        margins = {"timeseries": (0.52, 0.62), "heatmap": (0.62, 0.28), "bargauge": (1.2, 0.1)}
        left, below = margins.get(self.panel["type"], (0.08, 0.08))
        inner = figure.add_axes(
            (
                box[0] + left / wide,
                box[1] + below / high,
                box[2] - (left + 0.12) / wide,
                box[3] - (below + 0.34) / high,
            ),
            facecolor="none",
        )
        inner.tick_params(labelsize=6.5, colors=_FAINT, length=2)
        for side in ("top", "right", "left", "bottom"):
            inner.spines[side].set_visible(False)
        getattr(self, f"_{self.panel['type']}")(inner)

    # -- kinds of panel

    def _timeseries(self, axes: Axes) -> None:
        named = self._named(self.source.over_time)
        if not named:
            self._nothing(axes)
            return
        colors = [_COLORS[number % len(_COLORS)] for number in range(len(named))]
        custom = self.panel["fieldConfig"]["defaults"].get("custom", {})
        if custom.get("stacking", {}).get("mode") == "normal":
            times, rows = aligned([one for _, one in named])
            axes.stackplot([self._minutes(t) for t in times], rows, colors=colors, alpha=0.85)
        else:
            for (_, one), color in zip(named, colors, strict=True):
                points = broken(one.points)
                x, y = [self._minutes(t) for t, _ in points], [v for _, v in points]
                axes.plot(x, y, color=color, lw=1.1)
        axes.set_ylim(bottom=0, top=None if any(one.most for _, one in named) else 1)
        axes.grid(axis="y", color="#e6e9ec", lw=0.6)
        axes.set_axisbelow(True)
        axes.yaxis.set_major_locator(MaxNLocator(4))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: self._text(value)))
        self._time_axis(axes)
        self._legend(
            axes, [(name, one.most, c) for (name, one), c in zip(named, colors, strict=True)]
        )

    def _legend(self, axes: Axes, entries: Sequence[tuple[str, float, str]]) -> None:
        """Below the panel: name and color of the series that became largest."""
        across = max(1, round(self.panel["gridPos"]["w"] / 3.2))
        most = across * _LEGEND_ROWS
        kept = sorted(entries, key=lambda entry: -entry[1])[
            : most if len(entries) <= most else most - 1
        ]
        shown = [(name, color) for name, _, color in sorted(kept, key=entries.index)]
        if len(kept) < len(entries):
            shown.append((f"and {len(entries) - len(kept)} more", _FAINT))
        for number, (name, color) in enumerate(shown):
            row, column = divmod(number, across)
            axes.annotate("■ " + short(name), (column / across, 0), (0, -20 - 10 * row), xycoords="axes fraction",
                          textcoords="offset points", size=7, color=color, va="center")  # fmt: skip

    def _time_axis(self, axes: Axes) -> None:
        axes.set_xlim(0, self._minutes(self.source.until))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g} min"))
        axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))

    def _minutes(self, moment: float) -> float:
        return (moment - self.source.since) / 60

    def _stat(self, axes: Axes) -> None:
        axes.axis("off")
        named = self._named(self.source.now)
        if not named:
            self._nothing(axes)
        for number, (name, one) in enumerate(named):
            x = (number + 0.5) / len(named)
            axes.text(x, 0.5, self._text(one.last), size=22, color=_COLORS[0], ha="center", va="center",
                      transform=axes.transAxes)  # fmt: skip
            if len(named) > 1:
                axes.text(
                    x, 0.05, name, size=6.5, color=_FAINT, ha="center", transform=axes.transAxes
                )

    def _bargauge(self, axes: Axes) -> None:
        named = self._named(self.source.now)[:_ROWS]
        if not named:
            self._nothing(axes)
            return
        full = max([1.0, *(one.last for _, one in named)])
        for number, (name, one) in enumerate(named):
            axes.barh(number, full, color="#eef0f3", height=0.6)
            axes.barh(number, one.last, color=_COLORS[number % len(_COLORS)], height=0.6)
            axes.text(
                full * 0.99,
                number,
                self._text(one.last),
                size=8,
                ha="right",
                va="center",
                color=_INK,
            )
            axes.text(
                -0.02 * full, number, short(name), size=7, ha="right", va="center", color=_INK
            )
        axes.set_ylim(max(len(named), 4) - 0.5, -0.5)
        axes.set_xlim(0, full)
        axes.set_xticks([])
        axes.set_yticks([])

    def _table(self, axes: Axes) -> None:
        axes.axis("off")
        answers = [(t["legendFormat"], self.source.now(t["expr"])) for t in self.panel["targets"]]
        found = {row_key(one.labels): one.labels for _, answer in answers for one in answer}
        if not found:
            self._nothing(axes)
            return
        names = sorted({name for labels in found.values() for name in labels} - HIDDEN)
        values = [{row_key(o.labels): self._text(o.last) for o in answer} for _, answer in answers]
        titles = [*names, *(plain(title) for title, _ in answers)]
        rows = [
            [*(labels.get(name, "") for name in names), *(column.get(key, "") for column in values)]
            for key, labels in sorted(found.items())
        ][:_ROWS]
        for row, cells in enumerate([titles, *rows]):
            for column, text in enumerate(cells):
                axes.annotate(short(text), (column / len(titles), 1), (4, -8 - 15 * row), xycoords="axes fraction",
                              textcoords="offset points", size=7.5, color=_INK if row else _FAINT, va="center")  # fmt: skip

    def _heatmap(self, axes: Axes) -> None:
        answer = [one for t in self.panel["targets"] for one in self.source.over_time(t["expr"])]
        buckets = sorted(answer, key=lambda one: float(one.labels["le"]))
        times, upto = aligned(buckets)
        if not times:
            self._nothing(axes)
            return
        lower = [[0.0] * len(times), *upto[:-1]]
        rows = [
            [max(0.0, high - low) for low, high in zip(*pair, strict=True)]
            for pair in zip(lower, upto, strict=True)
        ]
        extent = (self._minutes(times[0]), self._minutes(times[-1]), 0, len(rows))
        axes.imshow(
            rows,
            aspect="auto",
            origin="lower",
            cmap="Blues",
            interpolation="nearest",
            extent=extent,
        )
        axes.set_yticks([number + 1 for number in range(len(rows))][::2])
        axes.set_yticklabels([seconds(float(one.labels["le"])) for one in buckets][::2])
        self._time_axis(axes)

    @staticmethod
    def _nothing(axes: Axes) -> None:
        axes.axis("off")
        axes.text(0.5, 0.5, "No data", size=9, color=_FAINT, ha="center", transform=axes.transAxes)

    # -- what they are made of

    def _named(self, ask: Any) -> list[tuple[str, Series]]:
        """Every series of every query under its legend, in the order of the queries."""
        return [
            (legend(target.get("legendFormat", ""), one.labels), one)
            for target in self.panel["targets"]
            for one in sorted(ask(target["expr"]), key=lambda one: sorted(one.labels.items()))
        ]

    def _text(self, value: float) -> str:
        return in_unit(value, self.panel["fieldConfig"]["defaults"].get("unit", "short"))
