// What the server did for a query.
import { html } from "../vendor.js";

/** `query.result`: with `explain` and `stats`; `onMark(from, to)` marks a part of the query's text; `onPlace(line, column)`. */
export function Explain({ query }) {
  const { explain, stats } = query.result;
  return html`<pre>${JSON.stringify({ explain, stats }, null, 2).slice(0, 100_000)}</pre>`;
}
