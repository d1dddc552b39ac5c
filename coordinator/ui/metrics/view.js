// The area "metrics".
import { html } from "../vendor.js";

export function View() {
  return html`<h1>Metrics</h1>`;
}
