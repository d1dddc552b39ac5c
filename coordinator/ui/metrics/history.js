// The queries that were run in this tab.
import { html, signal } from "../vendor.js";
import { Dialog } from "../base/dialog.js";

const MAX = 200;
const past = signal([]);

export function remember(expr) {
  past.value = [expr, ...past.value.filter((one) => one !== expr)].slice(0, MAX);
}

/** `onChoose(expr)`: takes the place of the query. */
export function HistoryDialog({ onChoose, onClose }) {
  return html`<${Dialog} title="Queries that were run" onClose=${onClose}>
    ${past.value.length ? past.value.map((expr) => html`<p><button class="link mono" onClick=${() => onChoose(expr)}>${expr}</button></p>`) : html`<p>None yet.</p>`}
  <//>`;
}
