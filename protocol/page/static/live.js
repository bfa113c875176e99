// Follows the server: one stream of server-sent events, each of which names what is new; only that is fetched.

import { base, server } from "./dom.js";

const AGAIN_MS = 5000;

export async function get(path) {
  const answer = await fetch(`${base}api/v1/${path}`, { cache: "no-cache", credentials: "omit" });
  const value = await answer.json().catch(() => ({ error: `${server} answered ${answer.status}` }));
  if (!answer.ok) throw Object.assign(new Error(value.error ?? `${server} answered ${answer.status}`), { status: answer.status });
  return value;
}

export function follow(onNews, onState) {
  let stream = null;
  let failed = 0;
  let waiting = null;
  let last = "";

  function open() {
    clearTimeout(waiting);
    stream?.close();
    stream = new EventSource(`${base}api/v1/events?wait=25&have=${encodeURIComponent(last)}`);
    stream.addEventListener("open", () => { failed = 0; onState(true); });
    stream.addEventListener("news", (event) => {
      failed = 0;
      last = event.lastEventId;
      onNews(JSON.parse(event.data));
    });
    stream.addEventListener("error", () => {
      // Each answer ends, which is an "error" too: only one without an answer in between is trouble.
      failed += 1;
      if (failed > 1 || stream.readyState === EventSource.CLOSED) onState(false);
      if (stream.readyState === EventSource.CLOSED) waiting = setTimeout(open, AGAIN_MS);
    });
  }

  document.addEventListener("visibilitychange", () => {
    if (document.hidden) {
      clearTimeout(waiting);
      stream?.close();
    } else open();
  });
  open();
}
