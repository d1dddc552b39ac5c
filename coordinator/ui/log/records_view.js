// Records, in pages or as they come.
import { html, useEffect, useSignal } from "../vendor.js";
import { isCancelled, request } from "../base/api.js";
import { Confirm } from "../base/dialog.js";
import { count, parseTime } from "../base/format.js";
import { useKeys } from "../base/keys.js";
import { change, params } from "../base/link.js";
import { Problem, Progress, Remarks } from "../base/remarks.js";
import { deleteKey } from "./deletion.js";
import { unmarked } from "./marks.js";
import { after, before, sequenceAt } from "./reading.js";
import { Choice, isOfField, isOneKey, query, selected, shortName, wanted, whole } from "./selection.js";
import { TailView } from "./tail_view.js";
import { WithRecord } from "./with_record.js";

export function Records() {
  const failure = useSignal(null);
  const isTail = params.value.get("tail") === "on";
  const turn = () => change({ tail: isTail ? null : "on", from: null, before: null, record: null });
  useKeys([
    { keys: "w", label: "Follow new records, or stop", run: turn },
    { keys: "/", label: "Search the log", run: () => document.getElementById("log-grep")?.focus() },
    { keys: "c", label: "Choose a key", run: () => document.getElementById("log-key")?.focus() },
  ], [isTail]);
  return html`<${Choice} error=${failure.value} />
    ${unmarked.value && unmarked.value === params.value.get("grep") && html`<${Remarks} infos=${["this browser cannot mark the matches of this expression; the server finds them"]} />`}
    ${isTail
      ? html`<${TailView} key=${wanted.value} failure=${failure} onStop=${turn} />`
      : html`<${Pages} failure=${failure} onTail=${turn} />`}`;
}

function Pages({ failure, onTail }) {
  const page = usePage(failure);
  const value = page.value;
  const isDeleting = useSignal(false);
  const place = (changes) => () => change({ from: null, before: null, record: null, ...changes });
  const older = value?.older != null && place({ before: value.older });
  const newer = value && place({ from: value.newer });
  const first = place({ from: 0 });
  const last = () => { place({})(); page.again(); };
  useKeys([
    { keys: "f", label: "First records", run: first },
    { keys: "o", label: "Older records", run: () => older && older() },
    { keys: "n", label: "Newer records", run: () => newer && newer() },
    { keys: "l", label: "Last records", run: last },
  ], [value]);
  const from = whole("from");
  return html`<div class="row" role="toolbar" aria-label="Place in the log">
      <button onClick=${first} title="First records (f)">First</button>
      <button onClick=${older} disabled=${!older} title="Older records (o)">Older</button>
      <button onClick=${newer} disabled=${!newer} title="Newer records (n)">Newer</button>
      <button onClick=${last} title="Last records (l)">Last</button>
      <${GoTo} />
      <button onClick=${onTail} title="Follow new records (w)">▶ Follow</button>
      <span class="space"></span>
      ${isOneKey.value && html`<button class="danger" onClick=${() => { isDeleting.value = true; }}>Delete this key…</button>`}
    </div>
    ${!isOfField(page.error) && html`<${Problem} error=${page.error} onRetry=${page.again} />`}
    ${page.busy && html`<${Progress} label=${page.busy} onCancel=${page.cancel} />`}
    ${value && html`<${Remarks} warnings=${value.warnings} infos=${value.infos} />
      <p class="row"><span class="hint" aria-live="polite">${summary(value)}</span> <${Total} key=${wanted.value} /></p>
      <${WithRecord} rows=${value.rows} list=${{ isEnd: value.isEnd }} empty=${from ? `No records from ${count(from)} on, so far.` : "No records."} />`}
    ${isDeleting.value && html`<${DeleteKey} onClose=${() => { isDeleting.value = false; }} onDone=${last} failure=${failure} />`}`;
}

function summary({ rows, older }) {
  if (!rows.length) return older === null ? "" : "There may be older records.";
  const range = rows.length === 1 ? `1 record, ${count(rows[0].sequence)}` : `${count(rows.length)} records, ${count(rows[0].sequence)} to ${count(rows.at(-1).sequence)}`;
  return older === null ? `${range}; there are no older ones.` : `${range}.`;
}

// How many records there are in all: asked on demand, since a search takes as long as reading them.
function Total() {
  const state = useSignal({ controller: null, total: null, error: null });
  useEffect(() => () => state.peek().controller?.abort(), []);
  async function ask() {
    const controller = new AbortController();
    state.value = { controller, total: null, error: null };
    try {
      const { answer } = await request("GET", "api/v1/log/count", { query: query.peek(), signal: controller.signal });
      state.value = { controller: null, total: answer, error: null };
    } catch (error) {
      state.value = { controller: null, total: null, error: isCancelled(error) ? null : error };
    }
  }
  const { controller, total, error } = state.value;
  if (controller) return html`<${Progress} label="Counting…" onCancel=${() => controller.abort()} />`;
  return html`<button class="link" onClick=${ask}>Count all</button>
    ${total && html`<span role="status">${count(total.count)} in all</span><${Remarks} warnings=${total.warnings} />`}<${Problem} error=${error} />`;
}

function GoTo() {
  const text = useSignal("");
  const error = useSignal(null);
  async function go(event) {
    event.preventDefault();
    error.value = null;
    const typed = text.value.trim();
    try {
      const sequence = /^\d+$/.test(typed) ? Number(typed) : await atTime(typed);
      change({ from: sequence, before: null, record: null });
    } catch (problem) {
      error.value = problem;
    }
  }
  return html`<form class="row log-field" onSubmit=${go}>
    <input aria-label="Sequence or time" placeholder="Sequence or time" value=${text.value} aria-invalid=${Boolean(error.value)}
      onInput=${(event) => { text.value = event.target.value; }} /><button type="submit" disabled=${!text.value.trim()}>Go to</button>
    ${error.value && html`<span class="log-wrong" role="alert">${error.value.message}</span>`}
  </form>`;
}

function atTime(typed) {
  const ms = parseTime(typed);
  if (ms === null) throw new Error(`${typed} is neither a sequence number nor a time such as 2026-01-31 17:05`);
  return sequenceAt(selected.value, ms);
}

function DeleteKey({ onClose, onDone, failure }) {
  const key = selected.value;
  const name = shortName({ keyText: key.key, key: key.key_base64 });
  async function run() {
    try {
      await deleteKey(key);
      onDone();
    } catch (error) {
      failure.value = error;
    }
  }
  return html`<${Confirm} title="Delete a key" action="Delete all its records" onConfirm=${run} onClose=${onClose}>
    <p>All records of <code>${name}</code> that are there now will be deleted, on disk and for good.</p></${Confirm}>`;
}

// The page that the link names. What was read last stays while another is read.
function usePage(failure) {
  const state = useSignal({ value: null, error: null, busy: "" });
  const controller = useSignal(null);
  const from = whole("from");
  const end = whole("before");
  async function run() {
    controller.peek()?.abort();
    const own = (controller.value = new AbortController());
    const set = (changes) => { if (controller.peek() === own) state.value = { ...state.peek(), ...changes }; };
    set({ busy: "Reading…" });
    const tell = (sequence) => set({ busy: `Looking back, from ${count(sequence)} on…` });
    try {
      const asked = query.peek();
      const value = from === null ? await before(asked, end, { signal: own.signal, tell }) : await after(asked, from, own.signal);
      set({ value, error: null, busy: "" });
    } catch (error) {
      set({ busy: "", error: isCancelled(error) ? null : error });
    }
    if (controller.peek() === own) failure.value = state.peek().error;
  }
  useEffect(() => {
    run();
    return () => { controller.peek()?.abort(); controller.value = null; };
  }, [wanted.value, from, end]);
  return { ...state.value, again: run, cancel: () => controller.peek()?.abort() };
}
