// What keys do on what is shown now.
import { html } from "../vendor.js";
import { Dialog } from "../base/dialog.js";
import { known } from "../base/keys.js";

export function Help({ onClose }) {
  const rows = [...new Map(known.value.map((one) => [one.keys, one])).values()];
  return html`<${Dialog} title="Keys" onClose=${onClose}>
    <table class="plain"><tbody>${rows.map((one) => html`<tr>
      <th scope="row">${one.keys.split(" ").map((key) => html`<kbd>${key}</kbd> `)}</th><td>${one.label}</td>
    </tr>`)}</tbody></table>
    <p class="hint">Keys count outside of text fields. Escape leaves a dialog.</p>
  <//>`;
}
