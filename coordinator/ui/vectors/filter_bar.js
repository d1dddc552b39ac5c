// The conditions in force: each can be taken away, and the whole can be seen and edited as JSON.
import { html, useSignal } from "../vendor.js";
import { change, params } from "../base/link.js";
import { conditions, described, parsed, without, written } from "./filter.js";

/** Put a filter into force. What was read before does not go on. */
export const setFilter = (filter) => change({ filter: written(filter) });

export function FilterBar({ filter }) {
  const inLink = params.value.get("filter") ?? "";
  const { error } = parsed(inLink);
  return html`<div class="row" role="group" aria-label="Filter">
    <strong>Filter</strong>
    ${conditions(filter).map((one) => html`<button class="vectors-condition" title="Take this condition away" onClick=${() => setFilter(without(filter, one))}>
      ${described(one)} <span aria-hidden="true">✕</span></button>`)}
    ${!filter && !error && html`<span class="hint">none: click a value of an attribute</span>`}
    ${filter && html`<button class="quiet" onClick=${() => setFilter(null)}>Clear</button>`}
    <${Editor} key=${inLink} text=${inLink} error=${error} />
  </div>`;
}

function Editor({ text, error }) {
  const draft = useSignal(text && !error ? JSON.stringify(JSON.parse(text), null, 1) : text);
  const problem = useSignal(error);
  const apply = () => {
    const { filter, error: wrong } = parsed(draft.value);
    problem.value = wrong;
    if (!wrong) setFilter(filter);
  };
  return html`<details class="vectors-json" open=${Boolean(error)}><summary>JSON</summary>
    <div class="stack">
      <textarea rows="6" spellcheck=${false} aria-label="Filter as JSON" class="mono" value=${draft.value}
        placeholder=${'{"eq": {"field": "colour", "value": "red"}}'}
        onInput=${(event) => { draft.value = event.target.value; }}
        onKeyDown=${(event) => { if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) apply(); }}></textarea>
      ${problem.value && html`<p role="alert" class="vectors-wrong">${problem.value}</p>`}
      <div class="row"><button class="main" onClick=${apply}>Apply</button><span class="hint">Ctrl+Enter</span></div>
    </div>
  </details>`;
}
