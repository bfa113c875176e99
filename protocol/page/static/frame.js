// What every page has around it: the path, whether it is live, what troubles it; and what keeps it up to date.

import { base, put, server } from "./dom.js";
import { follow } from "./live.js";
import { absolute } from "./text.js";

const main = document.getElementById("main");
const live = document.getElementById("live");
const trouble = document.getElementById("trouble");
let tags = {};
let told = null;

export const path = location.pathname.slice(base.length).split("/").filter(Boolean).map(decodeURIComponent);

export function keep(page, gone = `${server} does not answer; trying again`) {
  // A page: { outer, refresh (names of parts that are new → promise) }. `gone`: said while there never was an answer.
  put(main, page.outer);

  function news(said) {
    show(said.trouble);
    if (!Object.keys(said.parts).length) return; // it has only just been asked
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
    live.textContent = isOn ? "live" : told ? `not live: numbers of ${absolute(Math.floor(told))}` : gone;
    page.state?.(isOn);
  }

  follow(news, state);
}

function show(text) {
  trouble.hidden = !text;
  if (trouble.textContent !== text) trouble.textContent = text ?? "";
}
