// Every submission, newest first: what became of it and by which rule.

import { amount, el, put, section, submission, tag, when } from "./dom.js";
import { get } from "./live.js";
import { rule } from "./rules.js";
import { table } from "./table.js";
import { count } from "./text.js";

export const STATES = {
  made: "written down, and on its way to the chain", committed: "on the chain, and on its way to the hub", stored: "at the hub; a validator will judge it",
  accepted: "judged, and nothing found wrong", soft: "rejected: it earns nothing", hard: "taken for cheating", lost: "never reached chain or hub in time",
};
const ROWS = 25;

export function submissions() {
  const choice = el("select", { "aria-label": "Which submissions", onchange: () => { offset = 0; refresh(); } });
  const made = section("submissions", "Submissions", choice);
  const rows = table("Submissions", [
    { name: "submission", show: (row) => submission(row.submission) },
    { name: "version", show: (row) => `${row.step}.${row.sequence}`, num: true },
    { name: "tokens", show: (row) => count(row.units), num: true, rank: 2 },
    { name: "worth, MUR", show: (row) => amount(row.amount), num: true, rank: 2 },
    { name: "state", show: (row) => el("span", { title: STATES[row.state] }, tag(row.state), ...(row.rule ? [" ", rule(row.rule)] : [])) },
    { name: "made", show: (row) => when(row.made_at), num: true },
    { name: "can be claimed", show: (row) => (["soft", "hard", "lost"].includes(row.state) ? "–" : when(row.unlocks)), num: true, rank: 3 },
  ], { none: "Nothing here. The node hands in its first submission once weights are published and its seat works." });
  const pages = el("div", { class: "pages" });
  let offset = 0;
  put(made.body, rows.outer, pages);

  async function refresh() {
    const said = await get(`list?state=${choice.value}&offset=${offset}&limit=${ROWS}`);
    const before = choice.value;
    const kept = Object.entries(said.counts).filter(([, value]) => value);
    put(choice, el("option", { value: "" }, "all"), ...kept.map(([name, value]) => el("option", { value: name }, `${name} (${count(value)})`)));
    choice.value = kept.some(([name]) => name === before) ? before : "";
    rows.show(said.rows);
    const turn = (by, name) => el("button", { type: "button", disabled: offset + by < 0 || offset + by >= said.total, onclick: () => { offset += by; refresh(); } }, name);
    put(pages, ...(said.total > ROWS ? [`${count(offset + 1)}–${count(Math.min(offset + ROWS, said.total))} of ${count(said.total)}`, el("span", { class: "controls" }, turn(-ROWS, "newer"), turn(ROWS, "older"))] : []));
  }

  return { names: ["submissions"], outer: made.outer, refresh };
}
