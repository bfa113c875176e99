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
  const changed = Object.keys(said.parts).filter((name) => said.parts[name] !== tags[name]);
  tags = said.parts;
  told = Date.now() / 1000;
  show(said.trouble);
  page.refresh(changed).catch((error) => show(error.message));
}

function state(isOn) {
  live.className = isOn ? "on" : "off";
  live.textContent = isOn ? "live" : told ? `not live: numbers of ${absolute(Math.floor(told))}` : "the hub does not answer; trying again";
}

page.refresh([]).catch((error) => show(error.message)).then(() => {
  // What an address names by its hash was not there when the browser looked.
  if (location.hash) document.getElementById(location.hash.slice(1))?.scrollIntoView();
});
follow(news, state);
