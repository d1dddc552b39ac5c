// What is counted: selectors, a label whose values are listed, and how long the lists are.
import { html, useEffect, useSignal } from "../vendor.js";
import { change } from "../base/link.js";

export function Narrow({ match, focus, limit, limits, onAgain }) {
  const drafts = useSignal(match);
  const label = useSignal(focus);
  const asLink = match.join("\n");
  useEffect(() => { drafts.value = match; label.value = focus; }, [asLink, focus]);
  const fields = drafts.value.length ? drafts.value : [""];
  const set = (index, text) => { drafts.value = fields.map((one, at) => (at === index ? text : one)); };
  const take = (list) => change({ match: list.map((one) => one.trim()).filter(Boolean), focus: label.value.trim() });

  function submit(event) {
    event.preventDefault();
    const before = location.hash;
    take(fields);
    if (location.hash === before) onAgain();
  }

  return html`<form class="row narrow" onSubmit=${submit}>
    ${fields.map((text, index) => html`<span class="selector">
      <input class="mono" value=${text} placeholder="all series" aria-label=${index ? `Selector ${index + 1}` : "Selector"} spellcheck="false" autocomplete="off"
        onInput=${(event) => set(index, event.target.value)} />
      ${(text || fields.length > 1) && html`<button type="button" class="quiet" aria-label=${`Remove selector ${index + 1}`}
        onClick=${() => { drafts.value = fields.filter((_, at) => at !== index); take(drafts.value); }}>✕</button>`}
    </span>`)}
    <button type="button" class="quiet" title="Series that match any selector count" onClick=${() => { drafts.value = [...fields, ""]; }}>Or …</button>
    <label>Values of label <input class="mono" size="12" value=${label.value} spellcheck="false" autocomplete="off" onInput=${(event) => { label.value = event.target.value; }} /></label>
    <label>Rows <select value=${limit} onChange=${(event) => change({ limit: event.target.value === limits[0] ? null : event.target.value })}>
      ${[...new Set([...limits, limit])].map((one) => html`<option value=${one}>${one}</option>`)}</select></label>
    <button class="main">Count</button>
    ${(match.length > 0 || focus) && html`<button type="button" onClick=${() => change({ match: null, focus: null })}>All series</button>`}
  </form>`;
}
