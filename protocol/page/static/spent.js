// Where time went: a bar of phases, the longest first, and what each took.

import { el } from "./dom.js";
import { percent, seconds } from "./text.js";

export function spent(bySeconds, label, most = 6) {
  const phases = Object.entries(bySeconds).filter(([, value]) => value >= 0.5).sort((a, b) => b[1] - a[1]).slice(0, most);
  const whole = Object.values(bySeconds).reduce((sum, value) => sum + value, 0);
  if (!phases.length) return [];
  const bar = el("div", { class: "bar", "aria-hidden": "true" });
  const legend = el("ul", { class: "legend", "aria-label": label });
  phases.forEach(([name, value], i) => {
    const piece = el("span", { title: `${name}: ${seconds(value)}` });
    const mark = el("i", {});
    piece.style.width = `${(100 * value) / whole}%`;
    piece.style.background = mark.style.background = `var(--s${i})`;
    bar.append(piece);
    legend.append(el("li", {}, mark, name, el("b", {}, seconds(value)), percent(value, whole)));
  });
  return [bar, legend];
}
