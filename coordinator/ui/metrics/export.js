// Takes a query and its answer out of the page.
import { html, useEffect, useId, useRef, useSignal } from "../vendor.js";
import { Copy, save } from "../base/take.js";
import { curl, long, wide } from "./exported.js";

const SLICE_MS = 15; // the page answers at least so often while a file is made

/** `query`: as query.js gives it, with an answer. */
export function ExportMenu({ query }) {
  const isOpen = useSignal(false);
  const isBusy = useSignal(false);
  const menu = useRef(null);
  const id = useId();
  useEffect(() => {
    if (!isOpen.value) return undefined;
    const close = (event) => { if (!event.composedPath().includes(menu.current)) isOpen.value = false; };
    addEventListener("pointerdown", close);
    return () => removeEventListener("pointerdown", close);
  }, [isOpen.value]);

  function keys(event) {
    if (event.key === "Escape" && isOpen.value) {
      event.stopPropagation();
      isOpen.value = false;
      menu.current.querySelector("button").focus();
    }
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (!step || !isOpen.value) return;
    event.preventDefault();
    const buttons = [...menu.current.querySelectorAll(".menu-items button:not(:disabled)")];
    buttons[(buttons.indexOf(document.activeElement) + step + buttons.length) % buttons.length]?.focus();
  }

  async function download(name, type, pieces) {
    isBusy.value = true;
    try {
      save(name, await joined(pieces), type);
    } finally {
      isBusy.value = false;
      isOpen.value = false;
    }
  }

  const { result: data, remarks, request } = query;
  const { limit, ...fields } = request.fields; // the limit is that of this page
  const file = `query-${new Date().toISOString().slice(0, 19).replaceAll(":", "")}`;
  const item = (label, run) => html`<button class="quiet" disabled=${isBusy.value} onClick=${run}>${label}</button>`;
  return html`<div class="menu" ref=${menu} onKeyDown=${keys}>
    <button class="quiet" aria-expanded=${isOpen.value} aria-controls=${id} onClick=${() => { isOpen.value = !isOpen.value; }}>Export ▾</button>
    ${isOpen.value && html`<div class="menu-items" id=${id} role="group" aria-label="Export">
      <${Copy} label="Copy as curl" text=${() => curl(request.path, fields)} />
      <${Copy} label="Copy link" text=${() => location.href} />
      ${item("CSV, a column for each series", () => download(`${file}.csv`, "text/csv", wide(data)))}
      ${item("CSV, a row for each sample", () => download(`${file}.csv`, "text/csv", long(data)))}
      ${item("JSON, as it was answered", () => download(`${file}.json`, "application/json", [answered(data, remarks)]))}
    </div>`}
  </div>`;
}

/** The answer's text, as the server wrote it. */
function answered(data, { warnings = [], infos = [] }) {
  return JSON.stringify({
    status: "success", data, ...(warnings.length ? { warnings } : {}), ...(infos.length ? { infos } : {}),
  });
}

/** A Blob of pieces of text, which are made, and encoded, a slice of time at a time. */
async function joined(pieces) {
  const slices = [];
  let texts = [];
  let until = performance.now() + SLICE_MS;
  for (const piece of pieces) {
    texts.push(piece);
    if (performance.now() < until) continue;
    slices.push(new Blob(texts));
    texts = [];
    await new Promise((resolve) => { setTimeout(resolve); });
    until = performance.now() + SLICE_MS;
  }
  return new Blob([...slices, ...texts]);
}
