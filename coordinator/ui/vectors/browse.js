// The vectors of a collection, page by page, with their attributes beside the ids.
import { html, useSignal } from "../vendor.js";
import { request } from "../base/api.js";
import { count } from "../base/format.js";
import { change, params } from "../base/link.js";
import { usePoll } from "../base/poll.js";
import { Problem, Remarks } from "../base/remarks.js";
import { Table } from "../base/table.js";
import { csv, save } from "../base/take.js";
import { attributeOf, columnsOf, namesOf } from "./values.js";

const SIZES = [50, 200, 1000];

export function Browse({ collection, attributes, filter }) {
  const order = params.value.get("order") ?? "";
  const direction = params.value.get("down") ? "desc" : "asc";
  const size = SIZES.includes(Number(params.value.get("page"))) ? Number(params.value.get("page")) : SIZES[0];
  const asked = {
    collection: collection.name,
    limit: size,
    includeFields: namesOf(attributes),
    ...(filter ? { filter } : {}),
    ...(order ? { orderBy: { field: order, direction } } : {}),
  };
  return html`<div class="row">
      <label>Order <select value=${order} onChange=${(event) => change({ order: event.target.value })}>
        <option value="">by id</option>${attributes.map((one) => html`<option value=${one.name}>${one.name}</option>`)}</select></label>
      ${order && html`<label><input type="checkbox" checked=${direction === "desc"} onChange=${(event) => change({ down: event.target.checked ? "1" : null })} /> descending</label>`}
      <label>Page <select value=${size} onChange=${(event) => change({ page: event.target.value })}>${SIZES.map((one) => html`<option value=${one}>${one}</option>`)}</select></label>
    </div>
    <${Pages} key=${JSON.stringify(asked)} asked=${asked} />`;
}

/** What a scroll gives, from its first page on. */
function Pages({ asked }) {
  const tokens = useSignal([""]); // of the pages up to the one that is shown
  const token = tokens.value.at(-1);
  const { value, error, busy, again } = usePoll(
    async (signal) => (await request("POST", "api/v1/vector/scroll", { json: { ...asked, ...(token ? { pageToken: token } : {}) }, signal })).answer,
    0, [token]);
  const total = usePoll(async (signal) => (await request("POST", "api/v1/vector/count", {
    json: { collection: asked.collection, ...(asked.filter ? { filter: asked.filter } : {}) }, signal,
  })).answer.count, 0);
  const page = value.value;
  const rows = page?.vectors ?? [];
  const before = (tokens.value.length - 1) * asked.limit;
  const columns = columnsOf(rows, asked.includeFields, { sortable: false });
  return html`
    <${Problem} error=${error.value} onRetry=${again} />
    <${Remarks} warnings=${page?.warnings} infos=${page?.infos} />
    <nav class="row" aria-label="Pages">
      <button disabled=${tokens.value.length < 2} onClick=${() => { tokens.value = [""]; }}>First</button>
      <button disabled=${tokens.value.length < 2} onClick=${() => { tokens.value = tokens.value.slice(0, -1); }}>Previous</button>
      <button disabled=${!page?.nextPageToken || busy.value} onClick=${() => { tokens.value = [...tokens.value, page.nextPageToken]; }}>Next</button>
      <span role="status" class="hint">${page && (rows.length ? `${count(before + 1)} to ${count(before + rows.length)}` : "no vectors")}${total.value.value !== undefined && ` of ${count(total.value.value)}`}</span>
      <span class="space"></span>
      <button class="quiet" disabled=${!rows.length} onClick=${() => save(`${asked.collection}.csv`, asCsv(rows, asked.includeFields), "text/csv")}>CSV</button>
      <button class="quiet" onClick=${() => { again(); total.again(); }}>Read again</button>
    </nav>
    ${page && html`<${Table} key=${token} label="Vectors" columns=${columns} rows=${rows} rowKey=${(row) => row.id} filter=${false}
      onRow=${(row) => change({ sel: row.id }, { step: false })} empty="No vector satisfies the filter." />`}`;
}

function asCsv(rows, names) {
  const present = names.filter((name) => rows.some((row) => attributeOf(row, name) !== undefined));
  const cell = (value) => (value !== null && typeof value === "object" ? JSON.stringify(value) : value);
  return csv([["id", ...present], ...rows.map((row) => [row.id, ...present.map((name) => cell(attributeOf(row, name)))])]);
}
