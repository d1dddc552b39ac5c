// The map of a collection: a sample of its vectors on two axes, coloured by an attribute.
import { html, useMemo, useSignal } from "../vendor.js";
import { request } from "../base/api.js";
import { count, took } from "../base/format.js";
import { change, params } from "../base/link.js";
import { usePoll } from "../base/poll.js";
import { Problem, Remarks } from "../base/remarks.js";
import { theme } from "../shell/theme.js";
import { useCancel, Waiting } from "./cancel.js";
import { colouring, shade, shades } from "./map_colours.js";
import { Plot } from "./map_plot.js";
import { namesOf } from "./values.js";

const SIZES = [200, 1000, 2500, 5000];

export function VectorMap({ collection, attributes, filter }) {
  const attribute = params.value.get("colour") ?? "";
  const wanted = Number(params.value.get("points"));
  const limit = SIZES.includes(wanted) ? wanted : 1000;
  const body = { collection: collection.name, limit, ...(attribute ? { attribute } : {}), ...(filter ? { filter } : {}) };
  return html`<div class="row">
      <label>Colour by <select value=${attribute} onChange=${(event) => change({ colour: event.target.value })}>
        <option value="">nothing</option>${attributes.map((one) => html`<option value=${one.name}>${one.name}</option>`)}</select></label>
      <label>Points <select value=${limit} onChange=${(event) => change({ points: event.target.value })}>${SIZES.map((one) => html`<option value=${one}>${count(one)}</option>`)}</select></label>
    </div>
    <${Drawn} key=${JSON.stringify(body)} body=${body} names=${namesOf(attributes)} />`;
}

function Drawn({ body, names }) {
  const work = useCancel();
  const { value, error, again } = usePoll((signal) => request("POST", "api/v1/vector/map", { json: body, signal: work.signal(signal) }), 0);
  const only = useSignal(null); // the legend's entry that alone is in colour
  const answer = value.value?.answer;
  const values = answer?.points.values;
  const colours = useMemo(() => colouring(values), [values]);
  const points = useMemo(() => answer && shades(colours, values, answer.points.ids.length, only.value), [answer, only.value, theme.value]);
  if (error.value) return html`<${Problem} error=${error.value} onRetry=${again} />`;
  if (!answer) return html`<${Waiting} label="Computing the axes" work=${work} />`;
  const { ids, x, y } = answer.points;
  const [first, second] = answer.variance.map((one) => `${(100 * one).toFixed(1)} %`);
  return html`<div class="stack">
    <${Remarks} warnings=${answer.warnings} infos=${answer.infos} />
    <p class="hint" role="status">${count(ids.length)} of ${count(answer.vectors)} vectors in ${took(value.value.seconds)}.
      Across: ${first} of their variance, upwards: ${second}.</p>
    ${ids.length > 0 && html`<div class="vectors-map">
      <${Plot} ids=${ids} x=${x} y=${y} shades=${points} values=${values} collection=${body.collection} names=${names} />
      ${values && html`<${Legend} colours=${colours} attribute=${body.attribute} only=${only} />`}
    </div>`}
    ${!ids.length && html`<p class="hint">There is no vector to be shown.</p>`}
  </div>`;
}

function Legend({ colours, attribute, only }) {
  return html`<section class="vectors-legend" aria-label=${`Legend: ${attribute}`}>
    <h3>${attribute}</h3>
    ${colours.entries.map((one) => html`<button class="quiet" aria-pressed=${only.value === one.key} title="Show only these in colour"
      onClick=${() => { only.value = only.value === one.key ? null : one.key; }}>
      <span class="vectors-swatch" aria-hidden="true" style=${{ background: shade(one) }}></span>
      ${one.label} <span class="hint">${count(one.count)}</span></button>`)}
  </section>`;
}
