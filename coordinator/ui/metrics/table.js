// The result of an instant query as a table: a column for each label in which series differ, the value, the time.
import { html, useMemo, useSignal } from "../vendor.js";
import { count, parseTime, series, time } from "../base/format.js";
import { Copy } from "../base/take.js";
import { Table } from "../base/table.js";
import { HistogramPanel, SmallHistogram } from "./histogram.js";
import { distinguished, labelOf, number, samplesOf } from "./results.js";

const ROWS_MAX = 100_000; // what is more is said, not shown
const COLUMNS_MAX = 30; // labels with a column; the others share one

/** `query`: as query.js gives it. `onTime(seconds)`: to be called when another time is chosen, null for now. */
export function ResultTable({ query, onTime }) {
  const data = query.result;
  const view = useMemo(() => tabulated(data), [data]);
  const chosen = useSignal(null);
  const own = chosen.value && view.rows.includes(chosen.value) ? chosen.value : view.rows.length === 1 ? view.rows[0] : null;
  const { columns, rows, total, common } = view;
  return html`<div class="result">
    <${Evaluated} at=${query.times.end} onTime=${onTime} />
    ${view.plain !== null ? html`<p class="row"><output class="mono result-plain">${view.plain}</output> <${Copy} text=${() => view.plain} /></p>` : html`
      ${Object.keys(common).length > 0 && total > 1 && html`<p class="result-common"><span class="hint">All have</span> <span class="mono">${series(common)}</span></p>`}
      ${total > rows.length && html`<p class="hint" role="status">The first ${count(rows.length)} of ${count(total)} samples are shown.</p>`}
      <${Table} key=${columns.map((column) => column.title).join("\n")} label="Result" columns=${columns} rows=${rows}
        onRow=${view.hasHistograms && rows.length > 1 ? (row) => { chosen.value = row.histogram ? row : null; } : undefined}
        empty="No series has a value at this time." />
      ${view.hasHistograms && rows.length > 1 && html`<p class="hint">Click a histogram, or press Enter on it, to see its buckets.</p>`}
      ${own?.histogram && html`<${HistogramPanel} histogram=${own.histogram} title=${`${series(own.labels)} at ${time(own.at * 1000)}`} />`}`}
  </div>`;
}

/** The time of evaluation. `at`: seconds. */
function Evaluated({ at, onTime }) {
  const problem = useSignal("");
  const set = (event) => {
    const text = event.currentTarget.value.trim();
    const isNow = text === "" || text === "now";
    const ms = isNow ? null : parseTime(text);
    problem.value = ms === null && !isNow ? `${text} is no time: 2026-01-31 17:05:09, Unix seconds, or now.` : "";
    if (!problem.value) onTime(isNow ? null : ms / 1000);
  };
  return html`<p class="row result-time">
    <label>Evaluated at <input class="mono" size="23" value=${time(Math.round(at * 1000))} onChange=${set} aria-invalid=${Boolean(problem.value)} /></label>
    <button class="quiet" onClick=${() => { problem.value = ""; onTime(null); }}>Now</button>
    ${problem.value && html`<span role="alert">${problem.value}</span>`}
  </p>`;
}

/** What is shown of an answer: {rows, columns, total, common, plain, hasHistograms}. `plain`: a scalar or a string. */
function tabulated({ resultType, result }) {
  if (resultType === "scalar" || resultType === "string") {
    return { rows: [], columns: [], total: 1, common: {}, plain: String(result[1]), hasHistograms: false };
  }
  const rows = [];
  let total = 0;
  for (const one of result) {
    const left = ROWS_MAX - rows.length;
    total += (one.values?.length ?? 0) + (one.histograms?.length ?? 0) || 1;
    if (left > 0) for (const sample of samplesOf(one).slice(0, left)) rows.push({ labels: one.metric, ...sample });
  }
  const { common, varying } = distinguished(result.map((one) => one.metric));
  const hasHistograms = rows.some((row) => row.histogram);
  const isMatrix = resultType === "matrix";
  const columns = columnsFor(result.length === 1 ? Object.keys(common).sort() : varying, isMatrix);
  return { rows, columns, total, common, plain: null, hasHistograms };
}

function columnsFor(names, hasTimes) {
  const columns = names.slice(0, COLUMNS_MAX).map((name) => ({
    title: name === "__name__" ? "metric" : name, value: (row) => labelOf(row.labels, name),
  }));
  const others = names.slice(COLUMNS_MAX);
  if (others.length) {
    const some = (labels) => Object.fromEntries(others.filter((name) => Object.hasOwn(labels, name)).map((name) => [name, labels[name]]));
    columns.push({ title: `${others.length} more labels`, value: (row) => series(some(row.labels)) });
  }
  columns.push({
    title: "value", align: "end",
    value: (row) => (row.histogram ? number(row.histogram.count) : number(row.text)),
    render: (row) => (row.histogram ? html`<${SmallHistogram} histogram=${row.histogram} />` : row.text),
  });
  if (hasTimes) columns.push({ title: "time", align: "end", value: (row) => row.at, render: (row) => time(row.at * 1000) });
  return columns;
}
