// Histograms over time.
import { html } from "../vendor.js";

/** `series`: [{metric, histograms: [[seconds, histogram]]}] or, with the label le, [{metric, values}]; `grid`: {start, end, step}. */
export function HeatMap({ series }) {
  return html`<p class="hint">${series.length} series of histograms: the table has their values.</p>`;
}
