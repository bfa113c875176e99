// The run's budget, in tokens: what is free, reserved for work in its window, and paid.

import { amount, el, empty, facts, put, section } from "./dom.js";
import { exact, percent, seconds } from "./text.js";

export function money() {
  const made = section("money", "Money");
  return {
    names: ["money"],
    outer: made.outer,
    show(said) {
      const parts = [["free", "free", "--s5"], ["reserved", "reserved", "--s1"], ["paid", "paid", "--s0"]].filter(([key]) => said[key] !== null);
      const whole = parts.reduce((sum, [key]) => sum + BigInt(said[key]), 0n);
      const share = (key) => (whole ? Number((BigInt(said[key]) * 10000n) / whole) / 100 : 0);
      const bar = el("div", { class: "bar", "aria-hidden": "true" });
      const legend = el("ul", { class: "legend", "aria-label": "Where the budget is" });
      for (const [key, name, colour] of parts) {
        const piece = el("span", { title: `${name}: ${exact(said[key])}` });
        const mark = el("i", {});
        piece.style.width = `${share(key)}%`;
        piece.style.background = mark.style.background = `var(${colour})`;
        bar.append(piece);
        legend.append(el("li", {}, mark, name, el("b", {}, amount(said[key])), `MUR, ${percent(share(key), 100)}`));
      }
      const mur = (wei) => [amount(wei), " MUR"];
      put(made.body, ...(whole ? [bar, legend] : [empty("The run has no budget yet: murmur run fund fills it.")]), el("h3", {}, "In detail"), facts([
        ["funded so far", ...mur(said.funded)],
        said.free !== null && ["free for new submissions", ...mur(said.free)],
        said.reserved !== null && ["reserved for work in its window", ...mur(said.reserved)],
        ["paid to operators", ...mur(said.paid)],
        ["slashed from seats", ...mur(said.slashed)],
        said.pot !== null && ["pot for validators’ vouchers", ...mur(said.pot)],
        ["redeemed by validators", ...mur(said.redeemed)],
        said.reward !== null && ["reward of a token", ...mur(said.reward)],
        said.window !== null && ["rewards vest after", seconds(said.window)],
      ], "columns"));
    },
  };
}
