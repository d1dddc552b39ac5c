// The area "vectors": all collections, or one of them.
import { html } from "../vendor.js";
import { request } from "../base/api.js";
import { change, params } from "../base/link.js";
import { usePoll } from "../base/poll.js";
import { Problem, Remarks } from "../base/remarks.js";
import { Collection } from "./collection.js";
import { Collections } from "./collections.js";
import { longVector } from "./search.js";

const STATS_EVERY_MS = 5000;

/** Go back to all collections. What was asked of one is of no use in another. */
function leave() {
  longVector.value = "";
  change(Object.fromEntries([...params.value.keys()].map((name) => [name, null])));
}

export function View() {
  const { value, error, again } = usePoll(
    async (signal) => (await request("GET", "api/v1/vector/stats", { signal })).answer, STATS_EVERY_MS);
  const name = params.value.get("collection");
  const known = value.value?.collections;
  const one = name && known && Object.hasOwn(known, name) ? { name, ...known[name] } : null;
  return html`<div class="stack vectors">
    <div class="row"><h1>Vectors</h1>
      ${name && html`<nav class="row" aria-label="Collection"><button class="link" onClick=${leave}>All collections</button>
        <span aria-hidden="true">/</span><h2>${name}</h2></nav>`}</div>
    <${Problem} error=${error.value} onRetry=${again} />
    <${Remarks} warnings=${value.value?.warnings} />
    ${known && !name && html`<${Collections} collections=${known} />`}
    ${known && name && !one && html`<${Problem} error=${new Error(`there is no collection ${name}; it may have been deleted`)} />`}
    ${one && html`<${Collection} key=${name} collection=${one} />`}
  </div>`;
}
