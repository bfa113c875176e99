// Line charts over uPlot: colours of the page, a legend that says what stands under the pointer, and a sentence for who sees no canvas.

import { el, put } from "./dom.js";

const shown = new Set();
const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const PALETTE = 6;
const WHOLE = [1, 2, 5].flatMap((n) => [n, 10 * n, 100 * n, 1000 * n, 1e4 * n]).sort((a, b) => a - b);
const MINUTES = [1, 2, 5, 10, 15, 30, 60, 120].map((n) => 60 * n);
const DAYS = [1, 2, 3, 5, 7, 14, 30, 90].map((n) => 86400 * n);
const day = (time) => new Date(time * 1000).toISOString().slice(5, 10);
const clock = (time) => new Date(time * 1000).toLocaleTimeString("en-GB", { hour: "2-digit", minute: "2-digit" });

export function chart(title, unit, { show = String, time = false, days = false, zero = false, optional = false } = {}) {
  const legend = el("ul", { class: "legend" });
  const plot = el("div", { class: "plot", "aria-hidden": "true" });
  const spoken = el("p", { class: "hidden" });
  const caption = el("figcaption", {}, title, " ", el("span", {}, unit));
  const outer = el("figure", {}, caption, plot, legend, spoken);
  const state = { data: null, names: [], lines: 0, drawn: null, key: "" };

  const isLine = (i) => i >= state.names.length - state.lines; // of one height, to compare with
  const colourOf = (i) => colour(isLine(i) ? "--soft" : `--s${i % PALETTE}`);
  const named = days ? day : clock;
  const strokes = (i) => (isLine(i) ? [6, 4] : i >= PALETTE ? [4, 3] : undefined);

  function options(width) {
    const axis = { stroke: colour("--soft"), grid: { stroke: colour("--line"), width: 1 }, ticks: { show: false }, font: `11px ${colour("--sans")}` };
    return {
      width, height: 170, legend: { show: false }, padding: [8, 16, 0, 0],
      cursor: { y: false, points: { size: 5 }, drag: { x: true, y: false } },
      scales: { x: { time, ...(days ? { range: (_, low, high) => [low - 43200, high + 43200] } : {}) }, y: { range: (_, low, high) => range(low, high, zero) } },
      axes: [{ ...axis, size: 26, space: 60, incrs: days ? DAYS : time ? MINUTES : WHOLE, ...(days || time ? { values: (_, ticks) => ticks.map(named) } : {}) }, { ...axis, size: 46, values: (_, ticks) => ticks.map((tick) => show(tick)) }],
      series: [{}, ...state.names.map((name, i) => ({
        label: name, stroke: colourOf(i), width: 1.5, dash: strokes(i), spanGaps: true, points: { show: !days && state.data[0].length < 3, size: 5 },
        ...(days ? { paths: window.uPlot.paths.bars({ size: [0.7, 48] }), fill: colourOf(i) } : {}),
      }))],
      hooks: { setCursor: [(made) => tell(made.cursor.idx)] },
    };
  }

  function tell(index) {
    const last = state.data[0].length - 1;
    const at = index === null || index === undefined ? null : index;
    const items = state.names.map((name, i) => {
      const series = state.data[i + 1];
      const value = at === null ? newest(series) : series[at];
      const mark = el("i", {});
      mark.style.background = colourOf(i);
      return el("li", {}, mark, el("span", {}, name), el("b", {}, value === null || value === undefined ? "–" : show(value)));
    });
    const x = state.data[0][at ?? last];
    const where = days || time ? named(x) : `step ${x}`;
    put(legend, ...items, at === null ? null : el("li", {}, where));
  }

  function draw() {
    state.drawn?.destroy();
    state.drawn = null;
    const width = plot.clientWidth;
    if (width && state.data) state.drawn = new window.uPlot(options(width), state.data, plot);
  }

  new ResizeObserver(() => {
    if (state.drawn && plot.clientWidth) state.drawn.setSize({ width: plot.clientWidth, height: 170 });
    else draw();
  }).observe(plot);
  shown.add(() => { if (state.data) { draw(); tell(null); } });

  return {
    outer,
    show(x, series, lines = {}) {
      // `lines`: what the series are compared with, by name: one value each, or null.
      const given = Object.entries(series).filter(([, values]) => values.some((value) => value !== null));
      outer.hidden = optional && !given.length;
      if (!x.length || !given.length) {
        state.drawn?.destroy();
        Object.assign(state, { data: null, drawn: null, key: "" });
        put(plot, el("p", { class: "empty" }, "Nothing yet."));
        put(legend);
        spoken.textContent = `${title}: nothing yet.`;
        return;
      }
      const level = Object.entries(lines).filter(([, value]) => value !== null && value !== undefined);
      const drawn = [...given, ...level.map(([name, value]) => [name, x.map(() => value)])];
      const key = drawn.map(([name]) => name).join("\n");
      if (!state.data) put(plot);
      Object.assign(state, { data: [x, ...drawn.map(([, values]) => values)], names: drawn.map(([name]) => name), lines: level.length });
      if (state.drawn && state.key === key) state.drawn.setData(state.data);
      else draw();
      state.key = key;
      tell(null);
      spoken.textContent = given.map(([name, values]) => `${title}, ${name}: from ${show(values.find((v) => v !== null))} to ${show(newest(values))}.`).concat(level.map(([name, value]) => `${name}: ${show(value)}.`)).join(" ");
    },
  };
}

export function several(name, whole, parts) {
  // A series as a whole and by parts, where there are several of them.
  return Object.keys(parts).length > 1 ? { [name]: whole, ...parts } : { [Object.keys(parts)[0] ?? name]: whole };
}

export function longest(phases, most = 5) {
  const sum = (values) => values.reduce((total, value) => total + (value ?? 0), 0);
  return Object.fromEntries(Object.entries(phases).filter(([, values]) => sum(values) > 0).sort((a, b) => sum(b[1]) - sum(a[1])).slice(0, most));
}

const newest = (series) => series.findLast((value) => value !== null) ?? null;

function range(low, high, zero) {
  if (low === null || high === null) return [0, 1];
  const room = (high - low || Math.abs(high) || 1) * 0.08;
  return [zero || (low >= 0 && low - room < 0) ? Math.min(0, low) : low - room, high + room];
}

matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => shown.forEach((again) => again()));
