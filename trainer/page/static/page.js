// Which page this is, by its path, and what keeps it up to date.

import { base, el, put } from "./dom.js";
import { detail } from "./detail.js";
import { follow } from "./live.js";
import { overview } from "./overview.js";
import { absolute } from "./text.js";

const main = document.getElementById("main");
const live = document.getElementById("live");
const trouble = document.getElementById("trouble");
const path = location.pathname.slice(base.length).split("/").filter(Boolean).map(decodeURIComponent);
const page = path.length ? detail(path) : overview();
let tags = {};
let told = null;

put(main, page.outer);

function show(text) {
  trouble.hidden = !text;
  if (trouble.textContent !== text) trouble.textContent = text ?? "";
}

function news(said) {
  show(said.trouble);
  if (!Object.keys(said.parts).length) return; // the hub has only just been asked
  const isFirst = !Object.keys(tags).length;
  const changed = Object.keys(said.parts).filter((name) => said.parts[name] !== tags[name]);
  tags = said.parts;
  told = Date.now() / 1000;
  page.refresh(changed).catch((error) => show(error.message)).then(() => {
    // What an address names by its hash was not there when the browser looked.
    if (isFirst && location.hash) document.getElementById(location.hash.slice(1))?.scrollIntoView();
  });
}

function state(isOn) {
  live.className = isOn ? "on" : "off";
  live.textContent = isOn ? "live" : told ? `not live: numbers of ${absolute(Math.floor(told))}` : "the hub does not answer; trying again";
}

follow(news, state);
