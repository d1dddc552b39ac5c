// Alerts that are pending or fire.
import { html, useSignal } from "../vendor.js";
import { request } from "../base/api.js";
import { Said } from "../base/said.js";
import { time } from "../base/format.js";
import { linkTo } from "../base/link.js";
import { usePoll } from "../base/poll.js";
import { Table } from "../base/table.js";
import { counted, Detail, emptyText, labelsColumn, moment, ofState, States, timeColumn } from "./detail.js";

const EVERY_MS = 10_000;

const nameOf = (alert) => alert.labels.alertname ?? "";
const stateOf = (alert) => alert.state;

function others(alert) {
  const { alertname, ...labels } = alert.labels;
  return labels;
}

const COLUMNS = [
  { title: "State", value: stateOf, render: (alert) => html`<span class=${alert.state === "firing" ? "is-bad" : "is-fair"}>● ${alert.state}</span>` },
  { title: "Alert", value: nameOf },
  labelsColumn(others),
  { title: "Value", align: "end", value: (alert) => Number(alert.value), render: (alert) => String(Number(alert.value)) },
  timeColumn("Active since", (alert) => alert.activeAt),
];

export function Alerts() {
  const poll = usePoll((signal) => request("GET", "api/v1/alerts", { signal }), EVERY_MS);
  const shown = useSignal(null);
  const all = poll.value.value?.answer.data.alerts;
  return html`<${Said} poll=${poll} />
    ${all && html`<${States} label="State" counts=${counted(all, stateOf, ["firing", "pending"])} />
      <${Table} label="Alerts" columns=${COLUMNS} rows=${ofState(all, stateOf)} sort=${{ column: 0, down: false }}
        rowKey=${(alert) => JSON.stringify(alert.labels)} onRow=${(alert) => { shown.value = alert; }} empty=${emptyText(all, "Nothing is pending, and nothing fires.")} />`}
    ${shown.value && html`<${Alert} alert=${shown.value} onClose=${() => { shown.value = null; }} />`}`;
}

function Alert({ alert, onClose }) {
  const facts = [
    ["State", alert.state],
    ["Value", alert.value],
    ["Active since", time(moment(alert.activeAt))],
    ["Kept firing since", alert.keepFiringSince && time(moment(alert.keepFiringSince))],
    ...Object.entries(alert.labels),
    ...Object.entries(alert.annotations),
  ];
  return html`<${Detail} title=${nameOf(alert)} facts=${facts} onClose=${onClose}>
    <p><a href=${linkTo("alerts", { show: "rules", rule: nameOf(alert) })} onClick=${onClose}>Its rules</a></p>
  <//>`;
}
