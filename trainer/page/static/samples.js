// Some rollouts of the last step as text. They are strangers' words: text and nothing else, and what would hide or turn it is named.

import { el, empty, put, section, version, words } from "./dom.js";
import { count, decimal } from "./text.js";

export function samples() {
  const made = section("samples", "Sample rollouts");
  return {
    names: ["samples"],
    outer: made.outer,
    show(all) {
      if (!all.length) {
        put(made.body, empty("No samples yet: they come with the first step (trainer.metrics.samples)."));
        return;
      }
      const note = el("p", { class: "note" }, "Best and worst of some groups of step ", version(all[0].step), ", as the policy wrote them. Characters that cannot be seen are named in boxes.");
      put(made.body, note, el("div", { class: "samples" }, ...all.map(sample)));
    },
  };
}

function sample(each) {
  return el("article", { class: "sample" },
    el("header", {}, el("span", {}, "reward ", el("b", {}, decimal(each.reward))), el("span", {}, "advantage ", el("b", {}, decimal(each.advantage, 2))), el("span", {}, el("b", {}, count(each.tokens)), " tokens")),
    el("p", { class: "label" }, "prompt"),
    el("div", { class: "said prompt", dir: "auto", tabindex: 0, role: "group", "aria-label": "prompt" }, ...words(each.prompt)),
    el("p", { class: "label" }, "answer"),
    el("div", { class: "said", dir: "auto", tabindex: 0, role: "group", "aria-label": "answer" }, ...(each.completion ? words(each.completion) : ["(empty)"])));
}
