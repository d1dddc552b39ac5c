// The result of a query over a range, drawn.
import { html } from "../vendor.js";

/** `query`: as query.js gives it; `update(changes, options)` changes what the link has of it; `onZoom(range, end)` in seconds. */
export function Graph({ query }) {
  return html`<p class="hint">${query.series} series</p>`;
}
