// Queries that are being served, and their cancellation.
import { html, useSignal } from "../vendor.js";
import { request } from "../base/api.js";
import { Confirm } from "../base/dialog.js";
import { count, time, took } from "../base/format.js";
import { usePoll } from "../base/poll.js";
import { Problem } from "../base/remarks.js";
import { Said } from "../base/said.js";
import { Table } from "../base/table.js";
import { Query } from "./query.js";

const EVERY_MS = 1500;

const columns = (onCancel) => [
  { title: "Age", align: "end", value: (query) => query.age, render: (query) => took(query.age) },
  { title: "State", value: (query) => query.state },
  { title: "Kind", value: (query) => query.kind },
  { title: "Query", value: (query) => query.query, render: (query) => html`<code title=${query.query}>${query.query}</code>` },
  { title: "Samples read", align: "end", value: (query) => query.samples, render: (query) => count(query.samples) },
  { title: "Waits for", value: (query) => query.workers.map((part) => part.worker).join(", ") },
  { title: "Client", value: (query) => query.client },
  { title: "Since", value: (query) => query.start, render: (query) => time(query.start * 1000, { millis: false }) },
  {
    title: "", sortable: false, value: () => "",
    render: (query) => html`<button class="danger" aria-label=${`Cancel ${query.query.slice(0, 80)}`} disabled=${query.state === "canceled"}
      onClick=${(event) => { event.stopPropagation(); onCancel(query); }}>Cancel</button>`,
  },
];

export function Queries() {
  const poll = usePoll((signal) => request("GET", "api/v1/queries", { signal }), EVERY_MS);
  const doubtful = useSignal(null); // the query that is to be canceled
  const shown = useSignal(null);
  const said = useSignal("");
  const problem = useSignal(null);
  const rows = poll.value.value?.answer.data;
  const asked = doubtful.value;

  async function cancel(query) {
    problem.value = null;
    try {
      const { answer } = await request("DELETE", `api/v1/queries/${encodeURIComponent(query.id)}`);
      said.value = answer.data.canceled > 1 ? `${answer.data.canceled} queries with the id ${query.id} were canceled.` : "The query was canceled.";
    } catch (error) {
      if (error.status === 404) said.value = "The query had just ended.";
      else problem.value = error;
    }
    poll.again();
  }

  return html`<${Said} poll=${poll} /><${Problem} error=${problem.value} />
    <p class="hint" role="status">${said.value}</p>
    ${rows && html`<${Table} label="Running queries" columns=${columns((query) => { doubtful.value = query; })} rows=${rows}
      rowKey=${(query) => query.id + query.kind + query.start} onRow=${(query) => { shown.value = query; }} empty="Nothing is being served now." />`}
    ${shown.value && html`<${Query} query=${shown.value} onClose=${() => { shown.value = null; }} />`}
    ${asked && html`<${Confirm} title="Cancel this query?" action="Cancel the query" onConfirm=${() => cancel(asked)}
        onClose=${() => { doubtful.value = null; }}>
      <pre>${asked.query}</pre>
      <p>It is of ${asked.client}, which gets an error instead of an answer.</p>
    <//>`}`;
}
