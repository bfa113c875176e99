// Who takes part: nodes, validators, relays.

import { amount, el, named, node, put, section, tag, version, when } from "./dom.js";
import { get } from "./live.js";
import { table } from "./table.js";
import { bytes, count, short } from "./text.js";

const PAGE = 25;

export function nodes() {
  const state = { sort: "last", down: true, find: "", offset: 0 };
  const search = el("input", { type: "search", placeholder: "address", "aria-label": "Search nodes by address", maxlength: 64, spellcheck: "false" });
  const made = section("nodes", "Nodes", search);
  const of = (key, name, show, more = {}) => ({ key, name, show, ...more });
  const rows = table("Nodes", [
    of("address", "node", (row) => node(row.address)),
    of("state", "state", (row) => tag(row.state)),
    of("class", "class", (row) => className(row), { rank: 2 }),
    of("stake", "stake, MUR", (row) => amount(row.stake), { num: true, rank: 2, title: "What the seat has at stake now; asked of the chain in turns" }),
    of("accepted", "accepted", (row) => count(row.accepted), { num: true }),
    of("soft", "soft", (row) => flagged(row.soft, "warn"), { num: true, title: "Submissions that earn nothing" }),
    of("hard", "hard", (row) => flagged(row.hard, "bad"), { num: true, title: "Submissions found to be cheating" }),
    of("pending", "pending", (row) => count(row.pending), { num: true, rank: 3, title: "Without a verdict yet" }),
    of("tokens", "tokens", (row) => short(row.tokens), { num: true, rank: 2 }),
    of("step", "version", (row) => version(row.step), { num: true, rank: 3 }),
    of("paid", "paid, MUR", (row) => amount(row.paid), { num: true, rank: 3 }),
    of("slashed", "slashed, MUR", (row) => amount(row.slashed), { num: true, rank: 3 }),
    of("last", "last seen", (row) => when(row.last), { num: true }),
  ], { sort: "last", none: "No node has taken a seat yet, or none is called so.", onSort: (sort, down) => turn({ sort, down, offset: 0 }) });
  const pages = el("div", { class: "pages" });
  let asked = 0;

  async function refresh() {
    const mine = ++asked;
    const query = new URLSearchParams({ sort: state.sort, order: state.down ? "down" : "up", find: state.find, offset: state.offset, limit: PAGE });
    const found = await get(`nodes?${query}`);
    if (mine !== asked) return; // a later question was asked meanwhile
    rows.show(found.rows);
    const step = (by, name) => el("button", { type: "button", "aria-label": `${name} page of nodes`, onclick: () => turn({ offset: Math.max(0, state.offset + by) }), disabled: by < 0 ? state.offset === 0 : state.offset + PAGE >= found.total }, by < 0 ? "‹" : "›");
    const range = `${count(found.total ? state.offset + 1 : 0)}–${count(Math.min(found.total, state.offset + PAGE))} of ${count(found.total)}`;
    const focused = pages.contains(document.activeElement) ? document.activeElement.getAttribute("aria-label") : null;
    put(pages, range, el("span", { class: "controls" }, step(-PAGE, "Previous"), step(PAGE, "Next")));
    if (focused) [...pages.querySelectorAll("button")].find((each) => each.getAttribute("aria-label") === focused)?.focus();
  }

  function turn(change) {
    Object.assign(state, change);
    refresh().catch((error) => put(pages, error.message));
  }

  let typing = null;
  search.addEventListener("input", () => {
    clearTimeout(typing);
    typing = setTimeout(() => turn({ find: search.value.trim(), offset: 0 }), 200);
  });
  put(made.body, rows.outer, pages);
  return { names: ["nodes"], outer: made.outer, refresh };
}

export function className(row) {
  if (row.class === null || row.class === undefined) return "–";
  return row.class_name ? `${row.class} ${row.class_name}` : String(row.class);
}

export const flagged = (value, kind) => (value ? el("span", { class: kind }, count(value)) : count(value));

export function validators() {
  const made = section("validators", "Validators");
  const column = (name, of, more = {}) => ({ name, of, show: (row) => count(of(row)), num: true, ...more });
  const wei = (name, of, more = {}) => ({ name, of: (row) => (of(row) === null ? null : BigInt(of(row))), show: (row) => amount(of(row)), num: true, ...more });
  const rows = table("Validators", [
    { name: "validator", of: (row) => row.address, show: (row) => named(row.address) },
    { name: "serves", of: (row) => row.serves, show: (row) => tag(row.serves ? "serves" : "left") },
    wei("stake, MUR", (row) => row.stake, { rank: 2 }),
    column("accepted", (row) => row.accepted),
    column("soft", (row) => row.soft),
    column("hard", (row) => row.hard),
    column("cases", (row) => row.cases, { title: "Brought or co-signed" }),
    column("votes", (row) => row.votes, { rank: 2 }),
    column("abstained", (row) => row.abstentions, { rank: 3 }),
    column("silent", (row) => row.silences, { rank: 3, title: "Appeals on which it was charged for saying nothing" }),
    column("impeached", (row) => row.impeachments, { rank: 3 }),
    wei("promised, MUR", (row) => row.promised, { rank: 2, title: "By the trainer’s vouchers so far" }),
    wei("redeemed, MUR", (row) => row.redeemed, { rank: 3 }),
    { name: "last verdict", of: (row) => row.last, show: (row) => when(row.last), num: true },
  ], { sort: "validator", down: false, none: "No validator has a seat yet: nothing is published before there is a jury." });
  put(made.body, rows.outer);
  return { names: ["validators"], outer: made.outer, show: rows.show };
}

export function relays() {
  const made = section("relays", "Relays and broadcast");
  return {
    names: ["relays"],
    outer: made.outer,
    show({ origin, relays: all }) {
      const most = Math.max(1, ...all.filter((row) => row.step === origin.step).map((row) => row.of_step));
      const rows = table("Relays", [
        { name: "from the origin to", of: (row) => row.address, show: (row) => el("code", {}, row.address) },
        { name: "bytes", of: (row) => row.bytes, show: (row) => bytes(row.bytes), num: true },
        { name: "rate", of: (row) => row.rate, show: (row) => (row.rate === null ? "–" : `${bytes(row.rate)}/s`), num: true },
        { name: "newest version", of: (row) => row.step, show: (row) => version(row.step), num: true },
        { name: "bytes of it", of: (row) => row.of_step, show: (row) => progress(row, origin.step, most), num: true, rank: 2, title: "Relays fetch different parts first, and the rest from each other" },
        { name: "last", of: (row) => row.last, show: (row) => when(row.last, "wall"), num: true },
      ], { sort: "bytes", none: "No relay is announced: nodes fetch from the origin." });
      const sent = `The origin has sent ${bytes(origin.bytes)} of weights${origin.rate ? `, ${bytes(origin.rate)}/s now` : ""}; newest version `;
      rows.show(all);
      put(made.body, el("p", { class: "note" }, sent, version(origin.step), ". What relays send on is theirs to tell."), rows.outer);
    },
  };
}

function progress(row, newest, most) {
  if (row.step === null) return "–";
  const share = row.step === newest ? row.of_step / most : 0;
  const bar = el("span", {});
  bar.style.width = `${Math.round(100 * Math.min(1, share))}%`;
  return el("span", {}, el("span", { class: "progress", "aria-hidden": "true" }, bar), row.step === newest ? bytes(row.of_step) : "behind");
}

