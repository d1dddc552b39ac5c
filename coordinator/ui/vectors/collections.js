// The list of collections, with what each has and what waits for its index.
import { html } from "../vendor.js";
import { bytes, count } from "../base/format.js";
import { change } from "../base/link.js";
import { Table } from "../base/table.js";

const COLUMNS = [
  { title: "Collection", value: (one) => one.name, render: (one) => html`<button class="link" onClick=${(event) => { event.stopPropagation(); open(one); }}>${one.name}</button>` },
  number("Vectors", (one) => one.vectors),
  number("Dimension", (one) => one.dimension),
  { title: "Metric", value: (one) => one.metric },
  { title: "Storage", value: (one) => one.storage },
  number("Memory", (one) => one.bytes, bytes),
  number("Wait for the index", (one) => one.pending),
  number("Dead rows", (one) => one.dead),
  { title: "Text fields", value: (one) => textFields(one).join(", ") },
];

function number(title, value, shown = count) {
  return { title, value, align: "end", render: (one) => shown(value(one)) };
}

/** The names of the fields that are indexed as texts. */
export const textFields = (collection) => (collection.textFields ?? []).map((one) => one.field ?? one);

const open = (one) => change({ collection: one.name });

/** `collections`: {name: its settings and sizes}, as /vector/stats gives them. */
export function Collections({ collections }) {
  const rows = Object.entries(collections).map(([name, one]) => ({ name, ...one }));
  return html`<${Table} label="Collections" columns=${COLUMNS} rows=${rows} rowKey=${(one) => one.name} onRow=${open}
    empty="There is no collection yet. One is made by the first write to /api/v1/vector/write, or by a PUT to /api/v1/vector/collections/NAME." />`;
}
