// A JSON value as a tree that opens. The path of what is chosen is shown, and can be copied or searched for.
import { html, useSignal } from "../vendor.js";
import { Copy } from "../base/take.js";
import { change } from "../base/link.js";
import { Literal } from "./records.js";

const CHILDREN_AT_ONCE = 100;
const OPEN_CHILDREN_MAX = 30; // an object with more begins closed, unless it is the whole value
const TEXT_CHARACTERS = 300;

const isTree = (value) => value !== null && typeof value === "object" && !(value instanceof Literal);

/** A path as conditions of the log write it: $.a.b[0], $["user name"]. */
const pathTo = (path, name) => {
  if (typeof name === "number") return `${path}[${name}]`;
  return /^[A-Za-z_][A-Za-z0-9_]*$/.test(name) ? `${path}.${name}` : `${path}[${JSON.stringify(name)}]`;
};

/** A value as JSON, with the digits of numbers as they were. */
function text(value) {
  if (value instanceof Literal) return value.source;
  if (!isTree(value)) return JSON.stringify(value);
  const parts = Array.isArray(value) ? value.map(text) : Object.entries(value).map(([name, one]) => `${JSON.stringify(name)}:${text(one)}`);
  return Array.isArray(value) ? `[${parts.join(",")}]` : `{${parts.join(",")}}`;
}

export function JsonTree({ json }) {
  const chosen = useSignal({ path: "$", value: json });
  const { path, value } = chosen.value;
  return html`<div class="log-json">
    <div class="row log-path"><code aria-label="Path">${path}</code>
      <${Copy} label="Copy path" text=${() => path} />
      <${Copy} label="Copy value" text=${() => (typeof value === "string" ? value : text(value))} />
      ${!isTree(value) && path !== "$" && html`<button class="quiet" onClick=${() => change({ where: `${path} = ${text(value)}`, from: null, before: null })}>Only records with this</button>`}
    </div>
    <ul class="log-tree mono"><${Node} name="$" path="$" value=${json} isRoot chosen=${chosen} /></ul>
  </div>`;
}

function Node({ name, path, value, isRoot = false, chosen }) {
  const size = isTree(value) ? Object.keys(value).length : 0;
  const isOpen = useSignal(isRoot || (size <= OPEN_CHILDREN_MAX && path.length < 40));
  const shown = useSignal(CHILDREN_AT_ONCE);
  const label = html`<button class="link log-name" aria-current=${chosen.value.path === path ? "true" : undefined}
    onClick=${() => { chosen.value = { path, value }; }}>${String(name)}</button>`;
  if (!isTree(value)) return html`<li>${label}: <${Scalar} value=${value} /></li>`;
  const isList = Array.isArray(value);
  const entries = isOpen.value ? Object.entries(value).slice(0, shown.value) : [];
  return html`<li>
    <button class="quiet log-fold" aria-expanded=${isOpen.value} aria-label=${`${isOpen.value ? "Close" : "Open"} ${path}`} onClick=${() => { isOpen.value = !isOpen.value; }}>${isOpen.value ? "▾" : "▸"}</button>
    ${label}: <span class="hint">${isList ? `[${size}]` : `{${size}}`}</span>
    ${isOpen.value && html`<ul>${entries.map(([key, one]) => {
      const own = isList ? Number(key) : key;
      return html`<${Node} key=${key} name=${own} path=${pathTo(path, own)} value=${one} chosen=${chosen} />`;
    })}${size > shown.value && html`<li><button onClick=${() => { shown.value += 10 * CHILDREN_AT_ONCE; }}>${size - shown.value} more</button></li>`}</ul>`}
  </li>`;
}

function Scalar({ value }) {
  const isWhole = useSignal(false);
  const full = text(value);
  const kind = value instanceof Literal ? "number" : value === null ? "null" : typeof value;
  if (full.length <= TEXT_CHARACTERS || isWhole.value) return html`<span class="log-${kind}">${full}</span>`;
  return html`<span class="log-${kind}">${full.slice(0, TEXT_CHARACTERS)}</span><button class="link" onClick=${() => { isWhole.value = true; }}>… all ${full.length} characters</button>`;
}
