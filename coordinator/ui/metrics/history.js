// The queries that were run here. They are kept in this browser only, and can be cleared.
import { html, signal, useRef, useSignal } from "../vendor.js";
import { Confirm, Dialog } from "../base/dialog.js";
import { count, time } from "../base/format.js";

const KEY = "triptych.queries";
export const KEPT_MAX = 200;
const TEXT_MAX = 5000; // characters of a query: all together stay below what a browser keeps for a page

const FRESH_MS = 60_000; // a query that refreshes itself is not written each time

/** Newest first: [{expr, at, isFavourite}]; `at` in ms. */
export const kept = signal(load());

function load() {
  try {
    const stored = JSON.parse(localStorage.getItem(KEY) ?? "[]");
    return Array.isArray(stored) ? stored.filter((one) => typeof one?.expr === "string").slice(0, KEPT_MAX) : [];
  } catch {
    return []; // storage is switched off, or has something else
  }
}

function keep(entries) {
  kept.value = entries;
  try {
    localStorage.setItem(KEY, JSON.stringify(entries));
  } catch {
    // then they last as long as the tab
  }
}

/** A query was run. The oldest goes if there are too many, favourites last. */
export function remember(expr) {
  const text = expr.trim();
  if (!text || text.length > TEXT_MAX) return;
  const isFresh = (one) => one.expr === text && Date.now() - one.at < FRESH_MS;
  if (kept.value.some(isFresh)) return;
  const entries = load(); // another tab may have added some
  const isFavourite = entries.find((one) => one.expr === text)?.isFavourite ?? false;
  const next = [{ expr: text, at: Date.now(), isFavourite }, ...entries.filter((one) => one.expr !== text)];
  while (next.length > KEPT_MAX) {
    const oldest = next.findLastIndex((one) => !one.isFavourite);
    next.splice(oldest > 0 ? oldest : next.length - 1, 1);
  }
  keep(next);
}

const update = (entry, changes) =>
  keep(load().map((one) => (one.expr === entry.expr ? { ...one, ...changes } : one)));
const forget = (entry) => keep(load().filter((one) => one.expr !== entry.expr));

/** `onChoose(expr)`, then `onClose()`. */
export function HistoryDialog({ onChoose, onClose }) {
  const wanted = useSignal("");
  const onlyFavourites = useSignal(false);
  const isClearing = useSignal(false);
  const list = useRef(null);
  const words = wanted.value.toLowerCase().split(/\s+/).filter(Boolean);
  const shown = kept.value.filter((one) =>
    (one.isFavourite || !onlyFavourites.value) && words.every((word) => one.expr.toLowerCase().includes(word)));
  const choose = (entry) => { onClose(); onChoose(entry.expr); };

  function move(event) {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (!step) return;
    event.preventDefault();
    const buttons = [...list.current.querySelectorAll("button.history-query")];
    const own = document.activeElement.closest("li")?.querySelector("button.history-query");
    const next = buttons.indexOf(own) + step;
    if (next < 0) list.current.closest("dialog").querySelector("input[type=search]").focus();
    else buttons[Math.min(next, buttons.length - 1)]?.focus();
  }

  return html`<${Dialog} title="Queries that were run here" class="wide" onClose=${onClose}>
    <div class="stack" onKeyDown=${move}>
      <div class="row">
        <input type="search" autofocus placeholder="Search" aria-label="Search queries" value=${wanted.value}
          onInput=${(event) => { wanted.value = event.target.value; }}
          onKeyDown=${(event) => { if (event.key === "Enter" && shown.length) choose(shown[0]); }} />
        <label><input type="checkbox" checked=${onlyFavourites.value} onChange=${() => { onlyFavourites.value = !onlyFavourites.value; }} /> Favourites</label>
        <span class="hint" aria-live="polite">${count(shown.length)} of ${count(kept.value.length)}</span>
        <span class="space"></span>
        <button disabled=${!kept.value.some((one) => !one.isFavourite)} onClick=${() => { isClearing.value = true; }}>Clear</button>
      </div>
      <ul class="history" ref=${list} aria-label="Queries">${shown.map((one) => html`<li key=${one.expr}>
        <button class="quiet" aria-pressed=${one.isFavourite} aria-label=${`Favourite: ${one.expr.slice(0, 80)}`} title="Favourite"
          onClick=${() => update(one, { isFavourite: !one.isFavourite })}>${one.isFavourite ? "★" : "☆"}</button>
        <button class="quiet history-query mono" onClick=${() => choose(one)}>${one.expr}</button>
        <span class="hint number">${time(one.at, { millis: false })}</span>
        <button class="quiet" aria-label=${`Remove: ${one.expr.slice(0, 80)}`} title="Remove" onClick=${() => forget(one)}>✕</button>
      </li>`)}</ul>
      ${!shown.length && html`<p class="hint">${kept.value.length ? "No query has these words." : "A query is kept here when it has been run."}</p>`}
      <p class="hint">The last ${KEPT_MAX}, in this browser only. Arrow keys move, Enter takes the one in focus, or the first.</p>
    </div>
    ${isClearing.value && html`<${Confirm} title="Clear the queries that were run here?" action="Clear all but favourites"
      onConfirm=${() => keep(load().filter((one) => one.isFavourite))} onClose=${() => { isClearing.value = false; }}>They are not kept anywhere else.<//>`}
  <//>`;
}
