// All about one record.
import { html, useEffect, useMemo, useSignal } from "../vendor.js";
import { isCancelled } from "../base/api.js";
import { bytes, time } from "../base/format.js";
import { linkTo } from "../base/link.js";
import { Problem, Progress } from "../base/remarks.js";
import { Copy } from "../base/take.js";
import { JsonTree } from "./json_tree.js";
import { Marked } from "./marks.js";
import { Hex, LongText } from "./octets.js";
import { SHOWN_BYTES } from "./reading.js";
import { isBinary, isCut, jsonOf, shownBytes, sizeOf } from "./records.js";
import { fits, keyName, keyQuery } from "./selection.js";
import { download, MORE_BYTES, octetsOf, readRecord, SHOWN_BYTES_MAX } from "./value.js";

/** `known`: the record as a list has it, or null; `query`: what selects it, without a search. */
export function Record({ sequence, known, query, pattern, onClose }) {
  const { record, error, busy, more, take, cancel } = useRecord(sequence, known, query);
  if (!record) {
    return html`<section class="panel log-record" aria-label=${`Record ${sequence}`}><${Head} sequence=${sequence} onClose=${onClose} />
      <${Problem} error=${error} />${busy && html`<${Progress} label=${busy} onCancel=${cancel} />`}
      ${record === null && html`<p class="hint">Record ${sequence} is not among those that are chosen, or not there any more.</p>`}</section>`;
  }
  const key = keyQuery(record);
  return html`<section class="panel log-record" aria-label=${`Record ${sequence}`}>
    <${Head} sequence=${sequence} onClose=${onClose} />
    <table class="plain"><tbody>
      <tr><th scope="row">Key</th><td class="mono log-key-whole"><a href=${linkTo("log", { ...key, from: sequence, record: sequence })}>${keyName(record)}</a></td></tr>
      <tr><th scope="row">Time</th><td>${record.timeMs ? time(record.timeMs, { millis: true }) : "not known"}</td></tr>
      <tr><th scope="row">Size</th><td>${bytes(sizeOf(record))}</td></tr>
      ${record.contentType && html`<tr><th scope="row">Content type</th><td class="mono">${record.contentType}</td></tr>`}
      ${Object.entries(record.headers ?? {}).map(([name, value]) => html`<tr><th scope="row" class="mono">${name}</th><td class="mono">${value}</td></tr>`)}
    </tbody></table>
    ${record.tombstone ? html`<p>A tombstone: the key has ended here.</p>` : html`<${Value} record=${record} pattern=${pattern} more=${more} take=${take} />`}
    <${Problem} error=${error} />
    ${busy && html`<${Progress} label=${busy} onCancel=${cancel} />`}
  </section>`;
}

function Head({ sequence, onClose }) {
  return html`<header class="row"><h2>Record ${sequence}</h2><span class="space"></span>
    <button class="quiet" aria-label="Close the record" onClick=${onClose}>✕</button></header>`;
}

function Value({ record, pattern, more, take }) {
  const way = useSignal("");
  const parsed = useMemo(() => jsonOf(record), [record]);
  const ways = [...(parsed ? ["JSON"] : []), ...(isBinary(record) ? [] : ["Text"]), "Hex"];
  const shown = ways.includes(way.value) ? way.value : ways[0];
  const part = shownBytes(record);
  return html`<div class="row">
      <div class="choices" role="group" aria-label="Show the value as">${ways.map((one) => html`<button aria-pressed=${shown === one} onClick=${() => { way.value = one; }}>${one}</button>`)}</div>
      ${!isCut(record) && !isBinary(record) && html`<${Copy} text=${() => record.text} label="Copy value" />`}
      <button class="quiet" onClick=${take}>Download</button>
    </div>
    ${isCut(record) && html`<p class="row" role="note"><span>Shown: ${bytes(part)} of ${bytes(sizeOf(record))}.</span>
      ${part < SHOWN_BYTES_MAX && html`<button onClick=${() => more(Math.min(part + MORE_BYTES, SHOWN_BYTES_MAX))}>Show 64 KiB more</button>`}
      ${sizeOf(record) <= SHOWN_BYTES_MAX && html`<button onClick=${() => more(SHOWN_BYTES_MAX)}>Show all</button>`}</p>`}
    ${shown === "JSON" && html`<${JsonTree} key=${record.sequence} json=${parsed.json} />`}
    ${shown === "Text" && html`<${LongText} text=${record.text} marked=${(text) => html`<${Marked} text=${text} pattern=${pattern} />`} />`}
    ${shown === "Hex" && html`<${Hex} octets=${octetsOf(record)} />`}`;
}

// `record`: undefined while it is not known, null if there is none.
function useRecord(sequence, known, query) {
  const state = useSignal({ record: known ?? undefined, error: null, busy: "" });
  const running = useSignal(null);
  async function doing(label, work) {
    running.peek()?.abort();
    const own = (running.value = new AbortController());
    const set = (changes) => { if (running.peek() === own) state.value = { ...state.peek(), ...changes }; };
    set({ busy: label, error: null });
    try {
      const record = await work(own.signal);
      set({ busy: "", ...(record === undefined ? {} : { record }) });
    } catch (error) {
      set({ busy: "", error: isCancelled(error) ? null : error });
    }
  }
  const selecting = () => {
    const own = state.peek().record ? keyQuery(state.peek().record) : query;
    return fits(own) ? own : { prefix: "" }; // the number says which record it is
  };
  const more = (size) => doing("Reading the value…", (signal) => readRecord(selecting(), sequence, size, signal));
  const take = () => doing("Reading all of the value…", (signal) => download(selecting(), state.peek().record, signal));
  useEffect(() => {
    state.value = { record: known ?? undefined, error: null, busy: "" };
    if (!known || (isCut(known) && shownBytes(known) < SHOWN_BYTES - 8)) more(SHOWN_BYTES);
    return () => { running.peek()?.abort(); running.value = null; };
  }, [sequence]);
  return { ...state.value, more, take, cancel: () => running.peek()?.abort() };
}
