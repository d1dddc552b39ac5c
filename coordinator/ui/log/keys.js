// Keys, with what they hold.
import { html, useEffect, useSignal } from "../vendor.js";
import { request } from "../base/api.js";
import { Confirm } from "../base/dialog.js";
import { count, time } from "../base/format.js";
import { change, params } from "../base/link.js";
import { usePoll } from "../base/poll.js";
import { Problem, Progress, Remarks } from "../base/remarks.js";
import { Table } from "../base/table.js";
import { deleteKey } from "./deletion.js";
import { choosing, fits, keyName, keyQuery, shortName } from "./selection.js";

const PAGE_KEYS = 100;
const AT_ONCE = 4; // requests that ask about single keys

export function Keys() {
  const prefix = params.value.get("keys") ?? "";
  const place = params.value.get("after_base64");
  const typed = useSignal(prefix);
  const deleting = useSignal(null);
  const { value, error, busy, again } = usePoll((signal) => page(prefix, place, signal), 0, [prefix, place]);
  const known = useDetails(value.value?.keys);
  const rows = (value.value?.keys ?? []).map((key) => ({ key, ...known.details[key.key] }));
  const columns = [
    { title: "Key", value: (row) => keyName(row.key.shown), render: (row) => html`<span class="mono">${shortName(row.key.shown)}</span>` },
    { title: "Records", align: "end", value: (row) => row.records, render: (row) => count(row.records) },
    { title: "First", align: "end", value: (row) => row.first, render: (row) => row.first ?? "–" },
    { title: "Last", align: "end", value: (row) => row.last, render: (row) => row.last ?? "–" },
    { title: "Newest", value: (row) => row.timeMs, render: (row) => (row.timeMs ? time(row.timeMs) : "–") },
    { title: "", sortable: false, value: () => "", render: (row) => html`<button class="quiet" aria-label=${`Delete ${shortName(row.key.shown)}`}
      onClick=${(event) => { event.stopPropagation(); deleting.value = row.key.shown; }}>Delete…</button>` },
  ];
  async function remove(key) {
    try {
      await deleteKey(keyQuery(key));
    } catch (problem) {
      error.value = problem;
      return;
    }
    again();
  }
  return html`<form class="row" onSubmit=${(event) => { event.preventDefault(); change({ keys: typed.value, after_base64: null }); }}>
      <input class="mono" aria-label="Prefix of the keys" placeholder="Prefix" value=${typed.value} onInput=${(event) => { typed.value = event.target.value; }} />
      <button class="main" type="submit">Show</button>
      ${place && html`<button type="button" onClick=${() => change({ after_base64: null })}>First keys</button>`}
      ${value.value?.more && html`<button type="button" onClick=${() => change({ after_base64: value.value.keys.at(-1).key })}>Next keys</button>`}
    </form>
    <${Problem} error=${error.value} onRetry=${again} />
    <${Remarks} warnings=${value.value?.warnings} />
    ${known.left > 0 && html`<${Progress} label=${`Counting: ${known.left} keys to go`} share=${1 - known.left / rows.length} onCancel=${known.cancel} />`}
    <${Problem} error=${known.error} />
    ${value.value && html`<${Table} key=${`${prefix}\n${place}`} label="Keys" columns=${columns} rows=${rows} rowKey=${(row) => row.key.key} empty="No keys."
      onRow=${(row) => change({ ...choosing(row.key.shown), keys: null, after_base64: null })} />`}
    ${busy.value && !value.value && html`<p class="hint">Reading…</p>`}
    ${deleting.value && html`<${Confirm} title="Delete a key" action="Delete all its records" onConfirm=${() => remove(deleting.peek())} onClose=${() => { setTimeout(() => { deleting.value = null; }); }}>
      <p>All records of <code>${shortName(deleting.value)}</code> that are there now will be deleted, on disk and for good.</p></${Confirm}>`}`;
}

/** A page of keys, {key: base64, which tells them apart; shown: {keyText} or {key}}. */
async function page(prefix, after, signal) {
  const query = { prefix, limit: PAGE_KEYS, after_base64: after };
  const { answer } = await request("GET", "api/v1/log/keys", { query, signal });
  return { ...answer, keys: answer.keys.map(({ key }) => ({ key, shown: shownOf(key) })) };
}

function shownOf(key) {
  try {
    const octets = Uint8Array.from(atob(key), (one) => one.charCodeAt(0));
    return { keyText: new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(octets) };
  } catch {
    return { key };
  }
}

// How many records each key has, and which are the first and the last: asked one key after the other.
function useDetails(keys) {
  const details = useSignal({});
  const left = useSignal(0);
  const failure = useSignal(null);
  const stop = useSignal(() => {});
  useEffect(() => {
    if (!keys) return undefined;
    const controller = new AbortController();
    const waiting = [...keys];
    const found = {};
    stop.value = () => { controller.abort(); left.value = 0; details.value = { ...found }; };
    details.value = {};
    failure.value = null;
    left.value = waiting.length;
    async function work() {
      while (waiting.length) {
        const { key, shown } = waiting.shift();
        found[key] = await detailsOf(keyQuery(shown), controller.signal);
        if (controller.signal.aborted) return;
        left.value -= 1;
        if (left.value % 10 === 0) details.value = { ...found };
      }
    }
    Promise.all(Array.from({ length: AT_ONCE }, work)).catch((error) => {
      if (controller.signal.aborted) return;
      failure.value = error;
      stop.peek()();
    });
    return () => controller.abort();
  }, [keys]);
  return { details: details.value, left: left.value, error: failure.value, cancel: () => stop.peek()() };
}

async function detailsOf(key, signal) {
  if (!fits(key)) return {};
  const ask = async (path, query = {}) => (await request("GET", `api/v1/log/${path}`, { query: { ...key, ...query }, signal })).answer;
  const one = { limit: 1, value_bytes: 0 };
  const [{ count: records }, first, last] = await Promise.all([ask("count"), ask("scan", one), ask("scan", { ...one, reverse: true })]);
  return { records, first: first.records[0]?.sequence, last: last.records[0]?.sequence, timeMs: last.records[0]?.timeMs };
}
