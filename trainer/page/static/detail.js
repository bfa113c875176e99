// One node, submission, case or version, by its address in the page's path.

import { amount, base, el, empty, facts, named, node, put, setChainTime, submission, tag, version, when, words } from "./dom.js";
import { caseColumns } from "./court.js";
import { get } from "./live.js";
import { className } from "./people.js";
import { table } from "./table.js";
import { bytes, count, decimal, percent, seconds, short } from "./text.js";

const KINDS = { node: ["nodes", ofNode], submission: ["submissions", ofSubmission], case: ["cases", ofCase], version: ["versions", ofVersion] };

export function detail([kind, ...name]) {
  const body = el("div", {}, empty("loading"));
  const outer = el("div", {}, el("p", { class: "back" }, el("a", { href: base }, "← the whole run")), body);
  const [path, draw] = KINDS[kind] ?? [];
  return {
    outer,
    async refresh() {
      if (!draw) return put(body, empty("There is no such page."));
      try {
        const run = await get("run");
        setChainTime(run.now);
        document.getElementById("run-name").textContent = `${run.name} · run ${run.run}`;
        const found = await get([path, ...name].map(encodeURIComponent).join("/"));
        document.title = `${kind} ${name.join(" ").slice(0, 14)} · ${run.name}`;
        const scroll = scrollY;
        put(body, ...draw(found));
        scrollTo(0, scroll);
      } catch (error) {
        if (error.status !== 404) throw error;
        put(body, empty(error.message));
      }
    },
  };
}

function rows(label, columns, all, none, options = {}) {
  const made = table(label, columns, { none, ...options });
  made.show(all);
  return el("section", {}, el("h2", {}, label), made.outer);
}

const panel = (title, ...children) => el("section", {}, el("h2", {}, title), ...children);
const chainTime = (each) => when(each.time);
const transaction = (each) => named(each.transaction);

function ofNode(found) {
  const row = found.row ?? {};
  const judged = (row.accepted ?? 0) + (row.soft ?? 0) + (row.hard ?? 0);
  const last = found.joined.at(-1);
  return [
    el("h1", {}, "Node ", named(found.address, null, true)),
    el("div", { class: "two" },
      panel("Seat", facts([
        ["state", tag(row.state ?? "unknown")],
        ["class", className(row)],
        ["at stake", amount(row.stake), " MUR"],
        ["slashed", amount(row.slashed), " MUR"],
        ["paid", amount(row.paid), " MUR"],
        last && ["operator", named(last.operator, null, true)],
        last && ["peer", named(last.peer, null, true)],
        found.keys.length > 1 && ["keys, first to last", ...found.keys.flatMap((key) => [named(key, null, true), el("br")])],
        last && ["joined", when(last.time), " in ", transaction(last)],
      ])),
      panel("Work", facts([
        ["submissions", count(row.submissions)],
        ["tokens", count(row.tokens)],
        ["accepted", `${count(row.accepted)} (${percent(row.accepted ?? 0, judged)})`],
        ["soft", count(row.soft)],
        ["hard", count(row.hard)],
        ["pending", count(row.pending)],
        ["last on version", version(row.step)],
        ["last seen", when(row.last)],
        row.operations && ["last matrix challenge", `${short(row.operations)} int8 operations a second`],
      ]))),
    rows(`Last ${found.submissions.length} submissions`, [
      { name: "submission", show: (each) => submission(each.submission) },
      { name: "version", of: (each) => each.step, show: (each) => version(each.step), num: true },
      { name: "sequence", of: (each) => each.sequence, show: (each) => count(each.sequence), num: true, rank: 2 },
      { name: "tokens", of: (each) => each.tokens, show: (each) => count(each.tokens), num: true },
      { name: "verdict", of: (each) => each.outcome, show: (each) => (each.outcome ? tag(each.outcome) : "–") },
      { name: "committed", of: (each) => each.time, show: chainTime, num: true },
    ], found.submissions, "It has submitted nothing yet."),
    rows("Cases against it", caseColumns, found.cases, "Nobody has challenged its work."),
    rows("Rewards claimed", [
      { name: "amount, MUR", of: (each) => BigInt(each.amount), show: (each) => amount(each.amount), num: true },
      { name: "tokens", of: (each) => each.units, show: (each) => count(each.units), num: true },
      { name: "transaction", show: transaction },
      { name: "when", of: (each) => each.time, show: chainTime, num: true },
    ], found.claims, "Nothing yet: rewards vest when the window has passed."),
  ];
}

function ofSubmission(found) {
  return [
    el("h1", {}, "Submission ", named(found.submission, null, true)),
    panel("Commitment", facts([
      ["node", node(found.node, true)],
      ["version", version(found.step), `, sequence ${found.sequence}`],
      ["tokens", count(found.tokens)],
      ["class of its seat", found.class === null ? "–" : String(found.class)],
      ["verdict", found.outcome ? tag(found.outcome) : "none yet"],
      ["file, SHA-256", named(found.root, null, true)],
      ["uploaded", ...(found.stored ? [when(found.stored.time), `, ${bytes(found.stored.size)}`] : ["not here, or long ago"])],
      ["committed", when(found.time), ` in block ${found.block}, `, transaction(found)],
    ])),
    rows("Receipts of validators", [
      { name: "validator", of: (each) => each.validator, show: (each) => named(each.validator) },
      { name: "verdict", of: (each) => each.outcome, show: (each) => tag(each.outcome) },
      { name: "rule", of: (each) => each.rule, show: (each) => each.rule || el("span", { class: "soft" }, "all passed") },
      { name: "measured", show: (each) => el("span", {}, ...words(each.measured || "–")), num: true },
      { name: "threshold", show: (each) => el("span", {}, ...words(each.threshold || "–")), num: true },
      { name: "detail", show: (each) => el("span", {}, ...words(each.detail || "–")), wide: true },
      { name: "checked", show: (each) => `${each.sequences_checked} samples, ${each.proofs_checked} proofs, ${each.tokens_checked} tokens`, rank: 3 },
      { name: "judged", of: (each) => each.time, show: chainTime, num: true },
    ], found.receipts, "No validator has judged it yet, or it was long ago."),
    rows("Cases about it", caseColumns, found.cases, "Nobody has challenged it."),
  ];
}

const TOLD = {
  Challenged: "challenged", ChallengedAgain: "challenged again", CoSigned: "co-signed", Appealed: "appealed", Voted: "voted",
  Abstained: "abstained", Silent: "was silent", Settled: "settled",
};

function saying(each) {
  switch (each.kind) {
    case "Voted": return [`finds ${each.found_false} false, ${each.found_hard} of them hard`];
    case "Abstained": return words(each.reason);
    case "Silent": return ["was charged ", amount(each.charged), " MUR"];
    case "Settled": return [tag(each.stage), each.convicted ? " the seat is convicted," : "", " slashed ", amount(each.slashed), " MUR"];
    default: return [];
  }
}

function ofCase(found) {
  return [
    el("h1", {}, `Case ${found.number} against `, node(found.seat, true)),
    panel("Case", facts([
      ["stage", tag(found.stage)],
      ["kind", found.hard ? "hard: cheating" : "soft: work that earns nothing"],
      ["challenger", named(found.challenger, null, true)],
      ["submissions", `${count(found.submissions)}: ${count(found.upheld)} found false, ${count(found.cleared)} cleared`],
      ["convicts the seat", found.convicts ? "yes" : "no"],
    ])),
    rows("What happened", [
      { name: "when", of: (each) => each.time, show: chainTime },
      { name: "what", show: (each) => TOLD[each.kind] ?? each.kind },
      { name: "who", show: (each) => (each.who ? named(each.who) : "–") },
      { name: "saying", show: (each) => el("span", {}, ...saying(each)), wide: true },
      { name: "transaction", show: transaction, rank: 2 },
    ], found.events, "Nothing."),
    rows("Submissions", [
      { name: "submission", show: (each) => submission(each.submission) },
      { name: "version", of: (each) => each.step, show: (each) => version(each.step), num: true },
      { name: "sequence", of: (each) => each.sequence, show: (each) => count(each.sequence), num: true },
      { name: "found", show: (each) => (each.upheld ? tag("upheld") : each.cleared ? tag("cleared") : "–") },
    ], found.accused, "None."),
  ];
}

function ofVersion(found) {
  const work = found.work ?? {};
  const record = found.record;
  const phases = Object.entries(record?.seconds ?? {}).filter(([, value]) => value >= 0.05).sort((a, b) => b[1] - a[1]);
  return [
    el("h1", {}, `Version ${found.step}`),
    el("p", { class: "back" }, found.step > 0 ? version(found.step - 1) : "", " ‹ version › ", version(found.step + 1)),
    el("div", { class: "two" },
      panel("Weights", facts([
        ["published", when(found.time), ` in block ${found.block}, `, transaction(found)],
        ["manifest", named(found.manifest, null, true)],
        ["beacon", ...(found.beacon ? [named(found.beacon, null, true)] : ["not drawn yet"])],
      ])),
      panel("Rollouts made with it", facts([
        ["submissions", count(work.submissions ?? 0)],
        ["tokens", count(work.units ?? 0)],
        ["accepted", count(work.accepted ?? 0)],
        ["soft", count(work.soft ?? 0)],
        ["hard", count(work.hard ?? 0)],
      ]))),
    panel("The step trained from here", record ? facts([
      ["reward", decimal(record.reward)],
      ...Object.entries(record.reward_by_environment ?? {}).map(([name, value]) => [`reward of ${name}`, decimal(value)]),
      ["length of answers", `${short(record.completion_length)} tokens`],
      ["off the budget", `${short(record.length_error)} tokens`],
      ["staleness", `${decimal(record.staleness, 2)} steps`],
      ["nodes", count(record.nodes)],
      ["entropy", decimal(record.entropy)],
      ["gradient norm", decimal(record.gradient_norm)],
      ["KL", decimal(record.kl, 4)],
      ["time", phases.map(([name, value]) => `${name} ${seconds(value)}`).join(", ") || "–"],
    ]) : empty("The trainer has not finished this step yet.")),
  ];
}

