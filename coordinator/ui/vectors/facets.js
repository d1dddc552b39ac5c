// The attributes of a collection. An attribute that is opened shows its most frequent values; a click chooses one.
import { html, useSignal } from "../vendor.js";
import { request } from "../base/api.js";
import { count } from "../base/format.js";
import { usePoll } from "../base/poll.js";
import { Problem, Remarks } from "../base/remarks.js";
import { also, butValues, chosen, toggled } from "./filter.js";
import { setFilter } from "./filter_bar.js";
import { oneLine, whyNot } from "./values.js";

const SHOWN = 15;
const SHOWN_MORE = 200;
const NAMES_SHOWN = 100;

/** `attributes`: [{name, types: {type: vectors}}]. */
export function Facets({ collection, attributes, filter }) {
  const wanted = useSignal("");
  const text = wanted.value.toLowerCase();
  const found = attributes.filter((one) => one.name.toLowerCase().includes(text));
  return html`<section class="vectors-facets" aria-label="Attributes">
    <h3>Attributes</h3>
    ${attributes.length > 15 && html`<input type="search" placeholder="Filter" aria-label="Filter attributes" value=${wanted.value}
      onInput=${(event) => { wanted.value = event.target.value; }} />`}
    ${!attributes.length && html`<p class="hint">These vectors have no attributes.</p>`}
    ${found.slice(0, NAMES_SHOWN).map((one) => html`<${Attribute} key=${one.name} collection=${collection} attribute=${one} filter=${filter} />`)}
    ${found.length > NAMES_SHOWN && html`<p class="hint">${NAMES_SHOWN} of ${count(found.length)} are shown: filter them.</p>`}
  </section>`;
}

function Attribute({ collection, attribute, filter }) {
  const isOpen = useSignal(chosen(filter, attribute.name).length > 0);
  const total = Object.values(attribute.types).reduce((sum, one) => sum + one, 0);
  return html`<details open=${isOpen.value} onToggle=${(event) => { isOpen.value = event.currentTarget.open; }}>
    <summary title=${Object.entries(attribute.types).map(([type, number]) => `${type}: ${count(number)}`).join(", ")}>
      <span>${attribute.name}</span> <span class="hint">${Object.keys(attribute.types).join(", ")} · ${count(total)}</span></summary>
    ${isOpen.value && html`<${Values} collection=${collection} attribute=${attribute} filter=${filter} />`}
  </details>`;
}

function Values({ collection, attribute, filter }) {
  const limit = useSignal(SHOWN);
  const field = attribute.name;
  const others = butValues(filter, field);
  const { value, error, busy, again } = usePoll(
    async (signal) => (await request("POST", "api/v1/vector/facets", {
      json: { collection: collection.name, field, limit: limit.value + 1, ...(others ? { filter: others } : {}) }, signal,
    })).answer, 0, [field, limit.value, JSON.stringify(others)]);
  const values = value.value?.facets ?? [];
  const taken = chosen(filter, field);
  return html`<div class="stack" aria-busy=${busy.value}>
    <${Problem} error=${error.value} onRetry=${again} />
    <${Remarks} warnings=${value.value?.warnings} infos=${value.value?.infos} />
    <div class="vectors-values">
      ${values.slice(0, limit.value).map((one) => html`<button aria-pressed=${taken.includes(one.value)} title=${whyNot(one.value) || oneLine(one.value)} disabled=${Boolean(whyNot(one.value))}
        onClick=${() => setFilter(toggled(filter, field, one.value))}>
        <span class="vectors-value">${oneLine(one.value)}</span> <span class="hint">${count(one.count)}</span></button>`)}
    </div>
    ${values.length > limit.value && limit.value < SHOWN_MORE && html`<button class="quiet" onClick=${() => { limit.value = SHOWN_MORE; }}>More values</button>`}
    ${(attribute.types.integer || attribute.types.float) && html`<${Range} field=${field} filter=${filter} />`}
    <div class="row">
      <button class="quiet" onClick=${() => setFilter(also(filter, { exists: { field } }))}>Has it</button>
      <button class="quiet" onClick=${() => setFilter(also(filter, { not: { exists: { field } } }))}>Has it not</button>
    </div>
  </div>`;
}

/** Bounds of a number. */
function Range({ field, filter }) {
  const from = useSignal("");
  const to = useSignal("");
  const apply = (event) => {
    event.preventDefault();
    let next = filter;
    if (from.value !== "") next = also(next, { gte: { field, value: Number(from.value) } });
    if (to.value !== "") next = also(next, { lte: { field, value: Number(to.value) } });
    setFilter(next);
  };
  const input = (label, bound) => html`<input type="number" step="any" aria-label=${`${field} ${label}`} placeholder=${label} value=${bound.value}
    onInput=${(event) => { bound.value = event.target.value; }} />`;
  return html`<form class="row vectors-range" onSubmit=${apply}>${input("from", from)} – ${input("to", to)} <button>Apply</button></form>`;
}
