// What was kept: checkpoints to go on from, and versions of the weights that others have.

import { el, facts, put, section, tag, when } from "./dom.js";
import { table } from "./table.js";
import { bytes, count } from "./text.js";

export function checkpoints() {
  const made = section("checkpoints", "Checkpoints");
  const note = el("p", { class: "note" });
  const rows = table("Checkpoints on the disk", [
    { name: "step", show: (row) => count(row.step) },
    { name: "size", show: (row) => bytes(row.bytes), num: true },
    { name: "made", show: (row) => when(row.at, "wall"), num: true },
    { name: "files", show: (row) => el("span", {}, tag(row.whole ? "whole" : "not whole"), row.whole ? "" : row.missing === null ? " no digests" : ` ${count(row.missing)} missing`) },
    { name: "kept", show: (row) => (row.stays ? "for good" : "until newer ones are there"), rank: 2 },
  ], { none: "None yet: the first is saved before the first step." });
  put(made.body, note, rows.outer);
  return {
    names: ["checkpoints"],
    outer: made.outer,
    show(_, said) {
      const writing = said.writing === null ? "" : ` That of step ${count(said.writing)} is being written.`;
      const more = said.total > said.rows.length ? ` ${count(said.total - said.rows.length)} older ones are not listed.` : "";
      note.textContent = `One every ${said.every === 1 ? "step" : `${count(said.every)} steps`}; the newest ${count(said.kept)} stay. Whole means that no file is missing; digests are checked when the trainer resumes.${writing}${more}`;
      rows.show(said.rows);
    },
  };
}

export function versions() {
  const made = section("versions", "Versions");
  const rows = table("Versions on the chain", [
    { name: "version", show: (row) => count(row.step) },
    { name: "published", show: (row) => when(row.at), num: true },
  ], { none: "None is on the chain yet." });
  return {
    names: ["versions"],
    outer: made.outer,
    show(_, said) {
      const steps = (all) => all.map((step) => count(step)).join(", ") || "none";
      const newest = said.rows[0]?.step ?? -1;
      const local = facts([
        ["being written", said.writing === null ? "none" : count(said.writing)],
        !said.solo && ["on their way to the chain", steps(said.ready.filter((step) => step > newest))],
        [said.solo ? "to generate and evaluate with" : "published, and kept here", steps(said.ready.filter((step) => said.solo || step <= newest))],
      ]);
      if (said.solo) put(made.body, el("p", { class: "note" }, "This trainer works alone: nothing is published."), local);
      else put(made.body, el("div", { class: "split" }, el("div", {}, el("h3", {}, "On the chain"), rows.outer), el("div", {}, el("h3", {}, "On this machine"), local)));
      rows.show(said.rows);
    },
  };
}
