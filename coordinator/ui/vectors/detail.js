// One vector: its attributes, and its embedding folded away.
import { html, useSignal } from "../vendor.js";
import { request } from "../base/api.js";
import { bytes } from "../base/format.js";
import { change } from "../base/link.js";
import { usePoll } from "../base/poll.js";
import { Problem, Remarks } from "../base/remarks.js";
import { Copy, save } from "../base/take.js";
import { toggled } from "./filter.js";
import { setFilter } from "./filter_bar.js";
import { whyNot } from "./values.js";

const SHOWN_CHARS = 1000;
const SHOWN_NUMBERS = 64;

export function Detail({ collection, id, filter }) {
  const { value, error, again } = usePoll(async (signal) => {
    const { answer } = await request("POST", "api/v1/vector/get", { json: { collection: collection.name, ids: [id] }, signal });
    return answer;
  }, 0);
  const own = value.value?.vectors[0];
  const { vector: embedding, ...attributes } = own?.attributes ?? {};
  return html`<aside class="panel stack vectors-detail" aria-label=${`Vector ${id}`}>
    <div class="row"><h3 class="mono">${id}</h3><span class="space"></span>
      <button class="quiet" aria-label="Close" onClick=${() => change({ sel: null }, { step: false })}>✕</button></div>
    <div class="row">
      <button onClick=${() => change({ mode: "search", near: "id", id, text: null })}>Search by it</button>
      <${Copy} label="Copy id" text=${() => id} />
      ${own && html`<${Copy} label="Copy JSON" text=${() => JSON.stringify(own)} />`}
    </div>
    <${Problem} error=${error.value} onRetry=${again} />
    <${Remarks} warnings=${value.value?.warnings} />
    ${value.value && !own && html`<p class="hint">There is no vector with this id, or the shard that has it is missing.</p>`}
    <dl class="vectors-attributes">${Object.entries(attributes).map(([name, own]) => html`<${Attribute} key=${name} name=${name} value=${own} filter=${filter} />`)}</dl>
    ${embedding && html`<${Embedding} id=${id} numbers=${embedding} />`}
  </aside>`;
}

function Attribute({ name, value, filter }) {
  const isWhole = useSignal(false);
  const text = typeof value === "string" ? value : JSON.stringify(value);
  const isLong = text.length > SHOWN_CHARS;
  return html`<dt>${name}</dt><dd>
    <span class="vectors-text">${isLong && !isWhole.value ? `${text.slice(0, SHOWN_CHARS)}…` : text.slice(0, 100 * SHOWN_CHARS)}</span>
    ${isLong && !isWhole.value && html` <button class="link" onClick=${() => { isWhole.value = true; }}>more of ${bytes(text.length)}</button>`}
    ${text.length > 100 * SHOWN_CHARS && html` <button class="link" onClick=${() => save(`${name}.txt`, text)}>download</button>`}
    ${!whyNot(value) && !Array.isArray(value) && html` <button class="quiet" title="Add this value to the filter, or take it away" aria-label=${`Filter ${name}`}
      onClick=${() => setFilter(toggled(filter, name, value))}>⊕</button>`}
  </dd>`;
}

function Embedding({ id, numbers }) {
  const isOpen = useSignal(false);
  const shown = numbers.slice(0, SHOWN_NUMBERS).join(", ");
  return html`<details onToggle=${(event) => { isOpen.value = event.currentTarget.open; }}>
    <summary>Embedding <span class="hint">${numbers.length} components</span></summary>
    ${isOpen.value && html`<div class="stack">
      <div class="row"><${Copy} label="Copy" text=${() => JSON.stringify(numbers)} />
        <button class="quiet" onClick=${() => save(`${id}.json`, JSON.stringify(numbers), "application/json")}>Save</button></div>
      <p class="mono">[${shown}${numbers.length > SHOWN_NUMBERS ? `, … ${numbers.length - SHOWN_NUMBERS} more` : ""}]</p>
    </div>`}
  </details>`;
}
