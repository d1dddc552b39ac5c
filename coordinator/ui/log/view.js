// The area "log": records, keys, segments, consumer groups and policies.
import { html, useSignal } from "../vendor.js";
import { useKeys } from "../base/keys.js";
import { linkTo, params } from "../base/link.js";
import { Append } from "./append.js";
import { Groups } from "./groups.js";
import { Keys } from "./keys.js";
import { Policies } from "./policies.js";
import { Records } from "./records_view.js";
import { Segments } from "./segments.js";

const PARTS = { records: ["Records", Records], keys: ["Keys", Keys], segments: ["Segments", Segments], groups: ["Consumer groups", Groups], policies: ["Policies", Policies] };

export function View() {
  const isAppending = useSignal(false);
  const asked = params.value.get("part");
  const part = Object.hasOwn(PARTS, asked ?? "") ? asked : "records";
  const append = () => { isAppending.value = true; };
  useKeys([{ keys: "a", label: "Append a record", run: append }]);
  return html`<div class="log stack">
    <div class="row"><h1>Log</h1>
      <nav class="log-parts" aria-label="Parts of the log">${Object.entries(PARTS).map(([name, [title]]) => html`<a
        href=${linkTo("log", name === "records" ? {} : { part: name })} aria-current=${part === name ? "page" : undefined}>${title}</a>`)}</nav>
      <span class="space"></span><button title="Append a record (a)" onClick=${append}>Append…</button></div>
    <${PARTS[part][1]} key=${part} />
    ${isAppending.value && html`<${Append} onClose=${() => { isAppending.value = false; }} />`}
  </div>`;
}
