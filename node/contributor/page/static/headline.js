// Am I earning, if not why, and what next; and the numbers that people look for.

import { amount, copier, el, empty, put, tile, when, words } from "./dom.js";
import { count, percent, short, tokens } from "./text.js";

const LOOKS = { earning: ["good", "Earning"], waiting: ["warn", "Waiting"], "not earning": ["bad", "Not earning"] };
const COMMAND = /^node [a-z]+( [\w.]+)*$/;
const mur = (units, reward) => (BigInt(units) * BigInt(reward)).toString();

export function headline() {
  const said = el("section", { class: "headline", "aria-labelledby": "headline-title", role: "status" }, el("h1", { id: "headline-title" }, "My node"), empty("loading"));
  const away = el("section", { class: "away", "aria-label": "Chain", hidden: true });
  const tiles = el("dl", { class: "tiles", hidden: true });
  return {
    outer: el("div", {}, said, away, tiles),
    show(node) {
      const [look, title] = LOOKS[node.told?.earning.state] ?? ["warn", "The chain has not answered yet"];
      said.className = `headline is-${look}`;
      put(said, el("h1", { id: "headline-title" }, title), ...sayings(node));
      away.hidden = !node.away;
      put(away, el("p", {}, el("strong", {}, "The chain does not answer. "), ...words(node.away ?? ""), ...(node.told_at ? [" What is said of seat and money is from ", when(node.told_at, "wall"), "."] : [])));
      tiles.hidden = !node.told;
      if (node.told) put(tiles, ...tilesOf(node, node.told));
    },
  };
}

function sayings(node) {
  if (!node.told) return [el("p", {}, node.away ? "What follows is what this machine knows by itself." : "It is being asked.")];
  const { earning: { why }, next } = node.told;
  const sentence = why.slice(0, 1).toUpperCase() + why.slice(1);
  return [el("p", {}, ...words(/[.!?]$/.test(sentence) ? sentence : `${sentence}.`)), el("p", { class: "next" }, ...step(next, node.home))];
}

function step(next, home) {
  if (!next) return [el("span", { class: "soft" }, "Nothing to do.")];
  if (!COMMAND.test(next)) return ["Next: ", ...words(next)];
  const whole = home ? `${next} ${home}` : next;
  return ["Next: ", el("code", {}, ...words(whole)), el("span", { class: "always" }, copier(whole))];
}

function tilesOf(node, told) {
  const of = node.submissions;
  const judged = (of.accepted ?? 0) + (of.soft ?? 0) + (of.hard ?? 0);
  const speed = node.running ? node.doing?.tokens_per_second : null;
  const soonest = told.maturing[0];
  const step = node.running ? node.doing?.step : null;
  return [
    tile("ready to claim", [amount(mur(told.ready_units, told.reward)), "MUR"], told.ready_units ? "node claim pays it" : "nothing yet"),
    tile("waits for its time", [amount(mur(told.pending_units, told.reward)), "MUR"], ...(soonest ? ["next ", amount(soonest.amount), " ", when(soonest.at)] : ["nothing waits"])),
    tile("paid so far", [amount(mur(told.paid_units, told.reward)), "MUR"], `${short(told.paid_units)} tokens`),
    tile("accepted", [percent(of.accepted ?? 0, judged)], judged ? `${count(of.accepted ?? 0)} of ${count(judged)} judged` : "none judged yet"),
    tile("speed", [speed ? short(speed) : "–", "tokens/s"], node.running ? `now ${node.doing?.state ?? "–"}` : "the node does not run"),
    tile("version", [count(step)], told.head === null ? "none published yet" : `the newest is ${count(Math.max(told.head, step ?? 0))}`),
    tile("stake", [amount(told.stake), "MUR"], amount(told.locked), " of it backs seats"),
    tile("gas money", [told.gas === "0" ? "0" : tokens(told.gas, 5), "ETH"], "on the node’s key"),
  ];
}
