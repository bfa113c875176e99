// What the trainer does now, what it waits for and for how long, what comes next; and the numbers that people look for.

import { copier, el, empty, put, tile, when, words } from "./dom.js";
import { count, decimal, percent, seconds, short } from "./text.js";

const LATE = 0.8; // of a deadline

export function headline() {
  const said = el("section", { class: "headline", "aria-labelledby": "headline-title", role: "status" }, el("h1", { id: "headline-title" }, "My trainer"), empty("loading"));
  const tiles = el("dl", { class: "tiles", hidden: true });
  const made = {
    outer: el("div", {}, said, tiles),
    title: "",
    show(trainer) {
      const [look, title, ...sayings] = story(trainer);
      made.title = title;
      said.className = `headline is-${look}`;
      put(said, el("h1", { id: "headline-title" }, ...words(title)), ...sayings);
      tiles.hidden = !trainer.said;
      if (trainer.said) put(tiles, ...tilesOf(trainer, trainer.said));
    },
  };
  return made;
}

const line = (...children) => el("p", {}, ...children);
const capital = (text) => text.slice(0, 1).toUpperCase() + text.slice(1);
const begin = (trainer) => (trainer.solo ? `murmur trainer solo @${trainer.file}` : `murmur trainer run @${trainer.file}`);
const goOn = (trainer) => begin(trainer) + (trainer.solo ? " --resume" : "");

function next(command) {
  return el("p", { class: "next" }, "Next: ", el("code", {}, ...words(command)), el("span", { class: "always" }, copier(command)));
}

function story(trainer) {
  const { said, running } = trainer;
  if (!said) return ["warn", "Not started", line(running ? "It is starting, and has not said anything yet." : "The trainer has not said anything yet."), ...(running ? [] : [next(begin(trainer))])];
  const far = `${count(said.step)} of ${count(said.steps)} steps`;
  if (running) return said.state === "finished" ? ["good", "Finished", line(`All ${count(said.steps)} steps are trained.`, trainer.solo ? "" : " The hub goes on until the trainer is stopped.")] : works(said, far);
  const kept = trainer.checkpoint ? ` The newest checkpoint is of step ${count(trainer.checkpoint.step)}.` : " There is no whole checkpoint.";
  const at = [" It said so ", when(said.at, "wall"), "."];
  if (said.state === "finished") return ["good", "Finished", line(`All ${count(said.steps)} steps are trained.`, ...at), ...(trainer.checkpoint ? [next(`murmur trainer export ${trainer.checkpoint.folder} my-model`)] : [])];
  if (said.state === "stopped") return ["warn", "Stopped", line(`It was stopped after ${far}.`, kept, ...at), next(goOn(trainer))];
  if (said.state.startsWith("ended: ")) return ["bad", "Ended", line(...words(`${capital(said.state.slice(7))}, after ${far}.`), kept, ...at), next(goOn(trainer))];
  return ["bad", "Ended without a word", line(...words(`It said last: ${said.state}, after ${far}.`), kept, ...at), next(goOn(trainer))];
}

function works(said, far) {
  const phases = said.phases ?? [];
  const late = phases.find((phase) => Date.now() / 1000 - phase.since > LATE * phase.deadline);
  const waits = waiting(said.waiting ?? {});
  const own = phases.find((phase) => !phase.beside);
  const beside = phases.filter((phase) => phase.beside);
  return [
    late ? "warn" : "good", capital(said.state),
    line(...words([waits, `${far} are trained.`].filter(Boolean).join(" "))),
    ...(own ? [line(...(own.name === said.state ? ["Begun "] : [...words(capital(own.name)), ", begun "]), when(own.since, "wall"), `; it may take ${seconds(own.deadline)}.`)] : []),
    ...(beside.length ? [line("Beside it: ", ...beside.flatMap((phase, i) => [i ? ", " : "", ...words(phase.name), ", begun ", when(phase.since, "wall")]), ".")] : []),
    ...(late ? [el("p", { class: "warn" }, ...words(`${capital(late.name)} takes long: after ${seconds(late.deadline)} ${late.beside ? "it is given up" : "the trainer ends itself"}.`))] : []),
  ];
}

function waiting({ have, need, seconds: waited, ...others }) {
  const more = Object.entries(others).map(([name, value]) => `${name.replaceAll("_", " ")} ${value}`);
  const groups = need === undefined ? [] : [`${count(have)} of ${count(need)} groups are here`];
  const all = [...groups, ...more].join(", ");
  return all ? `${capital(all)}${waited >= 1 ? ` after ${seconds(waited)}` : ""}.` : "";
}

function tilesOf(trainer, said) {
  const { metrics } = said;
  const { held_out: held, base, checkpoint, published } = trainer;
  const gain = held && base && held.step !== base.step ? held.score - base.score : null;
  const signed = (value) => `${value < 0 ? "−" : "+"}${decimal(Math.abs(value))}`;
  return [
    tile("step", [count(said.step), `of ${count(said.steps)}`], `${short(said.trained_tokens)} tokens learnt`),
    tile("reward", decimal(metrics.reward), metrics.reward_deviation === null ? "no step yet" : `± ${decimal(metrics.reward_deviation)}`),
    tile("held-out accuracy", decimal(held?.score), gain !== null ? `base ${decimal(base.score)} (${signed(gain)})` : base ? "of the base model" : "not evaluated yet"),
    tile("loss", decimal(metrics.loss), `gradient ${decimal(metrics.gradient_norm)}`),
    tile("training speed", [short(metrics.tokens_per_second === null ? null : Math.round(metrics.tokens_per_second)), "tokens/s"], metrics.mfu ? `${percent(metrics.mfu, 1)} of peak` : "prompts included"),
    tile("staleness", [decimal(metrics.staleness, 2), "steps"], metrics.nodes === null ? "" : `of ${count(metrics.nodes)} ${metrics.nodes === 1 ? "node" : "nodes"}`),
    tile("checkpoint", [checkpoint ? count(checkpoint.step) : "–", ""], ...(checkpoint ? [when(checkpoint.at, "wall")] : ["none yet"])),
    trainer.solo ? tile("evaluations", count(trainer.evaluations), "so far") : tile("version", count(published), published === null ? "none published yet" : "newest on the chain"),
  ];
}
