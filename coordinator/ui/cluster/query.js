// All that is known of one query, running or slow.
import { html } from "../vendor.js";
import { Dialog } from "../base/dialog.js";
import { count, duration, time, took } from "../base/format.js";
import { linkTo } from "../base/link.js";
import { Copy } from "../base/take.js";

/** The link that asks the query again in the area of metrics; null for what is no PromQL, or is hidden or cut. */
export function again(query) {
  const isWhole = query.query.length < 1000 && !query.query.startsWith("hidden:");
  if (!isWhole || !query.grid) return null;
  const { start, end, step } = query.grid;
  if (!step) return linkTo("metrics", { expr: query.query, view: "table", end });
  return linkTo("metrics", { expr: query.query, range: duration(end - start), end, step: duration(step) });
}

const times = ({ start, end, step }) =>
  step ? `${time(start * 1000)} to ${time(end * 1000)}, every ${took(step)}` : time(start * 1000);

const facts = (query) => [
  ["Id", query.id],
  ["Kind", query.kind],
  ["Client", query.client],
  ["Began", time(query.start * 1000)],
  ["Took", query.seconds === undefined ? null : took(query.seconds)],
  ["State", query.state],
  ["Status", query.status === undefined ? null : `${query.status} ${query.error}`],
  ["Times", query.grid && times(query.grid)],
  ["Place", query.place],
  ["Series", query.series === undefined ? null : count(query.series)],
  ["Samples read", count(query.samples)],
  ["Expected", query.estimate && Object.entries(query.estimate).map(([name, value]) => `${name} ${count(value)}`).join(", ")],
  ["Time by state", query.states && Object.entries(query.states).map(([state, seconds]) => `${state} ${took(seconds)}`).join(", ")],
  ["Workers", query.workers.map((part) => `${part.worker} ${took(part.seconds)}, ${count(part.samples)} samples`).join("; ")],
];

export function Query({ query, onClose }) {
  const link = again(query);
  return html`<${Dialog} title="Query" class="wide" onClose=${onClose}>
    <pre class="panel">${query.query}</pre>
    <p class="row"><${Copy} text=${() => query.query} />${link && html`<a href=${link} onClick=${onClose}>Ask it again under Metrics</a>`}</p>
    <table class="plain"><tbody>${facts(query).filter(([, value]) => value).map(([name, value]) => html`<tr><th scope="row">${name}</th><td>${value}</td></tr>`)}</tbody></table>
    ${query.plan && html`<h3>Plan</h3><pre class="panel plan" tabindex="0">${JSON.stringify(query.plan, null, 2)}</pre>`}
  <//>`;
}
