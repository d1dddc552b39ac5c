// The area "log".
import { html } from "../vendor.js";

export function View() {
  return html`<h1>Log</h1>`;
}
