// What computes, and how the node reaches weights and peers.

import { el, empty, facts, named, put, section, tag, when, words } from "./dom.js";
import { spent } from "./spent.js";
import { table } from "./table.js";
import { bytes, count, short } from "./text.js";

export function machine() {
  const made = section("machine", "Machine");
  return {
    names: ["machine"],
    outer: made.outer,
    show(_, said) {
      put(made.body, el("div", { class: "split" }, facts(factsOf(said)), el("div", {}, ...time(said.seconds ?? {}))));
    },
  };
}

function factsOf(said) {
  const used = (all, free) => `${bytes(all - free)} of ${bytes(all)} in use`;
  return [
    ["device", ...words(said.device), ` (${said.engine})`],
    said.is_gpu && ["its memory", used(said.device_memory, said.device_free)],
    ["memory", used(said.memory, said.memory_free), said.process_memory ? `, ${bytes(said.process_memory)} by this process` : ""],
    ["cores", count(said.cores)],
    ["disk of its data", `${bytes(said.disk_free)} of ${bytes(said.disk)} free`],
    said.tokens !== undefined && ["made since it started", `${short(said.tokens)} tokens`],
  ];
}

function time(bySeconds) {
  const bar = spent(bySeconds, "Where the node’s time went");
  return bar.length ? [el("h3", {}, "Where its time went"), ...bar] : [];
}

export function network() {
  const made = section("network", "Weights and peers");
  const weights = el("div", {}, empty("loading"));
  const peers = el("div", {}, empty("loading"));
  const known = table("Peers", [
    { name: "peer", show: (peer) => named(peer.peer) },
    { name: "addresses", show: (peer) => el("span", {}, ...words(peer.addresses.join(" "))), wide: true, rank: 2 },
    { name: "seen", show: (peer) => when(peer.seen, "wall"), num: true },
  ], { none: "It knows no peer yet." });
  put(made.body, el("div", { class: "split" }, el("div", {}, el("h3", {}, "Weights"), weights), el("div", {}, el("h3", {}, "Peers"), peers)), known.outer);
  return {
    names: ["machine", "network"],
    outer: made.outer,
    show(name, said) {
      if (name === "machine") put(weights, ...weightsOf(said.weights));
      else {
        put(peers, ...peersOf(said));
        known.show(said?.peers ?? []);
      }
    },
  };
}

function weightsOf(said) {
  if (!said.held.length) return [empty("No version of the weights is on this machine yet.")];
  const line = (one) => el("li", {}, `version ${count(one.step)}, ${bytes(one.bytes)} `, one.step === said.loaded ? tag("loaded") : "");
  return [el("ul", { class: "list" }, ...said.held.map(line))];
}

function peersOf(said) {
  if (!said) return [empty("The node has not joined the network yet: it does when it starts.")];
  const text = (values) => [el("span", {}, ...words(values.join(" ") || "–"))];
  return [facts([
    ["network", said.state !== "running" ? tag("stopped") : said.joined ? tag("joined") : tag("not joined"), ...(said.reason ? [" ", ...words(said.reason)] : [])],
    ["connections", `${count(said.outbound)} to others, ${count(said.inbound)} from others`],
    ["peers known", count(said.known)],
    ["peer ID", named(said.peer, null, false)],
    ["listens at", ...text([said.listen ?? ""])],
    said.announced?.length && ["reached at", ...text(said.announced)],
    ...(said.bootnodes ?? []).map((one) => ["bootnode", ...text([one.address]), " ", one.connected ? tag("connected") : tag("not connected"), ...(one.problem ? [" ", ...words(one.problem)] : [])]),
    ["said", when(said.at, "wall")],
  ])];
}
