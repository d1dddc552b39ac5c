// What is scraped, and what cannot be.
import { html, useSignal } from "../vendor.js";
import { request } from "../base/api.js";
import { count, series, time, took } from "../base/format.js";
import { usePoll } from "../base/poll.js";
import { Said } from "../base/said.js";
import { Table } from "../base/table.js";
import { counted, Detail, emptyText, labelsColumn, moment, ofState, States, timeColumn } from "./detail.js";

const EVERY_MS = 10_000;
const HEALTH = { up: "is-good", down: "is-bad", unknown: "hint" };

const healthOf = (target) => target.health;

const COLUMNS = [
  { title: "Health", value: healthOf, render: (target) => html`<span class=${HEALTH[target.health]}>● ${target.health}</span>` },
  { title: "Job", value: (target) => target.scrapePool },
  { title: "Target", value: (target) => target.scrapeUrl },
  labelsColumn((target) => target.labels),
  timeColumn("Last scrape", (target) => target.lastScrape),
  { title: "Took", align: "end", value: (target) => target.lastScrapeDuration, render: (target) => took(target.lastScrapeDuration) },
  { title: "Error", value: (target) => target.lastError, render: (target) => html`<span title=${target.lastError}>${target.lastError}</span>` },
];

export function Targets() {
  const poll = usePoll((signal) => request("GET", "api/v1/targets", { query: { state: "active" }, signal }), EVERY_MS);
  const shown = useSignal(null);
  const data = poll.value.value?.answer.data;
  const dropped = Object.values(data?.droppedTargetCounts ?? {}).reduce((sum, one) => sum + one, 0);
  return html`<${Said} poll=${poll} />
    ${data && html`<div class="row"><${States} label="Health" counts=${counted(data.activeTargets, healthOf, ["down", "up", "unknown"])} />
        ${dropped > 0 && html`<span class="hint">${count(dropped)} targets were dropped by relabelling</span>`}</div>
      <${Table} label="Targets" columns=${COLUMNS} rows=${ofState(data.activeTargets, healthOf)} rowKey=${(target) => target.scrapePool + target.scrapeUrl + series(target.labels)}
        onRow=${(target) => { shown.value = target; }}
        empty=${emptyText(data.activeTargets, "Nothing is scraped. The configuration file that TRIPTYCH_PROMETHEUS_CONFIG names says in scrape_configs what is.")} />`}
    ${shown.value && html`<${Target} target=${shown.value} onClose=${() => { shown.value = null; }} />`}`;
}

function Target({ target, onClose }) {
  const facts = [
    ["Error", target.lastError],
    ["Labels", series(target.labels)],
    ["Discovered labels", series(target.discoveredLabels)],
    ["Last scrape", moment(target.lastScrape) !== null && time(moment(target.lastScrape))],
    ["Took", took(target.lastScrapeDuration)],
    ["Every", target.scrapeInterval],
    ["Timeout", target.scrapeTimeout],
  ];
  return html`<${Detail} title=${target.scrapePool} facts=${facts} onClose=${onClose}><p><code>${target.scrapeUrl}</code></p><//>`;
}
