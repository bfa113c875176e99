// What the rules of verification mean, in a sentence each.

import { base, el, empty, put, section } from "./dom.js";
import { get } from "./live.js";

export const rule = (name) => el("a", { href: `${base}rules#rule-${name}` }, name);

export function rulesPage() {
  const body = el("div", {}, empty("loading"));
  const outer = el("div", {}, el("p", { class: "back" }, el("a", { href: base }, "← my node")), el("h1", {}, "Verdicts and rules"), body);
  let isDrawn = false;
  return {
    outer,
    async refresh() {
      if (isDrawn) return;
      const said = await get("rules");
      const verdicts = section("verdicts", "Verdicts");
      const rules = section("rules", "Rules");
      const full = el("code", {}, said.page);
      put(verdicts.body, named(said.outcomes, (name) => `verdict-${name}`));
      put(rules.body, el("p", { class: "note" }, "Validators apply them in this order, and the first finding decides. What exactly each checks: ", said.has_page ? el("a", { href: base + said.page }, full) : full, "."), named(said.rules, (name) => `rule-${name}`));
      put(body, verdicts.outer, rules.outer);
      document.title = "Rules · my node";
      isDrawn = true;
    },
  };
}

const named = (meanings, id) => el("dl", { class: "facts" }, ...Object.entries(meanings).flatMap(([name, means]) => [el("dt", { id: id(name) }, name), el("dd", {}, means)]));
