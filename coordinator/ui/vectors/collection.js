// One collection: what it has, a filter, and three ways to look at it.
import { html } from "../vendor.js";
import { request } from "../base/api.js";
import { bytes, count } from "../base/format.js";
import { useKeys } from "../base/keys.js";
import { change, params } from "../base/link.js";
import { usePoll } from "../base/poll.js";
import { Problem, Remarks } from "../base/remarks.js";
import { Browse } from "./browse.js";
import { Detail } from "./detail.js";
import { Facets } from "./facets.js";
import { parsed } from "./filter.js";
import { FilterBar } from "./filter_bar.js";
import { VectorMap } from "./map.js";
import { Search } from "./search.js";

const MODES = { browse: ["Browse", Browse], search: ["Search", Search], map: ["Map", VectorMap] };

/** `collection`: {name, dimension, metric, …} of /vector/stats. */
export function Collection({ collection }) {
  const { value, error } = usePoll(
    async (signal) => (await request("GET", `api/v1/vector/collections/${encodeURIComponent(collection.name)}/attributes`, { signal })).answer,
    0, [collection.name]);
  useKeys(Object.entries(MODES).map(([mode, [title]], index) => ({ keys: String(index + 1), label: `Vectors: ${title}`, run: () => change({ mode }) })));
  const asked = params.value.get("mode");
  const mode = Object.hasOwn(MODES, asked ?? "") ? asked : "browse";
  const [, Mode] = MODES[mode];
  const { filter } = parsed(params.value.get("filter"));
  const selected = params.value.get("sel");
  const attributes = value.value?.attributes;
  return html`
    <${Figures} collection=${collection} />
    <div class="row" role="group" aria-label="What to do">
      ${Object.entries(MODES).map(([name, [title]]) => html`<button aria-pressed=${name === mode} onClick=${() => change({ mode: name })}>${title}</button>`)}
    </div>
    <${FilterBar} filter=${filter} />
    <${Problem} error=${error.value} />
    <${Remarks} warnings=${value.value?.warnings} infos=${value.value?.infos} />
    ${(attributes || error.value) && html`<div class="vectors-columns">
      <${Facets} collection=${collection} attributes=${attributes ?? []} filter=${filter} />
      <section class="stack vectors-content" aria-label=${MODES[mode][0]}>
        <${Mode} key=${mode} collection=${collection} attributes=${attributes ?? []} filter=${filter} />
      </section>
      ${selected && html`<${Detail} key=${selected} collection=${collection} id=${selected} filter=${filter} />`}
    </div>`}`;
}

function Figures({ collection }) {
  const { vectors, indexed, pending, dead } = collection;
  const waiting = Math.max(0, pending);
  return html`<dl class="vectors-figures" aria-label="Figures">
    <${Figure} title="Vectors" value=${count(vectors)} />
    <${Figure} title="Dimension" value=${count(collection.dimension)} />
    <${Figure} title="Metric" value=${collection.metric} />
    <${Figure} title="Storage" value=${collection.storage} />
    <${Figure} title="Memory" value=${bytes(collection.bytes)} />
    <${Figure} title="Wait for the index" value=${count(waiting)}
      hint=${waiting ? "They are found as well: a search compares them directly." : ""} />
    ${dead > 0 && html`<${Figure} title="Dead rows" value=${count(dead)} hint="Replaced and deleted vectors, until the index is built anew." />`}
    ${indexed > 0 && waiting > 0 && html`<${Figure} title="Indexed" value=${`${Math.floor((100 * indexed) / (indexed + waiting))} %`} />`}
    ${collection.expansion > 0 && html`<${Figure} title="Candidates" value=${count(collection.expansion)} hint="How many a search keeps by default, as measured for the recall that is set." />`}
  </dl>`;
}

const Figure = ({ title, value, hint = "" }) => html`<div title=${hint}><dt>${title}</dt><dd>${value}</dd></div>`;
