// What the trainer did when: a row for each of the last steps, what it did itself above, what went on beside it below.

import { el, empty, put, section, words } from "./dom.js";
import { seconds } from "./text.js";

const GROWS_MS = 3000;
const COLOURS = { training: "--s0", publishing: "--s1", saving: "--s2", starting: "--s3", evaluating: "--s4" };
const PALE = { generating: "--s5", snapshot: "--s1" };
const mixed = (name) => `color-mix(in srgb, var(${name}) 45%, var(--faint))`;

function colour(phase) {
  // Waiting is grey; where it is for something of its own, that thing's colour, paler.
  if (phase.startsWith("waiting for ")) return mixed(COLOURS[phase.slice(12)] ?? "--s5");
  return PALE[phase] ? mixed(PALE[phase]) : `var(${COLOURS[phase] ?? "--s5"})`;
}

export function timeline() {
  const made = section("timeline", "Timeline");
  const note = el("p", { class: "note" }, "The last steps, newest first, all to one scale. The upper lane is what the trainer did itself; the lower one went on beside it.");
  let shown = [];

  function draw() {
    const now = Date.now() / 1000;
    const whole = Math.max(...shown.map((row) => row.seconds ?? now - row.at), 0.001);
    put(made.body, note, legend(shown), el("ol", { class: "steps", reversed: true, "aria-label": "Steps, newest first" }, ...shown.map((row) => drawn(row, whole, now))));
  }

  setInterval(() => {
    if (shown[0]?.seconds === null && !document.hidden) draw(); // what goes on grows, also while the trainer says nothing new
  }, GROWS_MS);

  return {
    names: ["timeline"],
    outer: made.outer,
    show(_, rows) {
      shown = rows;
      if (rows.length) draw();
      else put(made.body, empty("Nothing yet: the timeline begins with the first phase that the trainer ends."));
    },
  };
}

function legend(rows) {
  const names = [...new Set(rows.flatMap((row) => [...row.phases, ...row.beside].map(([name]) => name)))];
  return el("ul", { class: "legend", "aria-label": "Colours" }, ...names.map((name) => {
    const mark = el("i", {});
    mark.style.background = colour(name);
    return el("li", {}, mark, el("span", {}, ...words(name)));
  }));
}

function drawn(row, whole, now) {
  const length = row.seconds ?? Math.max(0, now - row.at);
  const place = (kind) => ([name, offset, took]) => {
    const lasts = took ?? Math.max(0, length - offset);
    const piece = el("i", { class: `${kind} ${took === null ? "goes-on" : ""}`.trim() || null, title: `${name}: ${seconds(lasts)}${took === null ? " so far" : ""}` });
    piece.style.left = `${(100 * offset) / whole}%`;
    piece.style.width = `${(100 * lasts) / whole}%`;
    piece.style.backgroundColor = colour(name);
    return piece;
  };
  const name = row.step === null ? "start" : `step ${row.step}`;
  const lanes = el("div", { class: "lanes", role: "img", "aria-label": spoken(name, row, length) }, ...row.phases.map(place("")), ...row.beside.map(place("beside")));
  return el("li", {}, el("span", {}, name), lanes, el("span", {}, row.seconds === null ? el("span", { class: "soft" }, "now") : seconds(length)));
}

function spoken(name, row, length) {
  const spent = row.spent.map(([phase, took]) => `${phase} ${seconds(took)}`);
  const open = row.phases.filter(([, , took]) => took === null).map(([phase]) => `${phase} goes on`);
  return `${name}: ${[...spent, ...open].join(", ")}; ${seconds(length)} ${row.seconds === null ? "so far" : "in all"}.`;
}
