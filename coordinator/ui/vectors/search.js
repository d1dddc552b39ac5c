// Search by the vector of an id, by a pasted vector, by text, or by both (hybrid).
import { html, signal, useSignal } from "../vendor.js";
import { request } from "../base/api.js";
import { count, took } from "../base/format.js";
import { change, params } from "../base/link.js";
import { usePoll } from "../base/poll.js";
import { Problem, Remarks } from "../base/remarks.js";
import { Table } from "../base/table.js";
import { useCancel, Waiting } from "./cancel.js";
import { textFields } from "./collections.js";
import { Recall } from "./recall.js";
import { columnsOf, namesOf, pastedVector } from "./values.js";

const K_MAX = 1000; // results with highlights
const LINK_CHARS_MAX = 20_000;
// What is around a match in a highlight: characters that no text has.
const [BEGIN, END] = ["\ue000", "\ue001"];

/** A pasted vector that is too long for a link. */
export const longVector = signal("");

/** The query that the link has: {body, error}; body null while nothing is asked. */
function asked(collection, attributes, filter) {
  const get = (name) => params.value.get(name) ?? "";
  const near = get("near");
  const body = { collection: collection.name, k: Math.min(K_MAX, Number(get("k")) || 10), includeFields: namesOf(attributes) };
  if (filter) body.filter = filter;
  if (get("exact")) body.exact = true;
  if (get("text")) body.text = { query: get("text"), highlight: { preTag: BEGIN, postTag: END, escapeHtml: false } };
  if (near === "id" && get("id")) body.id = get("id");
  if (near === "vector") {
    const { numbers, error } = pastedVector(get("vector") || longVector.value, collection.dimension);
    if (error) return { body: null, error };
    body.vector = numbers;
  }
  return { body: body.id || body.vector || body.text ? body : null, error: "" };
}

export function Search({ collection, attributes, filter }) {
  const { body, error } = asked(collection, attributes, filter);
  const texts = textFields(collection);
  const key = ["near", "id", "vector", "text", "k", "exact"].map((name) => params.value.get(name)).join("\n");
  return html`
    <${Form} key=${key} collection=${collection} texts=${texts} />
    ${error && params.value.get("vector") && html`<p role="alert" class="vectors-wrong">${error}</p>`}
    ${body ? html`<${Results} key=${JSON.stringify(body)} body=${body} />` : !error && html`<p class="hint">Give an id, a vector or a text.</p>`}`;
}

function Form({ collection, texts }) {
  const get = (name) => params.value.get(name) ?? "";
  const near = useSignal(get("near") || "id");
  const id = useSignal(get("id"));
  const vector = useSignal(get("vector") || longVector.value);
  const text = useSignal(get("text"));
  const k = useSignal(get("k") || "10");
  const exact = useSignal(Boolean(get("exact")));
  const problem = useSignal("");
  const submit = (event) => {
    event.preventDefault();
    const { error } = near.value === "vector" ? pastedVector(vector.value, collection.dimension) : { error: "" };
    problem.value = error;
    if (error) return;
    longVector.value = near.value === "vector" ? vector.value : "";
    change({
      near: near.value, id: near.value === "id" ? id.value : null, text: text.value,
      vector: near.value === "vector" && vector.value.length <= LINK_CHARS_MAX ? vector.value.trim() : null,
      k: k.value === "10" ? null : k.value, exact: exact.value ? "1" : null,
    });
  };
  const choice = (value, title) => html`<label><input type="radio" name="near" checked=${near.value === value} onChange=${() => { near.value = value; problem.value = ""; }} />${title}</label>`;
  return html`<form class="panel stack" aria-label="Search" onSubmit=${submit}>
    <div class="row" role="radiogroup" aria-label="Nearest to"><span>Nearest to</span>
      ${choice("id", "the vector of an id")} ${choice("vector", "a pasted vector")} ${texts.length > 0 && choice("none", "no vector, by text only")}</div>
    ${near.value === "id" && html`<label>Id <input class="mono" value=${id.value} onInput=${(event) => { id.value = event.target.value; }} /></label>`}
    ${near.value === "vector" && html`<label class="vectors-wide">Vector of ${count(collection.dimension)} numbers
      <textarea class="mono" rows="3" spellcheck=${false} value=${vector.value} placeholder="[0.12, -0.5, …]" aria-invalid=${Boolean(problem.value)}
        onInput=${(event) => { vector.value = event.target.value; problem.value = ""; }}></textarea></label>`}
    ${problem.value && html`<p role="alert" class="vectors-wrong">${problem.value}</p>`}
    ${texts.length > 0 && html`<label class="vectors-wide">Text in ${texts.join(", ")}
      <input type="search" value=${text.value} placeholder=${'quick "brown fox" +must -not begin*'} onInput=${(event) => { text.value = event.target.value; }} /></label>`}
    <div class="row">
      <label>Results <input type="number" min="1" max=${K_MAX} value=${k.value} onInput=${(event) => { k.value = event.target.value; }} /></label>
      <label title="Compare with every vector, without the index"><input type="checkbox" checked=${exact.value} onChange=${(event) => { exact.value = event.target.checked; }} />exact</label>
      <button class="main">Search</button>
      ${texts.length > 0 && near.value !== "none" && text.value && html`<span class="hint">hybrid: both rankings become one</span>`}
    </div>
  </form>`;
}

function Results({ body }) {
  const work = useCancel();
  const { value, error, busy, again } = usePoll((signal) => request("POST", "api/v1/vector/search", { json: body, signal: work.signal(signal) }), 0);
  const answer = value.value?.answer;
  const rows = answer ? answer.results.map((one, index) => ({
    rank: index + 1, score: one.score, id: one.vector.id, attributes: one.vector.attributes, matches: Object.values(one.highlights ?? {}).flat(),
  })) : [];
  return html`<div class="stack" aria-busy=${busy.value}>
    <${Problem} error=${error.value} onRetry=${again} />
    <${Remarks} warnings=${answer?.warnings} infos=${answer?.infos} />
    ${!answer && !error.value && html`<${Waiting} label="Searching" work=${work} />`}
    ${answer && html`<p role="status" class="hint">${count(rows.length)} results in ${took(value.value.seconds)}${body.exact ? ", exact" : ""}</p>
      ${(body.id || body.vector) && html`<${Recall} body=${body} />`}
      <${Table} label="Results" columns=${columns(rows, body)} rows=${rows} rowKey=${(row) => row.id} filter=${false}
        onRow=${(row) => change({ sel: row.id }, { step: false })} empty="Nothing was found." />`}
  </div>`;
}

function columns(rows, body) {
  return [
    { title: "#", value: (row) => row.rank, align: "end" },
    { title: "Score", value: (row) => row.score, align: "end", render: (row) => row.score.toPrecision(6) },
    ...(body.text && rows.some((row) => row.matches.length) ? [{ title: "Match", value: (row) => row.matches.join(" "), render: (row) => marked(row.matches.join(" … ")) }] : []),
    ...columnsOf(rows, body.includeFields),
  ];
}

/** A highlight, whose matches are between BEGIN and END. */
function marked(text) {
  return text.split(BEGIN).map((piece, index) => {
    if (!index) return piece;
    const end = piece.indexOf(END);
    return html`<mark>${piece.slice(0, end)}</mark>${piece.slice(end + 1)}`;
  });
}
