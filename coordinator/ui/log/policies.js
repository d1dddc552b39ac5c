// Policies: which records are kept of the keys with a prefix.
import { html } from "../vendor.js";
import { request } from "../base/api.js";
import { count } from "../base/format.js";
import { usePoll } from "../base/poll.js";
import { Problem } from "../base/remarks.js";
import { Table } from "../base/table.js";

const EVERY_MS = 10_000;
const COLUMNS = [
  { title: "Policy", value: (row) => row.name },
  { title: "Prefix", value: (row) => row.prefix ?? `base64:${row.prefixBase64}`, render: (row) => html`<span class="mono">${row.prefix === "" ? "all keys" : (row.prefix ?? `base64:${row.prefixBase64}`)}</span>` },
  { title: "Newest kept, of each key", align: "end", value: (row) => row.keepNewest ?? null, render: (row) => (row.keepNewest ? count(row.keepNewest) : "all") },
  { title: "Not older than", value: (row) => row.maxAge ?? "", render: (row) => row.maxAge ?? "any age" },
  { title: "Tombstones go after", value: (row) => row.deleteTombstonesAfter ?? "", render: (row) => (row.keepNewest ? (row.deleteTombstonesAfter ?? "1d") : "–") },
];

export function Policies() {
  const { value, error, again } = usePoll(async (signal) => (await request("GET", "api/v1/log/policies", { signal })).answer, EVERY_MS);
  return html`<${Problem} error=${error.value} onRetry=${again} />
    ${value.value && html`<${Table} label="Policies" columns=${COLUMNS} rows=${value.value.policies} rowKey=${(row) => row.name} empty="No policies: records are kept until retention drops their segment." />
      <p class="hint">Policies are set by PUT /api/v1/log/policies/{name}.</p>`}`;
}
