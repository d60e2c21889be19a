"""Dashboard, row, panel, query and variable, and their conversion to Grafana's model. The reader chooses the Prometheus."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, StrEnum
from string import ascii_uppercase
from typing import Final

from grafana_foundation_sdk.builders import (
    bargauge,
    common,
    dashboard,
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
    DataTransformerConfig,
    VariableOption,
    VariableRefresh,
    VariableSort,
)
from grafana_foundation_sdk.models.dashboard import Panel as PanelModel
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

SOURCE: Final = DataSourceRef(type_val="prometheus", uid="${datasource}")
WIDTH: Final = 24  # columns of Grafana's grid


class Look(Enum):
    """The visualization of a panel."""

    LINES = "lines"
    STACK = "stack"
    NUMBER = "number"
    BARS = "bars"
    TABLE = "table"


class Unit(StrEnum):
    """Grafana's identifiers of units. ``RESOURCE``: the unit of ``$resource``, which the title of the panel names."""

    SECONDS = "s"
    BYTES = "bytes"
    CORES = "suffix:cores"
    SHARE = "percentunit"
    GANGS = "suffix:gangs"
    GPUS = "suffix:GPUs"
    GPU_HOURS = "suffix:GPU-hours"
    GPU_SECONDS = "suffix:GPU-seconds"
    NODES = "suffix:nodes"
    PODS = "suffix:pods"
    PLANS = "suffix:plans"
    PER_SECOND = "ops"
    COUNT = "none"
    RESOURCE = "short"


@dataclass(frozen=True)
class Query:
    """One expression and the legend of its series. ``$__rate_interval`` is Grafana's."""

    expr: str
    legend: str


@dataclass(frozen=True)
class Panel:
    """One panel.

    Attributes:
        title: what is shown, with its unit or aggregation.
        text: how to read the panel.
        empty: the text instead of the graph while no query has a result.
        columns: of a table: header by label, or by legend of a query, in order. Other columns are hidden.
    """

    title: str
    text: str
    queries: Sequence[Query]
    unit: Unit
    look: Look = Look.LINES
    width: int = 8
    height: int = 8
    empty: str = "No data. Check that Prometheus scrapes queuectl, and that a replica leads."
    columns: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Variable:
    """A selection above the dashboard: label values of a metric. Several at once, unless ``one`` names the first choice."""

    name: str
    label: str
    metric: str
    one: str = ""


@dataclass(frozen=True)
class Board:
    """One dashboard. ``uid`` never changes: links contain it."""

    uid: str
    title: str
    text: str
    rows: Sequence[tuple[str, Sequence[Panel]]]
    variables: Sequence[Variable] = ()

    @property
    def panels(self) -> list[Panel]:
        """The panels of all rows, in order."""
        return [panel for _, panels in self.rows for panel in panels]

    def build(self) -> Model:
        """The dashboard as Grafana's model."""
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
            made: timeseries.Panel | stat.Panel | bargauge.Panel | table.Panel = stat.Panel()
        case Look.BARS:
            made = bargauge.Panel().orientation(VizOrientation.HORIZONTAL).min(0)
        case Look.TABLE:
            made = _columns(panel)
        case _:
            made = _lines(stacked=panel.look is Look.STACK)
    made = made.title(panel.title).description(panel.text).datasource(SOURCE).unit(panel.unit)
    made = made.span(panel.width).height(panel.height).no_value(panel.empty)
    for letter, query in zip(ascii_uppercase, panel.queries, strict=False):
        made = made.with_target(_target(query, panel.look).ref_id(letter))
    return made


def _columns(panel: Panel) -> table.Panel:
    """A table with one row for each set of labels, and one column for each query."""
    values = {
        query.legend: f"Value #{letter}" if len(panel.queries) > 1 else "Value"
        for letter, query in zip(ascii_uppercase, panel.queries, strict=False)
    }
    names = {values.get(name, name): header for name, header in panel.columns.items()}
    steps: tuple[tuple[str, object], ...] = (
        ("merge", {}),
        ("filterFieldsByName", {"include": {"names": list(names)}}),
        (
            "organize",
            {
                "indexByName": {name: number for number, name in enumerate(names)},
                "renameByName": names,
            },
        ),
    )
    made = table.Panel()
    for kind, options in steps:
        made = made.with_transformation(DataTransformerConfig(id_val=kind, options=options))
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
    return target.format(PromQueryFormat.TABLE) if look is Look.TABLE else target
