// Verdicts and cases: what validators found, and what became of it on chain.

import { caseOf, el, named, node, put, section, submission, tag, version, when, words } from "./dom.js";
import { table } from "./table.js";
import { count } from "./text.js";

export const verdictColumns = [
  { name: "submission", show: (row) => submission(row.submission) },
  { name: "node", of: (row) => row.node, show: (row) => node(row.node), rank: 2 },
  { name: "version", of: (row) => row.step, show: (row) => version(row.step), num: true, rank: 3 },
  { name: "verdict", of: (row) => row.outcome, show: (row) => tag(row.outcome) },
  { name: "rule", of: (row) => row.rule, show: (row) => row.rule || el("span", { class: "soft" }, "all passed") },
  { name: "measured", show: (row) => el("span", {}, ...words(row.measured || "–")), num: true, rank: 2 },
  { name: "threshold", show: (row) => el("span", {}, ...words(row.threshold || "–")), num: true, rank: 2 },
  { name: "validator", of: (row) => row.validator, show: (row) => named(row.validator), rank: 3 },
  { name: "judged", of: (row) => row.time, show: (row) => when(row.time), num: true },
];

export function verdicts() {
  let which = "recent";
  let said = { recent: [], rejections: [] };
  const button = (name, text) => el("button", { type: "button", "aria-pressed": String(name === which), onclick: () => choose(name) }, text);
  const buttons = { recent: button("recent", "all"), rejections: button("rejections", "rejections") };
  const made = section("verdicts", "Recent verdicts", ...Object.values(buttons));
  const rows = table("Recent verdicts", verdictColumns, { sort: "judged", none: "No verdict yet." });
  put(made.body, rows.outer);

  function choose(name) {
    which = name;
    for (const [key, each] of Object.entries(buttons)) each.setAttribute("aria-pressed", String(key === name));
    rows.show(said[which]);
  }

  return { names: ["verdicts"], outer: made.outer, show(value) { said = value; rows.show(said[which]); } };
}

export const caseColumns = [
  { name: "case", of: (row) => row.seat, show: caseOf },
  { name: "stage", of: (row) => row.stage, show: (row) => tag(row.stage) },
  { name: "kind", of: (row) => row.hard, show: (row) => (row.hard ? "hard" : "soft"), rank: 2 },
  { name: "submissions", of: (row) => row.submissions, show: (row) => count(row.submissions), num: true, rank: 2 },
  { name: "upheld", of: (row) => row.upheld, show: (row) => count(row.upheld), num: true },
  { name: "cleared", of: (row) => row.cleared, show: (row) => count(row.cleared), num: true, rank: 2 },
  { name: "challenger", of: (row) => row.challenger, show: (row) => named(row.challenger), rank: 3 },
];

export function cases() {
  const made = section("cases", "Cases");
  const rows = table("Cases", [
    ...caseColumns,
    { name: "votes", of: (row) => row.votes, show: (row) => (row.votes || row.abstentions ? `${row.against} of ${row.votes} find it false${row.abstentions ? `, ${row.abstentions} abstained` : ""}` : "–"), rank: 2 },
    { name: "opened", of: (row) => row.opened, show: (row) => when(row.opened), num: true },
  ], { sort: "opened", none: "No submission has been challenged on chain." });
  put(made.body, rows.outer);
  return { names: ["cases"], outer: made.outer, show: rows.show };
}
