// The settings in force.
import { html } from "../vendor.js";
import { request } from "../base/api.js";
import { change, params } from "../base/link.js";
import { usePoll } from "../base/poll.js";
import { Said } from "../base/said.js";
import { csv, Copy, save } from "../base/take.js";
import { Table } from "../base/table.js";

const COLUMNS = [
  { title: "Setting", value: (row) => row.variable, render: (row) => html`<code title=${row.variable}>${row.name}</code>` },
  { title: "Value", value: (row) => row.value, render: (row) => (row.isDefault ? row.value : html`<strong title="not the default">${row.value}</strong>`) },
  { title: "Default", value: (row) => row.default },
  { title: "Meaning", value: (row) => row.meaning, render: (row) => html`<span title=${row.meaning}>${row.meaning}</span>` },
];

export function Settings() {
  const poll = usePoll((signal) => request("GET", "api/v1/status/settings", { signal }), 0);
  const all = poll.value.value?.answer.data.settings;
  const isChanged = params.value.get("changed") === "1";
  const rows = isChanged ? all?.filter((row) => !row.isDefault) : all;
  const variables = () => rows.map((row) => `${row.variable}=${row.value}\n`).join("");
  const table = () => csv([["variable", "value", "default", "meaning"], ...rows.map((row) => [row.variable, row.value, row.default, row.meaning])]);
  return html`<${Said} poll=${poll} />
    ${rows && html`<div class="row">
      <label><input type="checkbox" checked=${isChanged} onChange=${(event) => change({ changed: event.target.checked ? 1 : null })} />Only those that are not the default</label>
      <span class="space"></span>
      <${Copy} text=${variables} label="Copy as variables" />
      <button class="quiet" onClick=${() => save("settings.csv", table(), "text/csv")}>CSV</button>
    </div>
    <${Table} label="Settings" columns=${COLUMNS} rows=${rows} rowKey=${(row) => row.name} filter=${true} empty="All settings have their defaults." />`}`;
}
