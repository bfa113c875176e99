// One submission with its receipt: the verdict in words, what the rule measured, what the chain has decided, what next.

import { amount, base, el, empty, facts, named, put, section, setChainTime, tag, when, words } from "./dom.js";
import { get } from "./live.js";
import { rule } from "./rules.js";
import { STATES } from "./submissions.js";
import { count } from "./text.js";

export function submissionPage(id) {
  const body = el("div", {}, empty("loading"));
  const outer = el("div", {}, el("p", { class: "back" }, el("a", { href: base }, "← my node")), body);
  return {
    outer,
    async refresh() {
      try {
        const node = await get("node");
        if (node.told) setChainTime(node.told.now, node.told_at);
        document.title = `submission ${id.slice(0, 12)} · my node`;
        put(body, ...drawn(await get(`submissions/${encodeURIComponent(id)}`)));
      } catch (error) {
        if (error.status !== 404) throw error;
        put(body, empty(error.message));
      }
    },
  };
}

function part(id, title, ...children) {
  const made = section(id, title);
  put(made.body, ...children);
  return made.outer;
}

function drawn(found) {
  return [
    el("h1", {}, "Submission ", named(found.submission, null, true)),
    el("div", { class: "two" }, part("verdict", "Verdict", ...verdictOf(found.verdict)), part("work", "Work and pay", ...workOf(found))),
  ];
}

function verdictOf(verdict) {
  if (!verdict) return [empty("No validator has judged it yet.")];
  const text = (value) => [el("span", {}, ...words(value || "–"))];
  const rows = [
    ["verdict", tag(verdict.outcome), ` ${verdict.means}`],
    ["judged", when(verdict.time)],
    ["validator", named(verdict.validator, null, true)],
    ["checked", `${count(verdict.sequences_checked)} samples by prefill, ${count(verdict.proofs_checked)} proofs, ${count(verdict.tokens_checked)} tokens`],
  ];
  if (verdict.rule) {
    rows.push(["rule", rule(verdict.rule), ` ${verdict.rule_means}`]);
    const [measured, threshold] = verdict.compares;
    rows.push([measured, ...text(verdict.measured)], [threshold, ...text(verdict.threshold)], ["detail", ...text(verdict.detail)]);
    rows.push(["samples", verdict.samples]);
  }
  return [facts(rows)];
}

function workOf(found) {
  const chain = found.chain;
  const isLost = ["revoked", "swept"].includes(chain?.state);
  return [
    facts([
      ["state", tag(found.state), ` ${STATES[found.state] ?? ""}`],
      ["next", el("span", {}, ...words(found.next))],
      ["version", `${count(found.step)}, sequence ${found.sequence}`],
      ["tokens", count(found.units)],
      ["made", when(found.made_at)],
      ["storage receipt", found.storage ? "the hub has signed for the file" : "none yet"],
      chain && ["on the chain", tag(chain.state)],
      chain?.case && ["case", `${chain.case.number}: `, el("span", {}, ...words(chain.case.told))],
      chain && ["pay", ...(isLost ? ["none; it would have been ", amount(chain.amount), " MUR"] : [amount(chain.amount), " MUR", ...(chain.claimable_at ? [", to be had ", when(chain.claimable_at), " if nothing is held against it"] : [])])],
    ]),
    ...(found.away ? [el("p", { class: "note" }, "The chain does not answer: ", ...words(found.away))] : []),
  ];
}
