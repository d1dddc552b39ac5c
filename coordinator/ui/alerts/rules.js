// Rules, how they were last evaluated, and why one could not be.
import { html, useSignal } from "../vendor.js";
import { request } from "../base/api.js";
import { count, duration, series, time, took } from "../base/format.js";
import { change, linkTo, params } from "../base/link.js";
import { usePoll } from "../base/poll.js";
import { Said } from "../base/said.js";
import { Table } from "../base/table.js";
import { Copy } from "../base/take.js";
import { counted, Detail, emptyText, moment, ofState, States, timeColumn } from "./detail.js";

const EVERY_MS = 10_000;
const HEALTH = { ok: "is-good", err: "is-bad", unknown: "hint" };

const NO_RULES = "There are no rules. The configuration file that TRIPTYCH_PROMETHEUS_CONFIG names says which files have some.";
const healthOf = ({ rule }) => rule.health;

const COLUMNS = [
  { title: "Health", value: healthOf, render: ({ rule }) => html`<span class=${HEALTH[rule.health]} title=${rule.lastError}>● ${rule.health}</span>` },
  { title: "Group", value: ({ group }) => group.name, render: ({ group }) => html`<span title=${group.file}>${group.name}</span>` },
  { title: "Kind", value: ({ rule }) => (rule.type === "alerting" ? "alert" : "record") },
  { title: "Name", value: ({ rule }) => rule.name },
  { title: "State", value: ({ rule }) => rule.state ?? "" },
  { title: "Query", value: ({ rule }) => rule.query, render: ({ rule }) => html`<code title=${rule.query}>${rule.query}</code>` },
  { title: "Took", align: "end", value: ({ rule }) => rule.evaluationTime, render: ({ rule }) => took(rule.evaluationTime) },
  timeColumn("Last evaluated", ({ rule }) => rule.lastEvaluation),
  { title: "Error", value: ({ rule }) => rule.lastError ?? "", render: ({ rule }) => html`<span title=${rule.lastError}>${rule.lastError ?? ""}</span>` },
];

export function Rules() {
  const name = params.value.get("rule") ?? "";
  const query = { exclude_alerts: "true", ...(name && { "rule_name[]": name }) };
  const poll = usePoll((signal) => request("GET", "api/v1/rules", { query, signal }), EVERY_MS, [name]);
  const shown = useSignal(null);
  const groups = poll.value.value?.answer.data.groups;
  const all = groups?.flatMap((group) => group.rules.map((rule, place) => ({ group, rule, key: `${group.file}\n${group.name}\n${place}` })));
  return html`<${Said} poll=${poll} />
    ${all && html`<div class="row"><${States} label="Health" counts=${counted(all, healthOf, ["err", "ok", "unknown"])} />
        ${name && html`<button onClick=${() => change({ rule: null })}>Rules of other names, too</button>`}
        <span class="hint">${count(all.length)} rules in ${count(groups.length)} groups</span></div>
      <${Table} label="Rules" columns=${COLUMNS} rows=${ofState(all, healthOf)} rowKey=${(row) => row.key} onRow=${(row) => { shown.value = row; }}
        empty=${emptyText(all, name ? `No rule is called ${name}.` : NO_RULES)} />`}
    ${shown.value && html`<${Rule} row=${shown.value} onClose=${() => { shown.value = null; }} />`}`;
}

function Rule({ row: { group, rule }, onClose }) {
  const facts = [
    ["Error", rule.lastError],
    ["State", rule.state],
    ["For", rule.duration && duration(rule.duration)],
    ["Keeps firing for", rule.keepFiringFor && duration(rule.keepFiringFor)],
    ["Labels", Object.keys(rule.labels).length > 0 && series(rule.labels)],
    ...Object.entries(rule.annotations ?? {}),
    ["Group", group.name],
    ["File", group.file],
    ["Every", duration(group.interval)],
    ["Group took", took(group.evaluationTime)],
    ["Last evaluated", moment(rule.lastEvaluation) !== null && time(moment(rule.lastEvaluation))],
  ];
  return html`<${Detail} title=${rule.name} facts=${facts} onClose=${onClose}>
    <pre class="panel">${rule.query}</pre>
    <p class="row"><${Copy} text=${() => rule.query} /><a href=${linkTo("metrics", { expr: rule.query })} onClick=${onClose}>Ask it under Metrics</a></p>
  <//>`;
}
