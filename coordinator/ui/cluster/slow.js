// The last slow queries.
import { html, useSignal } from "../vendor.js";
import { request } from "../base/api.js";
import { count, time, took } from "../base/format.js";
import { change, params } from "../base/link.js";
import { usePoll } from "../base/poll.js";
import { Said } from "../base/said.js";
import { Table } from "../base/table.js";
import { Query } from "./query.js";

const EVERY_MS = 10_000;
const ORDERS = { seconds: "longest first", samples: "most samples first", start: "newest first" };

/** The state in which the query was for most of its time. */
const longest = (query) => Object.entries(query.states).sort(([, a], [, b]) => b - a)[0]?.join(" ") ?? "";

const COLUMNS = [
  { title: "Took", align: "end", value: (query) => query.seconds, render: (query) => took(query.seconds) },
  { title: "Samples", align: "end", value: (query) => query.samples, render: (query) => count(query.samples) },
  { title: "Series", align: "end", value: (query) => query.series, render: (query) => count(query.series) },
  { title: "Began", value: (query) => query.start, render: (query) => time(query.start * 1000, { millis: false }) },
  { title: "Status", align: "end", value: (query) => query.status },
  { title: "Kind", value: (query) => query.kind },
  { title: "Query", value: (query) => query.query, render: (query) => html`<code title=${query.query}>${query.query}</code>` },
  { title: "Mostly", value: longest, render: (query) => longest(query).replace(/ .*/, "") },
  { title: "Client", value: (query) => query.client },
];

export function Slow() {
  const wanted = params.value.get("by");
  const by = wanted in ORDERS ? wanted : "seconds";
  const shown = useSignal(null);
  const poll = usePoll((signal) => request("GET", "api/v1/queries/slow", { query: { by }, signal }), EVERY_MS, [by]);
  const rows = poll.value.value?.answer.data;
  return html`<${Said} poll=${poll} />
    <label>Order <select value=${by} onChange=${(event) => change({ by: event.target.value })}>
      ${Object.entries(ORDERS).map(([name, title]) => html`<option value=${name}>${title}</option>`)}</select></label>
    ${rows && html`<${Table} label="Slow queries" columns=${COLUMNS} rows=${rows} onRow=${(query) => { shown.value = query; }}
      rowKey=${(query) => query.id + query.start} empty="No query was slow since the start. TRIPTYCH_SLOW_QUERY says from which time on one is." />`}
    ${shown.value && html`<${Query} query=${shown.value} onClose=${() => { shown.value = null; }} />`}`;
}
