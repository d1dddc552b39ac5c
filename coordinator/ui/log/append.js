// Appends a record by hand.
import { html, useRef, useSignal } from "../vendor.js";
import { request } from "../base/api.js";
import { Dialog } from "../base/dialog.js";
import { count } from "../base/format.js";
import { linkTo } from "../base/link.js";
import { Problem, Remarks } from "../base/remarks.js";
import { query } from "./selection.js";

const KEY_FORMS = { keyText: "Text", key: "Base64" };
const VALUE_FORMS = { text: "Text", json: "JSON", value: "Base64", tombstone: "None: the key ends (tombstone)" };
const HEADERS_MAX = 64;

/** The record as the API takes it. Throws an Error that says what is wrong. */
function recordOf({ keyForm, key, valueForm, value, headers, contentType }) {
  const record = { [keyForm]: key };
  if (valueForm === "tombstone") record.tombstone = true;
  else if (valueForm !== "json") record[valueForm] = value;
  else JSON.parse(value); // for its message; the text goes as it is, with all digits of its numbers
  const named = headers.filter(({ name }) => name);
  if (named.length) record.headers = Object.fromEntries(named.map(({ name, value: text }) => [name, text]));
  if (contentType) record.contentType = contentType;
  const text = JSON.stringify(record);
  return valueForm === "json" ? `${text.slice(0, -1)},"json":${value}}` : text;
}

// Names the attempt: if the answer is lost and the button is clicked again, the record is still appended once.
function newProducer() {
  const octets = crypto.getRandomValues(new Uint8Array(16));
  return `page/${Array.from(octets, (one) => one.toString(16).padStart(2, "0")).join("")}`;
}

export function Append({ onClose }) {
  const form = useSignal({
    keyForm: query.peek().key_base64 ? "key" : "keyText", key: query.peek().key ?? query.peek().key_base64 ?? query.peek().prefix ?? "",
    valueForm: "text", value: "", headers: [], contentType: "",
  });
  const state = useSignal({ busy: false, error: null, done: null });
  const attempt = useRef({ record: "", producer: "" });
  const set = (changes) => { form.value = { ...form.value, ...changes }; };
  const field = (name) => (event) => set({ [name]: event.target.value });
  async function send(event) {
    event.preventDefault();
    if (state.value.busy) return;
    state.value = { busy: true, error: null, done: null };
    try {
      const record = recordOf(form.value);
      if (attempt.current.record !== record) attempt.current = { record, producer: newProducer() };
      const body = `{"records":[${record}],"awaitDurable":true,"producerId":"${attempt.current.producer}","producerSeq":0}`;
      const { answer } = await request("POST", "api/v1/log/append", { body, headers: { "Content-Type": "application/json" } });
      attempt.current = { record: "", producer: "" };
      state.value = { busy: false, error: null, done: { ...answer, ...form.value } };
    } catch (error) {
      state.value = { busy: false, error: error instanceof SyntaxError ? new Error(`the value is no JSON: ${error.message}`) : error, done: null };
    }
  }
  const { keyForm, key, valueForm, value, headers, contentType } = form.value;
  const choice = (label, name, forms) => html`<label>${label}<select value=${form.value[name]} onChange=${field(name)}>
    ${Object.entries(forms).map(([one, title]) => html`<option value=${one}>${title}</option>`)}</select></label>`;
  return html`<${Dialog} title="Append a record" onClose=${onClose}>
    <form class="stack" onSubmit=${send}>
      <div class="row">${choice("Key as", "keyForm", KEY_FORMS)}</div>
      <label>Key<input class="mono" autofocus value=${key} onInput=${field("key")} spellcheck=${false} /></label>
      <div class="row">${choice("Value as", "valueForm", VALUE_FORMS)}</div>
      ${valueForm !== "tombstone" && html`<label>Value<textarea class="mono" rows="6" value=${value} onInput=${field("value")} spellcheck=${false}></textarea></label>`}
      <label>Content type<input class="mono" value=${contentType} onInput=${field("contentType")} placeholder="none" /></label>
      <${Headers} headers=${headers} set=${(next) => set({ headers: next })} />
      <${Problem} error=${state.value.error} />
      ${state.value.done && html`<${Done} done=${state.value.done} onClose=${onClose} />`}
      <footer><button type="button" onClick=${onClose}>Close</button>
        <button class="main" type="submit" disabled=${state.value.busy}>${state.value.busy ? "Appending…" : "Append"}</button></footer>
    </form>
  </${Dialog}>`;
}

function Headers({ headers, set }) {
  const change = (index, changes) => set(headers.map((one, at) => (at === index ? { ...one, ...changes } : one)));
  return html`${headers.map(({ name, value }, index) => html`<div class="row">
      <input class="mono" aria-label=${`Name of header ${index + 1}`} placeholder="Name" value=${name} onInput=${(event) => change(index, { name: event.target.value })} />
      <input class="mono" aria-label=${`Value of header ${index + 1}`} placeholder="Value" value=${value} onInput=${(event) => change(index, { value: event.target.value })} />
      <button type="button" class="quiet" aria-label=${`Take header ${index + 1} away`} onClick=${() => set(headers.filter((_, at) => at !== index))}>✕</button>
    </div>`)}
    <div><button type="button" disabled=${headers.length >= HEADERS_MAX} onClick=${() => set([...headers, { name: "", value: "" }])}>Add a header</button></div>`;
}

function Done({ done, onClose }) {
  const key = done.keyForm === "keyText" ? { key: done.key } : { key_base64: done.key };
  return html`<p role="status">Appended as <a href=${linkTo("log", { ...key, from: done.startSequence, record: done.startSequence })}
    onClick=${onClose}>record ${count(done.startSequence)}</a>; it is on disk.</p><${Remarks} infos=${done.infos} />`;
}
