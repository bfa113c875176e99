// What came before every collapse that was seen: alarms of the last step, steps that had some, and the signals against their limits.

import { chart } from "./charts.js";
import { el, empty, put, section, tag, when, words } from "./dom.js";
import { table } from "./table.js";
import { count, decimal } from "./text.js";

const MEANS = {
  log_ratio: "the policy is far from the one that made the rollouts",
  clipped: "many tokens have no gradient because their ratio was clipped",
  zero_advantage_share: "suddenly many groups teach nothing",
};
const named = (signal) => signal.replaceAll("_", " ");

export function alarms() {
  const made = section("alarms", "Alarms");
  const state = { limits: {}, charts: null };
  const said = el("div", {}, empty("loading"));
  const drawn = {
    log_ratio: chart("Log-ratio", "mean gap, nats", { show: (value) => decimal(value, 3), zero: true, optional: true }),
    clipped: chart("Clipped", "share of tokens", { show: (value) => decimal(value, 3), zero: true, optional: true }),
    zero_advantage_share: chart("Groups that teach nothing", "share", { show: (value) => decimal(value, 2), zero: true, optional: true }),
  };
  const before = table("Steps that had alarms", [
    { name: "step", show: (row) => count(row.step) },
    { name: "alarms", show: (row) => el("span", {}, ...row.signals.flatMap((one, i) => [i ? ", " : "", ...words(told(one))])), wide: true },
    { name: "when", show: (row) => when(row.time, "wall"), num: true },
  ], { none: "No step before had any." });
  put(made.body, said, el("div", { class: "charts" }, ...Object.values(drawn).map((each) => each.outer)));

  function draw() {
    if (!state.charts) return;
    const { steps } = state.charts;
    for (const [name, one] of Object.entries(drawn)) one.show(steps, { [named(name)]: state.charts[name] }, { limit: steps.length ? state.limits[name] : null });
  }

  return {
    names: ["alarms", "charts"],
    outer: made.outer,
    show(name, value) {
      if (name === "charts") state.charts = value;
      else {
        state.limits = value.limits;
        put(said, ...sayings(value, before));
      }
      draw();
    },
  };
}

const told = (one) => `${named(one.signal)} ${decimal(one.value)}${one.limit === null ? "" : `, limit ${decimal(one.limit)}`}`;

function sayings(value, before) {
  if (!value.now.length && !value.before.length) {
    return [empty("No alarm so far. The trainer warns of what came before every collapse that was seen: a gap in log-ratios, many clipped tokens, a surge of groups that teach nothing.")];
  }
  before.show(value.before);
  const now = value.now.map((one) => el("p", { class: "alarm", role: "alert" }, tag("alarm"), ...words(` step ${one.step}: ${told(one)}${MEANS[one.signal] ? ` – ${MEANS[one.signal]}` : ""}`)));
  return [...(now.length ? now : [el("p", { class: "state" }, "The last step had none.")]), ...(value.before.length ? [el("h3", {}, "Steps before"), before.outer] : [])];
}
