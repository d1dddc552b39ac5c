// Which records are shown: those of a key, of the keys with a prefix, or all, and what their values must have. It is in
// the link, under the names of the API's parameters.
import { computed, html, useEffect, useSignal } from "../vendor.js";
import { form, request } from "../base/api.js";
import { change, params } from "../base/link.js";

export const KINDS = { key: "Key", key_base64: "Key (base64)", prefix: "Prefix", prefix_base64: "Prefix (base64)", all: "All records" };
const SEARCH = ["grep", "grep_not", "where"];
/** The empty key: a link leaves out what is empty. */
const EMPTY_KEY = { key_base64: "=" };
const COMPLETIONS_MAX = 30;
const TYPED_MS = 120;
const NAME_CHARACTERS = 200;
const QUERY_CHARACTERS_MAX = 64_000;
const COMPLETED_CHARACTERS_MAX = 1000; // a longer key is not offered

const NAMES = Object.keys(KINDS).slice(0, 4);
const chosenName = (fields) => NAMES.find((name) => fields.has(name));

/** What identifies the selection and the search: a text that changes only when they do. */
export const wanted = computed(() => {
  const name = chosenName(params.value);
  const fields = { ...(name ? { [name]: params.value.get(name) } : { prefix: "" }) };
  for (const one of SEARCH) if (params.value.get(one)) fields[one] = params.value.get(one);
  return JSON.stringify(fields);
});
/** The parameters of requests that `wanted` stands for. */
export const query = computed(() => JSON.parse(wanted.value));
/** Without the search. */
export const selected = computed(() => {
  const rest = { ...query.value };
  for (const one of SEARCH) delete rest[one];
  return rest;
});
export const hasSearch = computed(() => SEARCH.some((name) => name in query.value));
export const isOneKey = computed(() => "key" in query.value || "key_base64" in query.value);

/** A parameter of the link that is a whole number; null without it. */
export const whole = (name) => (/^\d{1,16}$/.test(params.value.get(name) ?? "") ? Number(params.value.get(name)) : null);

/** Changes of the link that choose a key, given as a part of the API shows it ({keyText} or {key}), and nothing else. */
export function choosing(key) {
  const fields = Object.fromEntries([...NAMES, "from", "before", "record", "part", "tail"].map((name) => [name, null]));
  return { ...fields, ...keyQuery(key) };
}

/** The parameter that names a key: {keyText}, or {key} in base64. */
export function keyQuery({ keyText, key }) {
  if (keyText ? false : !key) return EMPTY_KEY;
  return keyText ? { key: keyText } : { key_base64: key };
}

/** Whether an address has place for these parameters: the server takes 65,536 bytes, of which the longest keys leave none. */
export const fits = (parameters) => form(parameters).toString().length <= QUERY_CHARACTERS_MAX;

/** A key as text; one that is no text in base64. */
export const keyName = ({ keyText, key }) => keyText ?? `base64:${key}`;

/** As `keyName`, as far as it has place in a line: a key may have 65,535 bytes. */
export function shortName(key) {
  const name = keyName(key);
  return name.length > NAME_CHARACTERS ? `${name.slice(0, NAME_CHARACTERS)}…` : name;
}

/** The form that chooses and searches. `error`: of the last read, shown at the field that it names. */
export function Choice({ error }) {
  const name = chosenName(params.value);
  const kind = useSignal(name ?? "all");
  const typed = useSignal({});
  useEffect(() => {
    kind.value = name ?? "all";
    typed.value = { name: name ? params.value.get(name) : "", ...Object.fromEntries(SEARCH.map((one) => [one, params.value.get(one) ?? ""])) };
  }, [wanted.value]);
  const set = (field) => (event) => { typed.value = { ...typed.value, [field]: event.target.value }; };
  function show(event) {
    event.preventDefault();
    const cleared = Object.fromEntries([...NAMES, "from", "before", "record"].map((one) => [one, null]));
    const text = typed.value.name ?? "";
    const chosen = kind.value === "all" ? {} : text || !kind.value.startsWith("key") ? { [kind.value]: text } : EMPTY_KEY;
    change({ ...cleared, ...chosen, ...Object.fromEntries(SEARCH.map((one) => [one, typed.value[one]])) });
  }
  const search = (field, label, hint) => html`<${SearchField} name=${field} label=${label} hint=${hint} error=${error}
    value=${typed.value[field] ?? ""} onInput=${set(field)} />`;
  return html`<form class="log-choice" onSubmit=${show} aria-label="Records to show">
    <div class="row">
      <select aria-label="Kind of choice" value=${kind.value} onChange=${(event) => { kind.value = event.target.value; }}>
        ${Object.entries(KINDS).map(([value, label]) => html`<option value=${value}>${label}</option>`)}
      </select>
      ${kind.value !== "all" && html`<${KeyField} kind=${kind.value} value=${typed.value.name ?? ""} onInput=${set("name")} />`}
      ${search("grep", "Has", "RE2, such as (?i)error")}
      ${search("grep_not", "Has not", "RE2")}
      ${search("where", "Where", '$.level = "error"')}
      <button class="main" type="submit">Show</button>
    </div>
  </form>`;
}

function SearchField({ name, label, hint, value, onInput, error }) {
  const isWrong = error?.status === 400 && error.message.includes(`'${name}'`);
  return html`<span class="log-field">
    <label>${label} <input class="mono" id=${`log-${name}`} placeholder=${hint} value=${value} onInput=${onInput} spellcheck=${false}
      autocomplete="off" aria-invalid=${isWrong} aria-describedby=${isWrong ? `log-${name}-wrong` : undefined} /></label>
    ${isWrong && html`<span class="log-wrong" role="alert" id=${`log-${name}-wrong`}>${error.message}</span>`}
  </span>`;
}

/** Whether the error is shown at a field of the form. */
export const isOfField = (error) => error?.status === 400 && SEARCH.some((name) => error.message.includes(`'${name}'`));

function KeyField({ kind, value, onInput }) {
  const keys = useSignal([]);
  useEffect(() => {
    const controller = new AbortController();
    const timer = setTimeout(async () => {
      try {
        keys.value = await completions(kind, value, controller.signal);
      } catch {
        keys.value = []; // there is nothing to complete then: the read says what is wrong
      }
    }, TYPED_MS);
    return () => { clearTimeout(timer); controller.abort(); };
  }, [kind, value]);
  return html`<span class="log-field"><input class="mono" id="log-key" aria-label=${KINDS[kind]} placeholder=${KINDS[kind]} list="log-keys" value=${value}
      onInput=${onInput} spellcheck=${false} autocomplete="off" />
    <datalist id="log-keys">${keys.value.map((one) => html`<option value=${one} />`)}</datalist></span>`;
}

/** Keys that begin with what is typed, at most COMPLETIONS_MAX, in the form that the field has. */
async function completions(kind, typed, signal) {
  const isBase64 = kind.endsWith("base64");
  const whole = typed.slice(0, typed.length - (typed.length % 4)); // base64 stands for whole bytes after every 4
  const prefix = isBase64 ? { prefix_base64: whole } : { prefix: typed };
  const options = { query: { ...prefix, limit: COMPLETIONS_MAX, encoding: isBase64 ? "base64" : "text" }, signal, deadline: 10_000 };
  const { answer } = await request("GET", "api/v1/log/keys", options);
  return answer.keys.map((one) => (isBase64 ? one.key : one.keyText)).filter((one) => one && one.length <= COMPLETED_CHARACTERS_MAX);
}

/** The number that the next record to be read will have, and where the log begins. */
export async function frontier(signal) {
  return (await request("GET", "api/v1/log/frontier", { signal, deadline: 20_000 })).answer;
}
