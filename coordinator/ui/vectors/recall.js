// How much of the exact answer the index finds, for one query.
import { html, useEffect, useRef, useSignal } from "../vendor.js";
import { isCancelled, request } from "../base/api.js";
import { took } from "../base/format.js";
import { change } from "../base/link.js";
import { Problem } from "../base/remarks.js";

const MISSED_SHOWN = 20;

/** The recall of a search: `found` and `exact` are results of the index and of a comparison with every vector. A result
 * that is as near as the last exact one counts, since among equally near ones any will do. */
export function recallOf(found, exact) {
  const there = new Set(found.map((one) => one.vector.id));
  const missed = exact.filter((one) => !there.has(one.vector.id));
  const right = new Set(exact.map((one) => one.vector.id));
  const last = exact.at(-1)?.score;
  const ties = found.filter((one) => !right.has(one.vector.id) && one.score === last).length;
  const kept = exact.length - Math.max(0, missed.length - ties);
  return { share: exact.length ? kept / exact.length : 1, kept, of: exact.length, missed: kept === exact.length ? [] : missed.map((one) => one.vector.id) };
}

export function Recall({ body }) {
  const found = useSignal(null);
  const error = useSignal(null);
  const busy = useSignal(false);
  const { text, exact, ...query } = body; // of the ranking by vector
  const controller = useRef(null);
  useEffect(() => () => controller.current?.abort(), []);
  const ask = (options) => request("POST", "api/v1/vector/search", { json: { ...query, includeFields: [], ...options }, signal: controller.current.signal });
  async function compare() {
    busy.value = true;
    controller.current = new AbortController();
    error.value = null;
    try {
      const [index, all] = [await ask({}), await ask({ exact: true })];
      found.value = { ...recallOf(index.answer.results, all.answer.results), index: index.seconds, all: all.seconds };
    } catch (problem) {
      if (!isCancelled(problem)) error.value = problem;
    }
    busy.value = false;
  }
  const one = found.value;
  return html`<div class="row" role="group" aria-label="Recall">
    <button disabled=${busy.value} title="Ask twice: by the index, and by comparing every vector" onClick=${compare}>Recall of this query</button>
    ${busy.value && html`<button onClick=${() => controller.current.abort()}>Cancel</button>`}
    <span role="status">${one && html`recall <strong>${one.share.toFixed(3)}</strong> (${one.kept} of ${one.of}) · index ${took(one.index)} · exact ${took(one.all)}${text ? " · of the ranking by vector" : ""}`}</span>
    ${one?.missed.length > 0 && html`<span>missed: ${one.missed.slice(0, MISSED_SHOWN).map((id) => html`<button class="link mono" onClick=${() => change({ sel: id }, { step: false })}>${id}</button> `)}
      ${one.missed.length > MISSED_SHOWN && `and ${one.missed.length - MISSED_SHOWN} more`}</span>`}
    <${Problem} error=${error.value} />
  </div>`;
}
