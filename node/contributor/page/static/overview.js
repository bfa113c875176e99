// The whole page: am I earning, what, with which work, on which machine. Each part is drawn anew when the node has another one.

import { base, el, named, put, setChainTime } from "./dom.js";
import { earnings } from "./earnings.js";
import { headline } from "./headline.js";
import { get } from "./live.js";
import { logOf } from "./log.js";
import { machine, network } from "./machine.js";
import { seat } from "./seat.js";
import { submissions } from "./submissions.js";

export function overview() {
  const top = headline();
  const parts = [earnings(), submissions(), seat(), machine(), network(), logOf("node")];
  const outer = el("div", {}, top.outer, ...parts.map((part) => part.outer));
  const footer = document.getElementById("footer");

  async function one(part, name, changed) {
    if (!changed.includes(name)) return;
    if (part.refresh) await part.refresh();
    else part.show(name, await get(name));
  }

  async function front() {
    const said = await get("node");
    if (said.told) setChainTime(said.told.now, said.told_at);
    top.show(said);
    document.getElementById("run-name").textContent = `My node · run ${said.run}`;
    document.title = `${said.told ? said.told.earning.state : "chain away"} · my node`;
    put(footer, "Node ", named(said.node, null, true), ` · run ${said.run} of contract `, named(said.contract), ` on chain ${said.chain_id} · Murmuration ${said.software} · `, el("a", { href: `${base}static/uPlot.LICENSE` }, "uPlot’s licence"));
  }

  return {
    outer,
    async refresh(changed) {
      if (changed.includes("node")) await front();
      await Promise.all(parts.flatMap((part) => part.names.map((name) => one(part, name, changed))));
    },
  };
}
