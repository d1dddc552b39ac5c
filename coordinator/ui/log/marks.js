// Where a text matches the expression that it was found with. A worker looks for it and is ended when it takes long: the
// server's expressions take linear time, but the browser's need not.
import { html, signal, useEffect, useSignal } from "../vendor.js";

const WITHIN_MS = 300;
const START_WITHIN_MS = 10_000;
const REMEMBERED_MAX = 2000;

/** The expression for which this browser cannot mark matches, "" if there is none. */
export const unmarked = signal("");

const places = new Map(); // [[begin, end]] by expression and text
let waiting = new Map(); // functions that want to know, by text
let worker = null;
let isBusy = false;

function find(pattern, text, tell) {
  const name = `${pattern}\n${text}`;
  if (places.has(name) || unmarked.peek() === pattern) return tell(places.get(name) ?? []);
  const others = waiting.get(name);
  if (others) others.tell.push(tell);
  else waiting.set(name, { pattern, text, tell: [tell] });
  if (!isBusy) {
    isBusy = true;
    queueMicrotask(ask);
  }
  return undefined;
}

function ask() {
  const asked = [...waiting.values()];
  waiting = new Map();
  isBusy = asked.length > 0;
  if (!isBusy) return;
  const own = (worker ??= started());
  let timer = 0;
  const limit = (ms) => {
    clearTimeout(timer);
    timer = setTimeout(() => {
      own.terminate();
      worker = null;
      finish(asked, null);
    }, ms);
  };
  limit(own.isReady ? WITHIN_MS : START_WITHIN_MS);
  own.onmessage = ({ data }) => {
    if (!own.isReady) {
      own.isReady = true; // it has been loaded, and begins
      limit(WITHIN_MS);
      return;
    }
    clearTimeout(timer);
    finish(asked, data);
  };
  own.postMessage(asked.map(({ pattern, text }) => [pattern, text]));
}

const started = () => new Worker(new URL("./marks_worker.js", import.meta.url), { type: "module" });

function finish(asked, found) {
  asked.forEach(({ pattern, text, tell }, index) => {
    const own = found?.[index] ?? null;
    if (own === null) unmarked.value = pattern;
    if (places.size >= REMEMBERED_MAX) places.clear();
    places.set(`${pattern}\n${text}`, own ?? []);
    tell.forEach((one) => one(own ?? []));
  });
  ask();
}

/** The text with its matches marked, as soon as they are known. `pattern`: "" marks nothing. */
export function Marked({ text, pattern }) {
  const found = useSignal({ text: "", places: [] });
  useEffect(() => {
    let isOver = false;
    if (pattern) find(pattern, text, (own) => { if (!isOver) found.value = { text, places: own }; });
    return () => { isOver = true; };
  }, [text, pattern]);
  if (!pattern || found.value.text !== text || !found.value.places.length) return text;
  const parts = [];
  let at = 0;
  for (const [begin, end] of found.value.places) {
    parts.push(text.slice(at, begin), html`<mark>${text.slice(begin, end)}</mark>`);
    at = end;
  }
  return [...parts, text.slice(at)];
}
