// What somebody wants to know first: how far, how good, how fast, and what it waits for.

import { el, empty, put, tag, tile, version, when } from "./dom.js";
import { spent } from "./spent.js";
import { count, decimal, percent, seconds, short } from "./text.js";

export function summary() {
  const tiles = el("dl", { class: "tiles" });
  const waiting = el("section", { "aria-labelledby": "trainer-title" });
  const outer = el("div", {}, tiles, waiting);
  put(tiles, ...["step", "reward", "held-out accuracy", "staleness"].map((name) => tile(name, "–", "")));
  put(waiting, el("h2", { id: "trainer-title" }, "The trainer"), empty("loading"));
  return {
    outer,
    show(run) {
      put(tiles, ...tilesOf(run));
      put(waiting, ...trainerOf(run));
    },
  };
}

function tilesOf(run) {
  const trainer = run.trainer ?? {};
  const metrics = trainer.metrics ?? {};
  const [held, first] = [trainer.held_out, trainer.held_out_first];
  const { counts, pace } = run;
  const rejected = counts.soft + counts.hard;
  return [
    tile("step", [count(trainer.step), trainer.steps ? `of ${count(trainer.steps)}` : ""], "version ", version(run.version), ", ", when(run.published_at)),
    tile("reward", decimal(metrics.reward), "mean of the last step"),
    tile("held-out accuracy", decimal(held?.score), held && first && first.step !== held.step ? `from ${decimal(first.score)} at step ${first.step}` : "not evaluated again yet"),
    tile("staleness", [decimal(metrics.staleness, 2), "steps"], `at most ${run.max_lag}`),
    tile("rollouts", [short(pace.rollouts_per_minute), "/min"], `last ${pace.minutes} min`),
    tile("tokens", [short(pace.tokens_per_minute), "/min"], `last ${pace.minutes} min`),
    tile("nodes", [count(counts.working), `of ${count(counts.nodes)} seats`], "worked in the last hour"),
    tile("accepted", [percent(counts.accepted, counts.judged)], `${count(rejected)} of ${short(counts.judged)} rejected`, counts.open_cases ? `, ${count(counts.open_cases)} ${counts.open_cases === 1 ? "case" : "cases"} open` : ""),
  ];
}

function trainerOf(run) {
  const title = el("h2", { id: "trainer-title" }, "The trainer");
  const trainer = run.trainer;
  const reading = run.read < 1 ? el("p", { class: "note" }, `The page is still reading the run’s past: ${Math.round(100 * run.read)} % so far.`) : null;
  if (!trainer) return [title, reading, empty("The trainer has not said anything yet: murmur trainer run starts it.")].filter(Boolean);
  const parts = [title, reading, el("p", { class: "state" }, ...stateOf(run, trainer))];
  parts.push(...(trainer.alarms ?? []).map((alarm) => el("p", { class: "warn" }, `Alarm at step ${alarm.step}: ${alarm.signal} ${decimal(alarm.value)}, limit ${decimal(alarm.limit)}`)));
  parts.push(...spent(trainer.seconds ?? {}, "Where the trainer’s time went"));
  return parts.filter(Boolean);
}

function stateOf(run, trainer) {
  const paused = run.paused_from ? [tag("paused"), " "] : [];
  const phase = (trainer.phases ?? [])[0];
  const waits = Object.entries(trainer.waiting ?? {}).map(([name, value]) => `${name.replaceAll("_", " ")} ${value}`).join(", ");
  return [
    ...paused, el("strong", {}, trainer.state), waits ? ` (${waits})` : "",
    ...(phase ? [phase.name === trainer.state ? ", begun " : ` · ${phase.name}, begun `, when(phase.since, "wall"), `, at most ${seconds(phase.deadline)}`] : []), " · said ", when(trainer.at, "wall"),
  ];
}
