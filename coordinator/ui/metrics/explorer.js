// The metrics that are there.
import { html } from "../vendor.js";
import { Dialog } from "../base/dialog.js";

/** `onChoose(text)`: inserts a text into the query. */
export function Explorer({ onClose }) {
  return html`<${Dialog} title="Metrics" onClose=${onClose}><p>Names complete themselves in the query.</p><//>`;
}
