// The area "cluster".
import { html } from "../vendor.js";

export function View() {
  return html`<h1>Cluster</h1>`;
}
