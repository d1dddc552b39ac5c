// The area "vectors".
import { html } from "../vendor.js";

export function View() {
  return html`<h1>Vectors</h1>`;
}
