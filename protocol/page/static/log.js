// The last lines of a role's log. What strangers wrote into it does nothing here.

import { el, empty, put, section, words } from "./dom.js";

export function logOf(role) {
  const nowhere = {
    "this process": "Nothing was logged yet.",
    "a file": "The log file is empty, or cannot be read.",
    nowhere: `The ${role} does not run in this process, and its settings name no log file: its log is where it was started.`,
  };
  const made = section("log", "Log");
  return {
    names: ["log"],
    outer: made.outer,
    show(_, said) {
      if (!said.lines.length) {
        put(made.body, empty(nowhere[said.from]));
        return;
      }
      const before = made.body.querySelector(".log");
      const isAtEnd = !before || before.scrollTop + before.clientHeight >= before.scrollHeight - 4;
      const shown = el("div", { class: "log", tabindex: 0, role: "log", "aria-label": "The last lines of the log" }, ...said.lines.map((line) => el("div", {}, ...words(line))));
      put(made.body, shown);
      shown.scrollTop = isAtEnd ? shown.scrollHeight : before.scrollTop;
    },
  };
}
