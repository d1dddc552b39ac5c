// The list of records, and beside it the one that is chosen.
import { html } from "../vendor.js";
import { useKeys } from "../base/keys.js";
import { change, params } from "../base/link.js";
import { Record } from "./record.js";
import { recordOf } from "./records.js";
import { Rows } from "./rows.js";
import { isOneKey, selected, whole } from "./selection.js";

/** `rows`: as of Rows; `onChoose()`: a record is chosen; `list`: further properties of Rows. */
export function WithRecord({ rows, empty, list = {}, onChoose }) {
  const chosen = whole("record");
  const row = chosen === null ? undefined : rows.find((one) => one.sequence === chosen);
  const choose = (sequence) => { onChoose?.(); change({ record: sequence === chosen ? null : sequence }, { step: false }); };
  const close = () => change({ record: null }, { step: false });
  const step = (by) => () => {
    const index = rows.findIndex((one) => one.sequence === chosen);
    const next = rows[index < 0 ? (by > 0 ? 0 : rows.length - 1) : index + by];
    if (next) { onChoose?.(); change({ record: next.sequence }, { step: false }); }
  };
  useKeys([
    { keys: "j", label: "Next record", run: step(1) },
    { keys: "k", label: "Record before", run: step(-1) },
    { keys: "Escape", label: "Close the record", run: close },
  ], [rows, chosen]);
  const pattern = params.value.get("grep") ?? "";
  return html`<div class="log-body ${chosen === null ? "" : "log-split"}">
    <${Rows} rows=${rows} chosen=${chosen} onChoose=${choose} withKey=${!isOneKey.value} empty=${empty} pattern=${pattern} ...${list} />
    ${chosen !== null && html`<${Record} key=${chosen} sequence=${chosen} known=${row ? recordOf(row) : null} query=${selected.value} pattern=${pattern} onClose=${close} />`}
  </div>`;
}
