"""What every dashboard is made of: rows of panels, each with queries against one Prometheus that the reader chooses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

from grafana_foundation_sdk.builders import (
    bargauge,
    common,
    dashboard,
    heatmap,
    stat,
    table,
    timeseries,
)
from grafana_foundation_sdk.builders.prometheus import Dataquery
from grafana_foundation_sdk.cog.builder import Builder
from grafana_foundation_sdk.models.common import (
    GraphDrawStyle,
    LegendDisplayMode,
    LegendPlacement,
    SortOrder,
    StackingMode,
    TooltipDisplayMode,
    VizOrientation,
)
from grafana_foundation_sdk.models.dashboard import Dashboard as Model
from grafana_foundation_sdk.models.dashboard import (
    DashboardLinkType,
    DataSourceRef,
    VariableOption,
    VariableRefresh,
    VariableSort,
)
from grafana_foundation_sdk.models.dashboard import Panel as PanelModel
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

SOURCE: Final = DataSourceRef(type_val="prometheus", uid="${datasource}")
WIDTH: Final = 24  # columns of Grafana's grid


class Look(Enum):
    """How a panel shows its series."""

    LINES = "lines"
    STACK = "stack"
    NUMBER = "number"
    BARS = "bars"
    TABLE = "table"
    HEAT = "heat"


@dataclass(frozen=True)
class Query:
    """One expression and the legend of its series. ``$__rate_interval`` is Grafana's."""

    expr: str
    legend: str = ""


@dataclass(frozen=True)
class Panel:
    """``unit`` is Grafana's name of it; ``text`` says what the reader should make of the panel."""

    title: str
    text: str
    queries: Sequence[Query]
    unit: str = "short"
    look: Look = Look.LINES
    width: int = 8
    height: int = 8


@dataclass(frozen=True)
class Variable:
    """A choice above the dashboard: label values of a metric; several at once unless it starts with ``one`` of them."""

    name: str
    label: str
    metric: str
    one: str = ""


@dataclass(frozen=True)
class Board:
    """One dashboard. ``uid`` stays for ever: links point to it."""

    uid: str
    title: str
    text: str
    rows: Sequence[tuple[str, Sequence[Panel]]]
    variables: Sequence[Variable] = ()

    @property
    def panels(self) -> list[Panel]:
        """All of them, in reading order."""
        return [panel for _, panels in self.rows for panel in panels]

    def build(self) -> Model:
        """As Grafana's own model."""
        made = (
            dashboard.Dashboard(self.title)
            .uid(self.uid)
            .description(self.text)
            .tags(["queuectl"])
            .time("now-6h", "now")
            .refresh("30s")
            .editable()
            .timezone("browser")
            .link(
                dashboard.DashboardLink("queuectl")
                .type(DashboardLinkType.DASHBOARDS)
                .tags(["queuectl"])
                .as_dropdown(True)
                .keep_time(True)
                .include_vars(True)
            )
            .with_variable(
                dashboard.DatasourceVariable("datasource").label("Prometheus").type("prometheus")
            )
        )
        for variable in self.variables:
            made = made.with_variable(_variable(variable))
        for title, panels in self.rows:
            made = made.with_row(dashboard.Row(title))
            for panel in panels:
                made = made.with_panel(_panel(panel))
        return made.build()


def _variable(variable: Variable) -> dashboard.QueryVariable:
    made = (
        dashboard.QueryVariable(variable.name)
        .label(variable.label)
        .query(f"label_values({variable.metric}, {variable.name})")
        .datasource(SOURCE)
        .refresh(VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(VariableSort.ALPHABETICAL_ASC)
    )
    if variable.one:
        return made.current(VariableOption(text=variable.one, value=variable.one, selected=True))
    return made.multi(True).include_all(True).all_value(".*")


def _panel(panel: Panel) -> Builder[PanelModel]:
    match panel.look:
        case Look.NUMBER:
            made: timeseries.Panel | stat.Panel | bargauge.Panel | table.Panel | heatmap.Panel = (
                stat.Panel()
            )
        case Look.BARS:
            made = bargauge.Panel().orientation(VizOrientation.HORIZONTAL)
        case Look.TABLE:
            made = table.Panel()
        case Look.HEAT:
            made = heatmap.Panel().calculate(False)
        case _:
            made = _lines(stacked=panel.look is Look.STACK)
    made = made.title(panel.title).description(panel.text).datasource(SOURCE).unit(panel.unit)
    made = made.span(panel.width).height(panel.height)
    for query in panel.queries:
        made = made.with_target(_target(query, panel.look))
    return made


def _lines(*, stacked: bool) -> timeseries.Panel:
    legend = (
        common.VizLegendOptions()
        .show_legend(True)
        .display_mode(LegendDisplayMode.LIST)
        .placement(LegendPlacement.BOTTOM)
    )
    tooltip = common.VizTooltipOptions().mode(TooltipDisplayMode.MULTI).sort(SortOrder.DESCENDING)
    made = (
        timeseries.Panel()
        .draw_style(GraphDrawStyle.LINE)
        .line_width(1)
        .min(0)
        .legend(legend)
        .tooltip(tooltip)
    )
    if stacked:
        made = made.stacking(common.StackingConfig().mode(StackingMode.NORMAL)).fill_opacity(40)
    return made


def _target(query: Query, look: Look) -> Dataquery:
    target = Dataquery().expr(query.expr).legend_format(query.legend)
    match look:
        case Look.TABLE | Look.BARS | Look.NUMBER:
            target = target.instant()
        case _:
            target = target.range()
    if look is Look.TABLE:
        target = target.format(PromQueryFormat.TABLE)
    return target.format(PromQueryFormat.HEATMAP) if look is Look.HEAT else target
