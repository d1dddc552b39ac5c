// The metrics that are there: names with type, unit and help, and of a chosen one its labels and their values.
import { html, useMemo, useRef, useSignal } from "../vendor.js";
import { request } from "../base/api.js";
import { Dialog } from "../base/dialog.js";
import { count, cut } from "../base/format.js";
import { usePoll } from "../base/poll.js";
import { Problem, Progress, Remarks } from "../base/remarks.js";
import { Table } from "../base/table.js";
import { MetricDetail } from "./metric_detail.js";
import { familiesOf } from "./selectors.js";

const NAMES_MAX = 100_000; // of metrics, and of families with metadata
const HELP_MAX = 500; // characters shown

/** `onChoose(text)`: inserts a text into the query. */
export function Explorer({ onChoose, onClose }) {
  const names = usePoll((signal) => request("GET", "api/v1/label/__name__/values", { query: { limit: NAMES_MAX }, signal }), 0);
  const families = usePoll((signal) => request("GET", "api/v1/metadata", { query: { limit: NAMES_MAX, limit_per_metric: 1 }, signal }), 0);
  const wanted = useSignal("");
  const chosen = useSignal(null);
  const place = useRef(null);
  const metrics = useMemo(
    () => metricsOf(names.value.value?.answer.data ?? [], families.value.value?.answer.data ?? {}),
    [names.value.value, families.value.value],
  );
  const shown = useMemo(() => found(metrics, wanted.value), [metrics, wanted.value]);
  const metric = metrics.find((one) => one.name === chosen.value);
  const answers = [names, families].map((one) => one.value.value?.answer ?? {});

  function keys(event) {
    if (event.key === "Enter" && shown.length) chosen.value = shown[0].name;
    else if (event.key === "ArrowDown") place.current.querySelector("tr.choice[tabindex='0']")?.focus();
    else return;
    event.preventDefault();
  }

  return html`<${Dialog} title="Metrics" class="wide" onClose=${onClose}>
    <div class="row">
      <input type="search" class="explorer-search" autofocus placeholder="Search names and help" aria-label="Search metrics" value=${wanted.value}
        onInput=${(event) => { wanted.value = event.target.value; }} onKeyDown=${keys} />
      <span class="hint" aria-live="polite">${count(shown.length)} of ${count(metrics.length)} metrics</span>
    </div>
    <${Problem} error=${names.error.value ?? families.error.value} onRetry=${() => { names.again(); families.again(); }} />
    <${Remarks} warnings=${[...new Set(answers.flatMap((answer) => answer.warnings ?? []))]} />
    ${names.busy.value && !names.value.value && html`<${Progress} label="Asking for the names" />`}
    <div class="explorer">
      <div ref=${place}>
        <${Table} key=${wanted.value} label="Metrics" columns=${COLUMNS} rows=${shown} filter=${false} rowKey=${(row) => row.name} onRow=${(row) => { chosen.value = row.name; }}
          empty="No metric has these words." />
      </div>
      ${metric && html`<${MetricDetail} key=${metric.name} metric=${metric} onChoose=${onChoose} />`}
    </div>
    ${!metric && html`<p class="hint">Choose a metric to see its labels. Enter in the search takes the first.</p>`}
  <//>`;
}

const COLUMNS = [
  { title: "Name", value: (row) => row.name, render: (row) => html`<span class="mono">${row.name}</span>` },
  { title: "Type", value: (row) => row.type },
  { title: "Unit", value: (row) => row.unit },
  { title: "Help", value: (row) => row.help, render: (row) => html`<span title=${cut(row.help, HELP_MAX)}>${cut(row.help, HELP_MAX)}</span>` },
];

/** [{name, type, unit, help, text}]; `text`: what is searched. `families`: {name: [{type, help, unit}]}. */
function metricsOf(names, families) {
  return names.map((name) => {
    const family = familiesOf(name).find((one) => Object.hasOwn(families, one)) ?? null;
    const { type = "", unit = "", help = "" } = family === null ? {} : families[family][0];
    return { name, type, unit, help, text: `${name}\n${type}\n${help}`.toLowerCase() };
  });
}

/** Those with all words: first where the name begins with them, then where it has the first, then the others. */
function found(metrics, wanted) {
  const words = wanted.toLowerCase().split(/\s+/).filter(Boolean);
  if (!words.length) return metrics;
  const ranks = [[], [], []];
  for (const one of metrics) {
    if (!words.every((word) => one.text.includes(word))) continue;
    const at = one.text.indexOf(words[0]);
    ranks[at === 0 ? 0 : at < one.name.length ? 1 : 2].push(one);
  }
  return ranks.flat();
}
