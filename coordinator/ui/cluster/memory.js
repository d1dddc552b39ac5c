// What holds how much memory, by process.
import { html } from "../vendor.js";
import { request } from "../base/api.js";
import { bytes } from "../base/format.js";
import { usePoll } from "../base/poll.js";
import { Said } from "../base/said.js";
import { Table } from "../base/table.js";
import { Figures } from "./figures.js";

const EVERY_MS = 5000;
const PAGES = [
  ["residentBytes", "Resident", "all pages in memory, those of files and shared ones included"],
  ["proportionalBytes", "Proportional", "pages that several processes share are divided among them"],
  ["anonymousBytes", "Anonymous", "pages that are of no file: what the owners here divide among them"],
  ["sharedBytes", "Shared", "pages that other processes have, too"],
];
const OWNERS = {
  program: "modules, compiled code and the interpreter, which processes share in part", queries: "arrays of queries that run",
  index: "series: labels and index", head: "samples not in blocks yet", block_cache: "blocks in the cache", log: "the log’s newest records",
  rows: "stores", vectors: "vectors and their indexes", exemplars: "exemplars", known_labels: "known label sets",
  series_references: "series by number", bodies: "bodies of requests",
};

const column = (title, value, hint) => ({
  title, align: "end", value, render: (row) => html`<span title=${hint}>${value(row) === null ? "–" : bytes(value(row))}</span>`,
});
const sum = (processes, value) => processes.reduce((total, one) => total + (value(one) ?? 0), 0);

export function Memory() {
  const poll = usePoll((signal) => request("GET", "api/v1/status/memory", { signal }), EVERY_MS);
  const processes = poll.value.value?.answer.data.processes;
  if (!processes) return html`<${Said} poll=${poll} />`;
  const totals = {};
  for (const one of processes) for (const [owner, size] of Object.entries(one.owners ?? {})) totals[owner] = (totals[owner] ?? 0) + size;
  const owners = Object.entries(totals).sort(([, a], [, b]) => b - a);
  const names = Object.keys(totals).sort(); // a column stays where it is when another owner becomes the largest
  const columns = [
    { title: "Process", value: (row) => row.process },
    ...PAGES.map(([name, title, hint]) => column(title, (row) => row[name] ?? null, hint)),
    ...names.map((owner) => column(owner.replaceAll("_", " "), (row) => row.owners?.[owner] ?? null, OWNERS[owner])),
    column("no owner", (row) => row.unattributedBytes ?? null, "anonymous pages that no part has counted, such as room that the allocator keeps"),
  ];
  return html`<${Said} poll=${poll} />
    <${Figures} figures=${[
      ["All processes", bytes(sum(processes, (one) => one.proportionalBytes ?? one.residentBytes)), "proportional: shared pages count once"],
      ...owners.slice(0, 6).map(([owner, size]) => [owner.replaceAll("_", " "), bytes(size), OWNERS[owner]]),
    ]} />
    <${Table} key=${names.join()} label="Memory by process" columns=${columns} rows=${processes} rowKey=${(row) => row.process} />`;
}
