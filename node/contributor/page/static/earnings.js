// What was earned by day, and when each part of what waits can be claimed.

import { amount, el, empty, put, section, when } from "./dom.js";
import { chart } from "./charts.js";
import { table } from "./table.js";
import { count, seconds } from "./text.js";

const inMur = (units, reward) => Number(BigInt(units) * BigInt(reward)) / 1e18;
const wei = (units, reward) => (BigInt(units) * BigInt(reward)).toString();
const date = (time) => new Date(time * 1000).toISOString().slice(0, 10);

export function earnings() {
  const made = section("earnings", "Earnings by day");
  const drawn = chart("Accepted", "MUR a day (UTC)", { days: true, zero: true, optional: true, show: (value) => value.toLocaleString("en-US", { maximumSignificantDigits: 3 }) });
  const days = table("Earnings by day", columns(() => reward), { none: "Nothing was handed in yet. What the node makes shows here by day, with the time from which it can be claimed." });
  const unlocks = table("What waits, by the time from which it can be claimed", [
    { name: "from", show: (row) => when(row.at) },
    { name: "amount, MUR", show: (row) => amount(row.amount), num: true },
    { name: "tokens", show: (row) => count(row.units), num: true },
  ], { none: "Nothing waits." });
  const note = el("p", { class: "note" });
  let reward = "0";
  put(made.body, empty("The chain has to answer first: it says what a token earns."));
  return {
    names: ["earnings"],
    outer: made.outer,
    show(_, said) {
      reward = said.reward;
      if (!drawn.outer.isConnected) put(made.body, note, drawn.outer, el("div", { class: "split uneven" }, el("div", {}, el("h3", {}, "By day"), days.outer), el("div", {}, el("h3", {}, "When it can be claimed"), unlocks.outer)));
      const oldest = [...said.days].reverse();
      drawn.show(oldest.map((day) => day.day), { accepted: oldest.map((day) => (day.accepted ? inMur(day.accepted, reward) : null)) });
      days.show(said.days);
      unlocks.show(said.maturing);
      put(note, `Work can be claimed ${seconds(said.window)} after it was handed in, or up to a fifth of that later, unless a validator rejects it.`, ...(said.held === "0" ? [] : [" ", amount(said.held), " MUR wait for open cases besides."]));
    },
  };
}

function columns(reward) {
  const paid = (name, rank) => ({ name: `${name}, MUR`, show: (day) => (day[name] ? amount(wei(day[name], reward())) : el("span", { class: "soft" }, "–")), num: true, rank });
  return [
    { name: "day", show: (day) => date(day.day) },
    { name: "submissions", show: (day) => count(day.submissions), num: true, rank: 2 },
    paid("accepted"),
    { ...paid("unjudged", 2), name: "not judged, MUR" },
    { ...paid("rejected", 2), name: "rejected, MUR" },
    { name: "all from", title: "The time from which all of it can be claimed", show: (day) => (day.unlocks ? when(day.unlocks) : "–"), num: true },
  ];
}
