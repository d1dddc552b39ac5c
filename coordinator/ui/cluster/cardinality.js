// Cardinality: which metrics and labels have how many series, and how many of these are new.
import { html, useEffect, useSignal } from "../vendor.js";
import { ApiError, isCancelled, request } from "../base/api.js";
import { bytes, count, quoted, series as selectorOf, time, took } from "../base/format.js";
import { change, linkTo, params } from "../base/link.js";
import { usePoll } from "../base/poll.js";
import { Progress } from "../base/remarks.js";
import { Said } from "../base/said.js";
import { csv, save } from "../base/take.js";
import { Table } from "../base/table.js";
import { Figures, growth, Share } from "./figures.js";
import { Narrow } from "./narrow.js";
import { labelMatcher, narrowed } from "./selectors.js";

const EVERY_MS = 60_000;
const LATE_MS = 400;
const LIMITS = ["10", "50", "200", "1000"];
const DRAWN_MAX = 200; // series: of more, the graph shows how many there are

/** Count only the series that this matches, too. */
function narrow(matcher) {
  change({ match: narrowed(params.value.getAll("match"), matcher) });
}

const graph = (selector, value) => linkTo("metrics", { expr: value > DRAWN_MAX ? `count(${selector})` : selector });

const number = (title, value, render = count) => ({ title, align: "end", value, render: (row) => render(value(row)) });

const linked = (selector) => ({
  title: "", sortable: false, value: () => "",
  render: (row) => html`<a href=${graph(selector(row), row.value)} aria-label=${`Graph of ${row.name}`} onClick=${(event) => event.stopPropagation()}>Graph</a>`,
});

const named = (title) => ({ title, value: (row) => row.name, render: (row) => html`<span title=${row.name}>${row.name || "(empty)"}</span>` });

function lists(data, focus) {
  const total = data.totalSeries;
  const share = { title: "Share", align: "end", value: (row) => row.value, sortable: false, render: (row) => html`<${Share} of=${total} value=${row.value} />` };
  const metric = (row) => selectorOf({ __name__: row.name });
  const byMetric = (row) => (params.value.has("match") ? narrow(`__name__=${quoted(row.name)}`) : change({ match: metric(row) }));
  const byLabel = (row) => change({ focus: row.name });
  const byValue = (label, value) => narrow(labelMatcher(label, value));
  const selected = (label, value) => narrowed(params.value.getAll("match"), labelMatcher(label, value)).at(0);
  return [
    ["Metrics with the most series", data.seriesCountByMetricName, [named("Metric"), number("Series", (row) => row.value), share, number("New", (row) => row.growth ?? 0, growth), linked(metric)], byMetric],
    ["Metrics that grow most", data.seriesGrowthByMetricName, [named("Metric"), number("New series", (row) => row.value, growth), linked(metric)], byMetric],
    ...(focus ? [[`Values of ${focus}`, data.seriesCountByFocusLabelValue, [named("Value"), number("Series", (row) => row.value), share, number("New", (row) => row.growth ?? 0, growth), linked((row) => selected(focus, row.name))], (row) => byValue(focus, row.name)]] : []),
    ["Labels with the most values", data.labelValueCountByLabelName, [named("Label"), number("Values", (row) => row.value), { title: "", sortable: false, value: () => "", render: (row) => (row.estimated ? html`<span class="hint">estimate</span>` : "") }], byLabel],
    ["Label values with the most series", data.seriesCountByLabelValuePair, [named("Label and value"), number("Series", (row) => row.value), share, linked((row) => selected(row.label, row.labelValue))], (row) => byValue(row.label, row.labelValue)],
    ["Labels with the most series", data.seriesCountByLabelName, [named("Label"), number("Series", (row) => row.value), share], byLabel],
    ["Labels that take the most memory", data.memoryInBytesByLabelName, [named("Label"), number("Bytes of its values", (row) => row.value, bytes)], byLabel],
  ];
}

function exported(all) {
  const rows = all.flatMap(([title, entries]) => entries.map((row) => [title, row.name, row.value, row.growth]));
  save("cardinality.csv", csv([["list", "name", "value", "growth"], ...rows]), "text/csv");
}

/** What the server counts; `stop.value()` cancels it. */
async function counted({ match, focus, limit }, signal, stop) {
  const controller = new AbortController();
  signal.addEventListener("abort", () => controller.abort());
  stop.value = () => controller.abort();
  const query = { "match[]": match, focusLabel: focus || null, limit };
  try {
    return { ...(await request("GET", "api/v1/status/tsdb", { query, signal: controller.signal })), focus };
  } catch (error) {
    if (!isCancelled(error) || signal.aborted) throw error;
    throw new ApiError("the counting was cancelled", { advice: "What is shown was counted before." });
  }
}

/** Whether something has lasted for a while: a sign that comes and goes at once would only disturb. */
function useLate(isOn) {
  const late = useSignal(false);
  useEffect(() => {
    late.value = false;
    const timer = isOn && setTimeout(() => { late.value = true; }, LATE_MS);
    return () => clearTimeout(timer);
  }, [isOn]);
  return late.value;
}

export function Cardinality() {
  const match = params.value.getAll("match");
  const focus = params.value.get("focus") ?? "";
  const limit = params.value.get("limit") ?? LIMITS[0];
  const stop = useSignal(() => {});
  const poll = usePoll((signal) => counted({ match, focus, limit }, signal, stop), EVERY_MS, [match.join("\n"), focus, limit]);
  const isLong = useLate(poll.busy.value);
  const reply = poll.value.value;
  const data = reply?.answer.data;
  const all = data && lists(data, reply.focus);
  return html`<${Narrow} match=${match} focus=${focus} limit=${limit} limits=${LIMITS} onAgain=${poll.again} />
    ${isLong && html`<${Progress} label="Counting …" onCancel=${() => stop.value()} />`}
    <${Said} poll=${poll} />
    ${data && html`<${Figures} figures=${[
        ["Series", count(data.totalSeries)],
        ["New", `${growth(data.growth)} since ${time(data.growthSince * 1000, { date: false, millis: false })}`, "series that came into the index within an hour, or since the last start"],
        ["Different labels", count(data.headStats.numLabelPairs), "pairs of a name and a value"],
        ["Labels of a series", data.totalSeries ? (data.totalLabelValuePairs / data.totalSeries).toFixed(1) : "–", "the mean"],
        ["Counted in", took(reply.seconds)],
      ]} />
      <div class="row"><span class="hint">A click on a row narrows to it, or shows the values of a label.</span><span class="space"></span>
        <button class="quiet" onClick=${() => exported(all)}>CSV</button></div>
      <div class="lists">${all.map(([title, rows, columns, onRow]) => html`<div class="stack" key=${title}>
        <h2>${title}</h2>
        <${Table} label=${title} columns=${columns} rows=${rows} onRow=${onRow} rowKey=${(row) => row.name} empty="None." /></div>`)}</div>`}`;
}
