// Shows dashboards with Grafana's own components: the panel frame, graph, stat, bar gauge and table of @grafana/ui.
// `show(document, uid)` renders one dashboard of the document that answers.py makes.

import '@fontsource/inter/400.css';
import '@fontsource/inter/500.css';
import {
  ThemeContext,
  createTheme,
  dateTime,
  FieldType,
  getDisplayProcessor,
  getDisplayValueAlignmentFactors,
  renderLegendFormat,
  standardTransformers,
  standardTransformersRegistry,
  toDataFrame,
  transformDataFrame,
} from '@grafana/data';
import { initPluginTranslations } from '@grafana/i18n';
import { BarGauge, BigValue, GlobalStyles, PanelChrome, TimeSeries } from '@grafana/ui';
import { TableNG } from '@grafana/ui/unstable';
import { createElement, StrictMode } from 'react';
import { createRoot } from 'react-dom/client';
import { lastValueFrom } from 'rxjs';

const WIDTH = 1400; // pixels
const GAP = 8; // pixels between panels, as Grafana has them
const ROW = 30; // pixels of a row of the grid
const COLUMNS = 24;
const theme = createTheme({ colors: { mode: 'light' } });

const { mergeTransformer, filterFieldsByNameTransformer, organizeFieldsTransformer } = standardTransformers;
standardTransformersRegistry.setInit(() =>
  [mergeTransformer, filterFieldsByNameTransformer, organizeFieldsTransformer].map((one) => ({
    id: one.id,
    name: one.name,
    transformation: () => Promise.resolve(one),
  }))
);

// The fields of Prometheus' answers, with the unit, color and legend that the panel states.

function config(panel, name, more) {
  const { custom = {}, ...defaults } = panel.fieldConfig.defaults;
  const stacking = { group: 'A', mode: 'none', ...custom.stacking };
  const color = panel.type === 'stat' ? { mode: 'fixed', fixedColor: 'text' } : { mode: 'palette-classic' };
  const graph = { ...custom, stacking, showPoints: 'never', spanNulls: false };
  return { ...defaults, color, displayName: name, custom: graph, ...more };
}

function displayed(field, index = 0) {
  const whole = { ...field, state: { ...field.state, seriesIndex: index } };
  return { ...whole, display: getDisplayProcessor({ field: whole, theme }) };
}

function series(panel) {
  return panel.targets.flatMap((target) =>
    target.result.map((one) => ({
      name: renderLegendFormat(target.legendFormat, one.metric),
      labels: one.metric,
      points: (one.values ?? [one.value]).map(([time, value]) => [1000 * time, Number(value)]),
    }))
  ).filter((one) => one.points.some(([, value]) => !Number.isNaN(value)));
}

// A step without a value is a gap in the graph.
function filled(points, { since, until, step }) {
  const known = new Map(points.map(([time, value]) => [Math.round(time - 1000 * since), value]));
  const steps = Array.from({ length: Math.floor((until - since) / step) + 1 }, (_, n) => 1000 * n * step);
  return steps.map((at) => [1000 * since + at, Number.isNaN(known.get(at)) ? null : (known.get(at) ?? null)]);
}

function graphFrames(panel, document) {
  return series(panel).map((one, index) => {
    const points = filled(one.points, document);
    const time = { name: 'Time', type: FieldType.time, config: {}, values: points.map(([at]) => at) };
    const value = { name: 'Value', type: FieldType.number, labels: one.labels, config: config(panel, one.name), values: points.map(([, v]) => v) };
    const frame = toDataFrame({ fields: [time, value] });
    return { ...frame, fields: [frame.fields[0], displayed(frame.fields[1], index)] };
  });
}

function tableFrame(target, several) {
  const names = [...new Set(target.result.flatMap((one) => Object.keys(one.metric)))].sort();
  const text = (name) => ({ name, type: FieldType.string, config: {}, values: target.result.map((one) => one.metric[name] ?? '') });
  const time = { name: 'Time', type: FieldType.time, config: {}, values: target.result.map((one) => 1000 * one.value[0]) };
  const name = several ? `Value #${target.refId}` : 'Value';
  const value = { name, type: FieldType.number, config: {}, values: target.result.map((one) => Number(one.value[1])) };
  return toDataFrame({ refId: target.refId, fields: [time, ...names.map(text), value] });
}

async function table(panel) {
  const frames = panel.targets.map((target) => tableFrame(target, panel.targets.length > 1));
  const context = { interpolate: (text) => text };
  const [frame] = await lastValueFrom(transformDataFrame(panel.transformations, frames, context));
  const fields = frame.fields.map((one) => displayed({ ...one, config: { ...config(panel), ...one.config, displayName: undefined } }));
  return { ...frame, fields };
}

// The visualizations

function Graph({ panel, document, width, height }) {
  const range = { from: dateTime(1000 * document.since), to: dateTime(1000 * document.until) };
  const legend = { calcs: [], ...panel.options.legend };
  return createElement(TimeSeries, { frames: graphFrames(panel, document), width, height, timeRange: { ...range, raw: range }, timeZone: 'utc', legend });
}

function value(panel, one, index = 0) {
  const field = displayed({ name: 'Value', type: FieldType.number, config: config(panel, one.name), values: [] }, index);
  return { ...field.display(one.points.at(-1)[1]), title: one.name };
}

function Stat({ panel, width, height }) {
  const [one] = series(panel);
  const shown = { ...value(panel, one), title: undefined };
  return createElement(BigValue, { value: shown, theme, width, height, colorMode: 'value', graphMode: 'none', justifyMode: 'center', textMode: 'value' });
}

function Bars({ panel, width, height }) {
  const all = series(panel);
  const values = all.map((one, index) => value(panel, one, index));
  const max = Math.max(1, ...all.map((one) => one.points.at(-1)[1]));
  const alignmentFactors = getDisplayValueAlignmentFactors(values.map((display) => ({ display })));
  return values.map((display, index) =>
    createElement(BarGauge, {
      key: display.title, value: display, field: { ...config(panel), min: 0, max }, theme, width, height: height / values.length - GAP,
      orientation: 'horizontal', displayMode: 'gradient', alignmentFactors, itemSpacing: GAP, valueDisplayMode: 'color', showUnfilled: true, text: { titleSize: 14, valueSize: 16 },
    })
  );
}

function Rows({ panel, width, height }) {
  return createElement(TableNG, { data: panel.frame, width, height, noHeader: false, cellHeight: 'sm', enableVirtualization: false });
}

const VISUALIZATIONS = { timeseries: Graph, stat: Stat, bargauge: Bars, table: Rows };

function Empty({ panel }) {
  const style = { height: '100%', display: 'grid', placeItems: 'center', textAlign: 'center', color: theme.colors.text.secondary };
  return createElement('div', { style }, panel.fieldConfig.defaults.noValue ?? 'No data');
}

function Panel({ panel, document }) {
  const { x, y, w, h } = panel.gridPos;
  const width = (w * WIDTH) / COLUMNS - GAP;
  const height = h * (ROW + GAP) - GAP;
  const style = { position: 'absolute', left: (x * WIDTH) / COLUMNS + GAP / 2, top: y * (ROW + GAP) + GAP / 2, width, height };
  if (panel.type === 'row') {
    return createElement('div', { style: { ...style, ...theme.typography.h4, lineHeight: `${height}px` } }, panel.title);
  }
  const inner = (innerWidth, innerHeight) =>
    series(panel).length
      ? createElement(VISUALIZATIONS[panel.type], { panel, document, width: innerWidth, height: innerHeight })
      : createElement(Empty, { panel });
  return createElement('div', { style }, createElement(PanelChrome, { title: panel.title, width, height }, inner));
}

window.show = async (document, uid) => {
  await initPluginTranslations('grafana');
  const board = document.boards.find((one) => one.uid === uid);
  const panels = await Promise.all(
    board.panels.map(async (one) => (one.type === 'table' ? { ...one, frame: await table(one) } : one))
  );
  const height = Math.max(...panels.map(({ gridPos: { y, h } }) => y + h)) * (ROW + GAP) + GAP;
  const heading = createElement('h1', { style: { ...theme.typography.h3, padding: GAP, margin: 0 } }, board.title);
  const grid = createElement('div', { style: { position: 'relative', width: WIDTH, height } },
    panels.map((panel, index) => createElement(Panel, { key: index, panel, document }))
  );
  const page = createElement('div', { id: 'board', style: { background: theme.colors.background.canvas, width: WIDTH, paddingBottom: GAP } }, heading, grid);
  const themed = createElement(ThemeContext.Provider, { value: theme }, createElement(GlobalStyles), page);
  const place = globalThis.document.body.appendChild(globalThis.document.createElement('div'));
  createRoot(place).render(createElement(StrictMode, null, themed));
};
