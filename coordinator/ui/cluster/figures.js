// What the parts of this area show alike: figures, shares and rates.
import { html } from "../vendor.js";
import { count, short } from "../base/format.js";

/** `figures`: [[label, value, title?]], the most important facts of a part. */
export function Figures({ figures }) {
  return html`<dl class="figures">${figures.map(([label, value, title]) => html`<div title=${title}>
    <dt>${label}</dt><dd>${value}</dd></div>`)}</dl>`;
}

/** A part of a whole as a bar and in percent. */
export function Share({ of, value }) {
  const share = of > 0 ? Math.min(1, value / of) : 0;
  return html`<span class="share"><span class="share-bar" aria-hidden="true"><span style=${{ width: `${share * 100}%` }}></span></span>
    <span class="share-number">${(share * 100).toFixed(1)} %</span></span>`;
}

/** Items a second, "–" while nobody knows. */
export function rate(value) {
  if (value === undefined || value === null) return "–";
  if (value && value < 10) return value.toFixed(1);
  return value < 100_000 ? count(value) : short(Math.round(value));
}

/** How many came, with a plus. */
export const growth = (value) => (value ? `+${count(value)}` : "0");
