// The whole page: what the trainer does, what it has learnt, what it has kept. Each part is drawn anew when there is another one.

import { alarms } from "./alarms.js";
import { base, el, put, setChainTime } from "./dom.js";
import { checkpoints, versions } from "./disk.js";
import { headline } from "./headline.js";
import { learning } from "./learning.js";
import { get } from "./live.js";
import { logOf } from "./log.js";
import { timeline } from "./timeline.js";

export function overview() {
  const top = headline();
  const parts = [timeline(), learning(), alarms(), checkpoints(), versions(), logOf("trainer")];
  const outer = el("div", {}, top.outer, ...parts.map((part) => part.outer));
  const footer = document.getElementById("footer");

  function front(said) {
    top.show(said);
    document.getElementById("run-name").textContent = said.solo ? "My trainer, alone" : `My trainer · run ${said.run}`;
    document.title = `${top.title} · my trainer`;
    put(footer, said.page ? el("a", { href: said.page }, "The run’s page") : null, said.page ? " · " : null, `Murmuration ${said.software} · `, el("a", { href: `${base}static/uPlot.LICENSE` }, "uPlot’s licence"));
  }

  return {
    outer,
    async refresh(changed) {
      const said = Object.fromEntries(await Promise.all(changed.map(async (name) => [name, await get(name)])));
      if (said.versions?.now) setChainTime(said.versions.now, said.versions.now_at);
      if (said.trainer) front(said.trainer);
      for (const part of parts) for (const name of part.names) if (said[name]) part.show(name, said[name]);
    },
  };
}
