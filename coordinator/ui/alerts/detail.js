// What the three parts of this area show alike.
import { html } from "../vendor.js";
import { Dialog } from "../base/dialog.js";
import { series, time } from "../base/format.js";
import { change, params } from "../base/link.js";

const NEVER = "0001";

/** A time as the server writes it, in ms; null for a time that has not come yet. */
export const moment = (text) => (!text || text.startsWith(NEVER) ? null : Date.parse(text));

/** A column with a time. */
export const timeColumn = (title, of) => ({
  title,
  value: (row) => moment(of(row)) ?? 0,
  render: (row) => (moment(of(row)) === null ? "never" : time(moment(of(row)), { millis: false })),
});

/** A column with a label set. */
export const labelsColumn = (of) => ({
  title: "Labels",
  value: (row) => series(of(row)),
  render: (row) => html`<code title=${series(of(row))}>${series(of(row))}</code>`,
});

/** A choice of states that the link keeps; `counts`: {state: how many}. */
export function States({ counts, label }) {
  const chosen = params.value.get("state") ?? "";
  return html`<label>${label} <select value=${chosen} onChange=${(event) => change({ state: event.target.value })}>
    <option value="">all</option>
    ${Object.entries(counts).map(([state, count]) => html`<option value=${state}>${state} (${count})</option>`)}</select></label>`;
}

/** How many rows have each state, the most alarming state first as `order` says. */
export function counted(rows, of, order) {
  const counts = Object.fromEntries(order.map((state) => [state, 0]));
  for (const row of rows) counts[of(row)] = (counts[of(row)] ?? 0) + 1;
  return counts;
}

/** The rows with the state that the link names, or all. */
export function ofState(rows, of) {
  const chosen = params.value.get("state");
  return chosen ? rows.filter((row) => of(row) === chosen) : rows;
}

/** What a table without rows says: `none`, unless there are rows of other states than the one that the link names. */
export const emptyText = (rows, none) => (rows.length ? `None is ${params.value.get("state")}.` : none);

/** All that is known of a row: `facts`: [[name, value]], those without a value are left out. */
export function Detail({ title, facts, onClose, children }) {
  return html`<${Dialog} title=${title} class="wide" onClose=${onClose}>
    ${children}
    <table class="plain"><tbody>${facts.filter(([, value]) => value).map(([name, value]) => html`<tr><th scope="row">${name}</th><td>${value}</td></tr>`)}</tbody></table>
  <//>`;
}
