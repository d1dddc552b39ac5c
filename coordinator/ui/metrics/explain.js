// What the server did for a query: its phases, and the plan as a tree with what ran where and how long it took.
import { html, useMemo, useSignal } from "../vendor.js";
import { count, cut, took } from "../base/format.js";
import { Table } from "../base/table.js";
import { slowestOf, treeOf } from "./plan.js";

const PHASES = [
  ["planTime", "Plan", "Parsing and planning"],
  ["queueTime", "Queue", "Waiting for a place among the queries that run"],
  ["shardsTime", "Workers", "All workers' answers, with the way there and back"],
  ["execQueueTime", "Thread", "Waiting for a thread of the coordinator"],
  ["mergeTime", "Merge", "Merging the workers' answers, and what the coordinator evaluates"],
  ["resultSortTime", "Sort", "Sorting the series"],
  ["renderTime", "Render", "Writing the result as JSON"],
];

const TEXT_MAX = 300; // characters shown of a node
const CHILDREN_MAX = 100;
const NODES_OPEN_MAX = 200; // of a plan with more, what is deep begins folded
const DEPTH_OPEN = 4;

/** `query.result`: with `explain` and `stats`; `onMark(from, to)` marks a part of the query's text. */
export function Explain({ query, onMark }) {
  const { explain, stats } = query.result;
  const root = useMemo(() => treeOf(explain, query.expr), [explain]);
  const slowest = useMemo(() => slowestOf(root), [root]);
  const chosen = useSignal(null);
  const choose = (node) => {
    chosen.value = chosen.value === node.id ? null : node.id;
    if (chosen.value !== null) onMark?.(node.from, node.to);
  };
  return html`<div class="explain">
    <${Phases} timings=${stats.timings} />
    <${Costs} estimate=${explain.estimate} stats=${stats} leaves=${root.leaves} />
    <ul class="plan-tree" aria-label="Plan"><${Node} node=${root} slowest=${slowest} chosen=${chosen.value} onChoose=${choose} depthOpen=${root.size > NODES_OPEN_MAX ? DEPTH_OPEN : Infinity} /></ul>
    <${Workers} shares=${stats.shards} />
  </div>`;
}

/** A bar whose parts are as long as the phases took. */
function Phases({ timings }) {
  const parts = PHASES.map(([name, title, help]) => ({ title, help, seconds: timings[name] ?? 0 }));
  const total = parts.reduce((sum, part) => sum + part.seconds, 0) || 1;
  const most = Math.max(...parts.map((part) => part.seconds));
  return html`<section aria-label="Phases">
    <h3>${took(total)} in the server</h3>
    <div class="phases" aria-hidden="true">${parts.map((part, index) => html`<span class="phase-${index}" style=${{ flexGrow: part.seconds / total }}></span>`)}</div>
    <ul class="phase-list">${parts.map((part, index) => html`<li title=${part.help} class=${part.seconds === most ? "most" : ""}>
      <span class="phase-mark phase-${index}" aria-hidden="true"></span>${part.title} ${took(part.seconds)} <span class="hint">${Math.round((part.seconds / total) * 100)} %</span>
    </li>`)}</ul>
  </section>`;
}

/** What was expected, and what it was. */
function Costs({ estimate, stats, leaves }) {
  const series = leaves.reduce((sum, leaf) => sum + leaf.series, 0);
  const isKnown = estimate.leavesNotSeenBefore === 0;
  return html`<table class="plain costs"><caption class="seen-not">Cost</caption>
    <thead><tr><td></td><th scope="col">Series</th><th scope="col">Samples</th><th scope="col">Most held at a time</th></tr></thead>
    <tbody>
      <tr><th scope="row">Expected</th><td>${count(estimate.series)}</td><td>${count(estimate.samples)}</td>
        <td class="hint">${isKnown ? "–" : `${count(estimate.leavesNotSeenBefore)} of its selectors had not been asked for before`}</td></tr>
      <tr><th scope="row">Read</th><td>${count(series)}</td><td>${count(stats.samples.totalQueryableSamples)}</td><td>${count(stats.samples.peakSamples)}</td></tr>
    </tbody></table>`;
}

/** A node of the plan, and what is below it in a fold. */
function Node({ node, slowest, chosen, onChoose, depthOpen }) {
  const isOpen = useSignal(depthOpen > 0);
  const hidden = node.children.length - CHILDREN_MAX;
  const hasFold = node.children.length > 0 || node.workers.length > 0;
  return html`<li>
    <div class=${`plan-node${chosen === node.id ? " chosen" : ""}`}>
      ${hasFold ? html`<button class="quiet plan-fold" aria-expanded=${isOpen.value} aria-label=${`Fold ${node.kind}`} onClick=${() => { isOpen.value = !isOpen.value; }}>${isOpen.value ? "▾" : "▸"}</button>`
        : html`<span class="plan-fold"></span>`}
      <span class="tag">${node.kind}</span>
      <button class="link plan-text mono" aria-pressed=${chosen === node.id} title="Mark it in the query" onClick=${() => onChoose(node)}>${cut(node.text, TEXT_MAX)}</button>
      <span class="tag">${node.where}</span>
      ${node.time !== null && html`<span class="plan-time">${took(node.time)}</span>`}
      ${slowest === node && html`<span class="tag slowest">slowest</span>`}
      ${node.isLeaf && html`<span>${count(node.series)} series, ${count(node.samples)} samples</span>`}
      ${node.isLeaf && html`<span class="hint">${expected(node)}</span>`}
    </div>
    ${isOpen.value && html`
      ${node.workers.length > 0 && html`<${Sent} node=${node} />`}
      ${node.children.length > 0 && html`<ul>${node.children.slice(0, CHILDREN_MAX).map((child) => html`<${Node} key=${child.id} node=${child} slowest=${slowest}
        chosen=${chosen} onChoose=${onChoose} depthOpen=${depthOpen - 1} />`)}
        ${hidden > 0 && html`<li class="hint">… ${count(hidden)} more</li>`}</ul>`}`}
  </li>`;
}

const expected = ({ estimate }) =>
  (!estimate || estimate.leavesNotSeenBefore ? "not asked for before" : `expected ${count(estimate.series)} series, ${count(estimate.samples)} samples`);

/** What was sent to the workers, and what each of them and each of its shards did. */
function Sent({ node }) {
  const rows = node.workers.flatMap((worker) => [
    { name: worker.worker, time: worker.time, series: worker.series, samples: worker.samples, isSlowest: worker === node.slowestWorker && node.workers.length > 1 },
    ...worker.shards.map((shard) => ({
      name: `${worker.worker}, shard ${shard.shard}`, time: shard.readTime, series: shard.series, samples: shard.samples, isShard: true,
    })),
  ]);
  return html`<div class="plan-sent">
    ${node.query !== node.text && html`<p><span class="hint">Sent</span> <code>${cut(node.query, 10 * TEXT_MAX)}</code></p>`}
    <p class="hint">${node.merge}${node.mergeTime > 0 ? `, in ${took(node.mergeTime)}` : ""}. A shard's time is for reading alone.</p>
    <${Table} label=${`Workers of ${node.text.slice(0, 60)}`} columns=${SENT_COLUMNS} rows=${rows} filter=${false} rowKey=${(row) => row.name} />
  </div>`;
}

const SENT_COLUMNS = [
  { title: "Where", value: (row) => row.name, render: (row) => html`<span class=${row.isShard ? "hint" : ""}>${row.name}</span>${row.isSlowest && html` <span class="tag slowest">slowest</span>`}` },
  { title: "Time", align: "end", value: (row) => row.time, render: (row) => took(row.time) },
  { title: "Series", align: "end", value: (row) => row.series, render: (row) => count(row.series) },
  { title: "Samples", align: "end", value: (row) => row.samples, render: (row) => count(row.samples) },
];

/** What each worker did for the whole query. */
function Workers({ shares }) {
  if (!shares.length) return html`<p class="hint">No worker was asked.</p>`;
  return html`<details><summary>Workers</summary>
    <${Table} label="Workers" columns=${WORKER_COLUMNS} rows=${shares} filter=${false} rowKey=${(row) => row.worker} />
  </details>`;
}

const stage = (name) => (row) => row.timings[name] ?? 0;

const WORKER_COLUMNS = [
  { title: "Worker", value: (row) => row.worker },
  { title: "Shards", value: (row) => row.shards.join(", ") },
  { title: "Answered after", align: "end", value: (row) => row.elapsedTime, render: (row) => took(row.elapsedTime) },
  { title: "In the worker", align: "end", value: stage("total"), render: (row) => took(stage("total")(row)) },
  { title: "Evaluated in", align: "end", value: stage("evaluate"), render: (row) => took(stage("evaluate")(row)) },
  { title: "Samples", align: "end", value: (row) => row.samples, render: (row) => count(row.samples) },
  { title: "Most held", align: "end", value: (row) => row.peakSamples, render: (row) => count(row.peakSamples) },
];
