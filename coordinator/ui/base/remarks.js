// What an answer says beside its data, and what went wrong.
import { html } from "../vendor.js";
import { cut } from "./format.js";

const CHARS_MAX = 2000; // of a text: it may quote a query of 64 KiB
const REMARKS_MAX = 50;

/** An ApiError or another error: its message, and what can be done. Nothing for null. `onRetry`: shows a button. */
export function Problem({ error, onRetry }) {
  if (!error) return null;
  return html`<div class="problem" role="alert">
    <p><strong>${error.kind ? `${error.kind}: ` : ""}</strong>${cut(String(error.message), CHARS_MAX)}</p>
    ${error.advice && html`<p class="advice">${error.advice}</p>`}
    ${onRetry && html`<button onClick=${onRetry}>Try again</button>`}
  </div>`;
}

/** The warnings (something is missing) and infos (hints) of an answer. `onPlace(line, column)`: called when a remark that
 * ends with a position such as (1:5) is clicked. */
export function Remarks({ warnings = [], infos = [], onPlace }) {
  if (!warnings.length && !infos.length) return null;
  const one = (kind) => (text) => html`<li class=${kind}>
    <span class="tag">${kind}</span> ${placed(text, onPlace)}
  </li>`;
  const most = (texts) => texts.slice(0, REMARKS_MAX).map((text) => cut(text, CHARS_MAX));
  const rest = Math.max(0, warnings.length - REMARKS_MAX) + Math.max(0, infos.length - REMARKS_MAX);
  return html`<ul class="remarks" aria-label="Remarks">${most(warnings).map(one("warning"))}${most(infos).map(one("info"))}
    ${rest > 0 && html`<li class="hint">and ${rest} more</li>`}</ul>`;
}

function placed(text, onPlace) {
  const match = onPlace && /^(.*)\((\d+):(\d+)\)$/s.exec(text);
  if (!match) return text;
  return html`${match[1]}<button class="link" onClick=${() => onPlace(Number(match[2]), Number(match[3]))}
    >line ${match[2]}, column ${match[3]}</button>`;
}

/** Long work: what it is, how far it is if that is known (0 to 1), and a button that cancels it. */
export function Progress({ label, share, onCancel }) {
  return html`<div class="progress" role="status">
    <progress value=${share} max="1" aria-label=${label}></progress> <span>${label}</span>
    ${onCancel && html`<button onClick=${onCancel}>Cancel</button>`}
  </div>`;
}
