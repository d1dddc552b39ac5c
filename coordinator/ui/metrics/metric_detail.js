// One metric of the explorer: its labels, their values, and queries to insert.
import { html, useEffect, useSignal } from "../vendor.js";
import { isCancelled, request } from "../base/api.js";
import { count } from "../base/format.js";
import { Problem, Progress, Remarks } from "../base/remarks.js";
import { matcher, queriesFor, selector } from "./selectors.js";

const LABELS_MAX = 60;
const VALUES_MAX = 500; // of a label, as many as are asked for and shown
const AT_ONCE = 4; // requests
const NONE = Object.create(null); // {label: [values]}

/** `metric`: {name, type, unit, help}; `onChoose(text)`: inserts a text into the query. */
export function MetricDetail({ metric, onChoose }) {
  const chosen = useSignal(NONE);
  const { labels, error, warnings } = useLabels(metric.name);
  const turn = (label, value) => {
    const values = chosen.value[label] ?? [];
    chosen.value = { __proto__: null, ...chosen.value, [label]: values.includes(value) ? values.filter((one) => one !== value) : [...values, value] };
  };
  const matchers = Object.entries(chosen.value).filter(([, values]) => values.length).map(([label, values]) => matcher(label, values));
  const texts = [...queriesFor(metric.name, metric.type, chosen.value), ...(matchers.length ? [matchers.join(", ")] : [])];
  return html`<section class="metric panel" aria-label=${metric.name}>
    <h3 class="mono">${metric.name}</h3>
    <p>${metric.type && html`<span class="tag">${metric.type}</span>`} ${metric.unit && html`<span class="tag">${metric.unit}</span>`} ${metric.help || html`<span class="hint">No help was sent with it.</span>`}</p>
    <h4>Insert</h4>
    <ul class="metric-queries">${texts.map((text) => html`<li><button class="mono" onClick=${() => onChoose(text)}>${text}</button></li>`)}</ul>
    <h4>Labels</h4>
    <${Problem} error=${error.value} />
    <${Remarks} warnings=${warnings.value} />
    ${labels.value === null && !error.value && html`<${Progress} label="Asking for the labels" />`}
    ${labels.value?.length === 0 && html`<p class="hint">It has no labels.</p>`}
    ${labels.value?.map((label) => html`<${Label} key=${label.name} label=${label} chosen=${chosen.value[label.name] ?? []} onTurn=${turn} />`)}
  </section>`;
}

/** The labels of a metric, and their values as they come: signals {labels: [{name, values, isCut}], error, warnings}. */
function useLabels(metric) {
  const labels = useSignal(null);
  const error = useSignal(null);
  const warnings = useSignal([]);
  useEffect(() => {
    const controller = new AbortController();
    const ask = (path, limit) => request("GET", path, { query: { "match[]": selector(metric), limit }, signal: controller.signal });
    async function run() {
      const { answer } = await ask("api/v1/labels", LABELS_MAX + 1);
      warnings.value = answer.warnings ?? [];
      const names = answer.data.filter((name) => name !== "__name__").slice(0, LABELS_MAX);
      labels.value = names.map((name) => ({ name, values: null, isCut: false }));
      const waiting = [...names];
      await Promise.all(Array.from({ length: AT_ONCE }, async () => {
        for (let name = waiting.shift(); name !== undefined; name = waiting.shift()) {
          const own = name;
          const got = await ask(`api/v1/label/${encodeURIComponent(pathName(own))}/values`, VALUES_MAX + 1);
          const values = got.answer.data.slice(0, VALUES_MAX);
          labels.value = labels.value.map((one) => (one.name === own ? { name: own, values, isCut: got.answer.data.length > VALUES_MAX } : one));
        }
      }));
    }
    run().catch((problem) => { if (!isCancelled(problem)) error.value = problem; });
    return () => controller.abort();
  }, [metric]);
  return { labels, error, warnings };
}

/** The name of a label as a path has it: what is no plain name is escaped as Prometheus does. */
function pathName(name) {
  if (/^[A-Za-z_][A-Za-z0-9_]*$/.test(name)) return name;
  return `U__${[...name].map((one) => (one === "_" ? "__" : /[A-Za-z0-9]/.test(one) ? one : `_${one.codePointAt(0).toString(16)}_`)).join("")}`;
}

function Label({ label: { name, values, isCut }, chosen, onTurn }) {
  const isOpen = useSignal(false);
  const wanted = useSignal("");
  const total = values && `${count(values.length)}${isCut ? " and more" : ""} ${values.length === 1 ? "value" : "values"}`;
  const shown = values?.filter((value) => value.toLowerCase().includes(wanted.value.toLowerCase())) ?? [];
  return html`<details open=${isOpen.value} onToggle=${(event) => { isOpen.value = event.currentTarget.open; }}>
    <summary><span class="mono">${name}</span> <span class="hint">${total ?? "…"}${chosen.length ? `, ${count(chosen.length)} chosen` : ""}</span></summary>
    ${isOpen.value && html`
      ${values?.length > 20 && html`<input type="search" placeholder="Filter" aria-label=${`Filter values of ${name}`} value=${wanted.value}
        onInput=${(event) => { wanted.value = event.target.value; }} />`}
      ${isCut && html`<p class="hint">The first ${count(VALUES_MAX)} by the alphabet.</p>`}
      <div class="metric-values">${shown.map((value) => html`<button key=${value} class="mono" aria-pressed=${chosen.includes(value)}
        onClick=${() => onTurn(name, value)}>${value}</button>`)}</div>`}
  </details>`;
}
