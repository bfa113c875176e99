// Elements, made by calls: nothing here ever reads a string as HTML.

import { absolute, ago, exact, harmless, shortened, tokens } from "./text.js";

export const base = document.documentElement.dataset.base;
export const server = document.documentElement.dataset.server; // who serves the page, in words

export function el(tag, properties, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(properties ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return made;
}

export const put = (parent, ...children) => parent.replaceChildren(...children.flat().filter((child) => child !== null));

export const words = (text) =>
  harmless(text).map((piece) => (typeof piece === "string" ? piece : el("span", { class: "control" }, piece.control)));

// ---- times ----

const LAST = 253402300800; // the end of the year 9999
const clock = { now: null, at: 0 };

export function setChainTime(now, at = Date.now() / 1000) {
  // Block time is the protocol's clock; a development chain's may be days ahead of this machine's.
  clock.now = now;
  clock.at = at; // when it was that time there, by this machine
}

const nowOf = (kind) => (kind === "chain" && clock.now !== null ? clock.now + Date.now() / 1000 - clock.at : Date.now() / 1000);

export function when(time, kind = "chain") {
  // A validator may have made its time up; of what no calendar has, nothing is said.
  if (!(time > 0 && time < LAST)) return el("span", { class: "soft" }, "–");
  const stamp = absolute(time);
  return el("time", { datetime: new Date(time * 1000).toISOString(), title: stamp, "data-kind": kind, "data-time": time }, ago(nowOf(kind) - time));
}

setInterval(() => {
  for (const shown of document.querySelectorAll("time[data-time]")) {
    const text = ago(nowOf(shown.dataset.kind) - Number(shown.dataset.time));
    if (shown.textContent !== text) shown.textContent = text;
  }
}, 5000);

// ---- names ----

export function copier(text) {
  if (!navigator.clipboard) return null;
  const button = el("button", { class: "copy", type: "button", "aria-label": `Copy ${text}`, title: "Copy" });
  button.addEventListener("click", async () => {
    await navigator.clipboard.writeText(text);
    button.classList.add("done");
    button.title = "Copied";
    setTimeout(() => { button.classList.remove("done"); button.title = "Copy"; }, 1500);
  });
  return button;
}

export function named(text, path = null, whole = false) {
  // An address or digest, shortened; the whole is its title and what is copied.
  const code = el("code", { title: text }, whole ? text : shortened(text));
  return el("span", {}, path ? el("a", { href: base + path }, code) : code, copier(text));
}

export const node = (address, whole = false) => named(address, `node/${address}`, whole);
export const submission = (id, whole = false) => named(id, `submission/${id}`, whole);
export const version = (step) => (step === null || step === undefined ? "–" : el("a", { href: `${base}version/${step}` }, String(step)));
export const caseOf = (each) => el("a", { href: `${base}case/${each.seat}/${each.number}`, title: `case ${each.number} against ${each.seat}` }, `${shortened(each.seat)} #${each.number}`);
export const amount = (wei) => (wei === null || wei === undefined ? el("span", { class: "soft" }, "–") : el("span", { title: exact(wei) }, tokens(wei)));

const KINDS = { whole: "good", published: "good", alarm: "bad", "not whole": "bad", accept: "good", accepted: "good", active: "good", joined: "good", connected: "good", loaded: "good", working: "good", "not joined": "warn", "not connected": "warn", lost: "warn", revoked: "bad", swept: "bad", soft: "warn", hard: "bad", convicted: "bad", banned: "bad", open: "warn", voting: "warn", upheld: "bad", cleared: "good" };
export const tag = (text) => el("span", { class: `tag ${KINDS[text] ?? ""}` }, text);
export const empty = (text) => el("p", { class: "empty" }, text);

export function facts(pairs, kind = "") {
  const rows = pairs.filter((pair) => pair).map(([name, ...value]) => [el("dt", {}, name), el("dd", {}, ...value)]);
  return el("dl", { class: `facts ${kind}`.trim() }, ...rows);
}

export function tile(name, value, ...under) {
  const [text, unit] = Array.isArray(value) ? value : [value, null];
  const shown = el("div", { class: "value" }, text, unit ? el("small", {}, ` ${unit}`) : null);
  return el("div", { class: "tile" }, el("dt", {}, name), el("dd", {}, shown, el("div", { class: "under" }, ...under)));
}

export function section(id, title, ...controls) {
  const body = el("div", {}, empty("loading"));
  const head = el("div", { class: "head" }, el("h2", { id: `${id}-title` }, title), controls.length ? el("div", { class: "controls" }, ...controls) : null);
  return { body, outer: el("section", { id, "aria-labelledby": `${id}-title` }, head, body) };
}
