// The overview: all of a run on one page, each part drawn anew when the hub has another one.

import { base, el, named, put, setChainTime } from "./dom.js";
import { get } from "./live.js";
import { learning } from "./learning.js";
import { nodes, relays, validators } from "./people.js";
import { cases, verdicts } from "./court.js";
import { money } from "./money.js";
import { samples } from "./samples.js";
import { summary } from "./summary.js";

export function overview() {
  const run = summary();
  const parts = [learning(), nodes(), validators(), relays(), verdicts(), cases(), money(), samples()];
  const outer = el("div", {}, el("h1", { class: "hidden" }, "The run"), run.outer, ...parts.map((part) => part.outer));
  const footer = document.getElementById("footer");

  async function one(part, name, changed) {
    if (!changed.includes(name)) return;
    if (name === "nodes") await part.refresh();
    else part.show(await get(name));
  }

  async function frame() {
    const said = await get("run");
    setChainTime(said.now);
    run.show(said);
    document.getElementById("run-name").textContent = `${said.name} · run ${said.run}`;
    document.title = `${said.name}: ${said.trainer ? `step ${said.trainer.step}` : "run"} · Murmuration`;
    put(footer, "Contract ", named(said.contract ?? "", null, true), ` on chain ${said.chain_id} · block ${said.block ?? "–"} · `, el("a", { href: `${base}static/uPlot.LICENSE` }, "uPlot’s licence"));
  }

  return {
    outer,
    async refresh(changed) {
      if (changed.includes("run")) await frame();
      await Promise.all(parts.flatMap((part) => part.names.map((name) => one(part, name, changed))));
    },
  };
}
