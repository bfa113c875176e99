// Seat, stake and cases, and how noisy the machine looks to validators.

import { amount, el, empty, facts, named, put, section, tag, when, words } from "./dom.js";
import { count } from "./text.js";

export function seat() {
  const made = section("seat", "Seat and stake");
  return {
    names: ["node"],
    outer: made.outer,
    show(_, node) {
      const told = node.told;
      if (!told) {
        put(made.body, empty(node.away ? "The chain does not answer, and it alone knows." : "loading"));
        return;
      }
      put(made.body, el("div", { class: "split" }, facts(factsOf(told)), noise(told.sums)), ...casesOf(told.cases));
    },
  };
}

function factsOf(told) {
  return [
    ["seat", tag(told.role === "none" ? "none yet" : told.role), ...(told.role === "none" ? [] : [` hardware class ${told.hardware}`])],
    ["operator", named(told.operator, null, true)],
    ["at stake", amount(told.stake), " MUR, ", amount(told.free), " of it free"],
    told.unlocks_at !== null && ["locked until", when(told.unlocks_at)],
    told.leaving_at !== null && ["leaving", amount(told.leaving), " MUR, to be withdrawn ", when(told.leaving_at)],
    ["may wait at most", amount((BigInt(told.units_most) * BigInt(told.reward)).toString()), " MUR"],
    told.calibration && ["judged by", "calibration ", el("code", { title: told.calibration.digest }, told.calibration.digest.slice(0, 12))],
    told.matrix_challenges && ["matrix challenges", `${count(told.matrix_challenges.answered)} answered, `, when(told.matrix_challenges.time)],
  ];
}

function noise(sums) {
  if (!sums) return el("div", {}, el("h3", {}, "Noise"), el("p", { class: "note" }, "Nothing was checked yet, or this run does not add up the noise of a seat’s work."));
  const share = (value) => `${Math.round(100 * value)} %`;
  const bar = el("div", { class: "bar", role: "img", "aria-label": `${share(sums.soft_share)} of what costs pay` }, el("span", {}));
  bar.firstChild.style.width = `${Math.min(100, 100 * sums.soft_share)}%`;
  bar.firstChild.style.background = sums.causes ? "var(--bad)" : "var(--accent)";
  return el("div", {}, el("h3", {}, "Noise"),
    el("p", {}, `${share(sums.soft_share)} of what costs pay, ${share(sums.hard_share)} of what costs stake; ${count(sums.tokens)} tokens of ${count(sums.submissions)} submissions were checked.`), bar,
    ...(sums.causes ? [el("p", { class: "bad" }, `Noisier than the run’s calibration. Possible causes: ${sums.causes}.`), el("p", { class: "note" }, "The sums begin anew ", when(sums.begin_anew), ".")] : []));
}

function casesOf(cases) {
  if (!cases.length) return [];
  return [el("h3", {}, "Cases against this seat"), el("ul", { class: "list" }, ...cases.map((one) => el("li", {}, tag(one.stage), ` ${one.number}: `, ...words(one.told))))];
}
