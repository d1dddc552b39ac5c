// Taking the answer of a query out of the page.
import { html } from "../vendor.js";
import { save } from "../base/take.js";

/** `query`: as query.js gives it, with `request`: {path, fields}; `range`: {start, end, step} in seconds. */
export function ExportMenu({ query }) {
  return html`<button class="quiet" onClick=${() => save("result.json", JSON.stringify(query.result), "application/json")}>JSON</button>`;
}
