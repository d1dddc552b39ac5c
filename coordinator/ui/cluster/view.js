// The area "cluster": what runs where, what it holds, and what is wrong.
import { html } from "../vendor.js";
import { useKeys } from "../base/keys.js";
import { change, linkTo, params } from "../base/link.js";
import { Cardinality } from "./cardinality.js";
import { Memory } from "./memory.js";
import { Queries } from "./queries.js";
import { Settings } from "./settings.js";
import { Shards } from "./shards.js";
import { Slow } from "./slow.js";

const PARTS = {
  shards: { title: "Shards", Part: Shards },
  queries: { title: "Running queries", Part: Queries },
  slow: { title: "Slow queries", Part: Slow },
  cardinality: { title: "Cardinality", Part: Cardinality },
  memory: { title: "Memory", Part: Memory },
  settings: { title: "Settings", Part: Settings },
};
const NAMES = Object.keys(PARTS);

/** Show a part with these parameters and no others. */
function show(name) {
  const others = Object.fromEntries([...params.value.keys()].map((key) => [key, null]));
  change({ ...others, show: name === NAMES[0] ? null : name });
}

export function View() {
  const wanted = params.value.get("show");
  const name = NAMES.includes(wanted) ? wanted : NAMES[0];
  const { title, Part } = PARTS[name];
  useKeys(NAMES.map((one, index) => ({ keys: `${index + 1}`, label: `Cluster: ${PARTS[one].title}`, run: () => show(one) })));
  const chosen = (event, one) => {
    if (event.ctrlKey || event.metaKey || event.shiftKey) return;
    event.preventDefault();
    show(one);
  };
  return html`<div class="cluster stack">
    <div class="row"><h1>Cluster</h1>
      <nav class="parts" aria-label="Parts of the cluster">${NAMES.map((one) => html`<a
        href=${linkTo("cluster", one === NAMES[0] ? {} : { show: one })} aria-current=${one === name ? "page" : undefined}
        onClick=${(event) => chosen(event, one)}>${PARTS[one].title}</a>`)}</nav></div>
    <section class="stack" aria-label=${title}><${Part} key=${name} /></section>
  </div>`;
}
