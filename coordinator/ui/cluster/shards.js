// Shards and workers: what is wrong first, then what each holds and how fast it grows.
import { html } from "../vendor.js";
import { request } from "../base/api.js";
import { bytes, count, time } from "../base/format.js";
import { usePoll } from "../base/poll.js";
import { Said } from "../base/said.js";
import { Table } from "../base/table.js";
import { Figures, rate } from "./figures.js";

const EVERY_MS = 2000;

const isReady = (shard) => shard.state === "ready";
const isWell = (shard) => isReady(shard) && !shard.counts.damaged;
const held = (name) => (shard) => shard.counts[name] ?? null;
const sum = (shards, value) => shards.reduce((total, shard) => total + (value(shard) ?? 0), 0);
const rateOf = (name) => (shard) => shard.rates?.[name] ?? null;

function why(shard) {
  if (shard.state === "loading") return `${shard.worker} is still loading it`;
  if (shard.state === "failed") return `${shard.worker} could not load it: ${shard.detail}`;
  return shard.detail;
}

const stateOf = (shard) => (isReady(shard) && !isWell(shard) ? "ready, damaged" : shard.state);

const counted = (title, value, name) => [
  { title, align: "end", value: held(value), render: (shard) => count(held(value)(shard)) },
  ...(name ? [{ title: `${title}/s`, align: "end", value: rateOf(name), render: (shard) => rate(rateOf(name)(shard)) }] : []),
];

const SHARDS = [
  { title: "Shard", align: "end", value: (shard) => shard.shard },
  { title: "State", value: stateOf, render: (shard) => html`<span class=${`state ${isWell(shard) ? "good" : "bad"}`}>● ${stateOf(shard)}</span>` },
  { title: "Worker", value: (shard) => shard.worker ?? "–" },
  ...counted("Series", "series"),
  ...counted("Samples", "samples", "samples"),
  ...counted("Records", "records", "records"),
  ...counted("Vectors", "vectors", "vectors"),
  ...counted("Not indexed yet", "vectors_to_index"),
  ...counted("Blocks", "blocks"),
  { title: "Memory", align: "end", value: (shard) => shard.memoryBytes ?? null, render: (shard) => (shard.memoryBytes ? bytes(shard.memoryBytes) : "–") },
  { title: "Blocks’ size", align: "end", value: held("block_bytes"), render: (shard) => bytes(held("block_bytes")(shard)) },
];

const WORKERS = [
  { title: "Worker", value: (worker) => worker.worker },
  { title: "Process", align: "end", value: (worker) => worker.pid },
  { title: "Shards", value: (worker) => worker.shards.join(", ") },
  { title: "Requests in flight", align: "end", value: (worker) => worker.requestsInFlight },
  { title: "Restarts", align: "end", value: (worker) => worker.restarts ?? null, render: (worker) => html`<span title="since the coordinator has been up">${count(worker.restarts)}</span>` },
];

/** The shards that lack a part of their data, in words. */
function Damage({ shards }) {
  const bad = shards.filter((shard) => isReady(shard) && !isWell(shard));
  if (!bad.length) return null;
  return html`<div class="problem" role="alert">
    <p><strong>Data of ${bad.length} of ${shards.length} shards is damaged.</strong> Answers that lack something because of it have a warning that names it.</p>
    <ul>${bad.map((shard) => html`<li>shard ${shard.shard}: ${shard.counts.damaged === 1 ? "one place" : `${shard.counts.damaged} places`}</li>`)}</ul>
    <p class="advice">What is damaged is set aside and kept. <code>triptych check</code> says what it is.</p>
  </div>`;
}

/** The shards that are not ready, and why, in words. */
function Trouble({ shards }) {
  const bad = shards.filter((shard) => !isReady(shard));
  if (!bad.length) return null;
  const reasons = new Map();
  for (const shard of bad) reasons.set(why(shard), [...(reasons.get(why(shard)) ?? []), shard.shard]);
  return html`<div class="problem" role="alert">
    <p><strong>${bad.length} of ${shards.length} shards are not ready.</strong> Reads lack what they hold, and writes that need them are refused.</p>
    <ul>${[...reasons].map(([reason, numbers]) => html`<li>${numbers.length > 1 ? "shards" : "shard"} ${numbers.join(", ")}: ${reason}</li>`)}</ul>
    <p class="advice">The supervisor starts a worker again by itself. If it does not come back, its log has the reason.</p>
  </div>`;
}

export function Shards() {
  const poll = usePoll((signal) => request("GET", "api/v1/cluster", { signal }), EVERY_MS);
  const cluster = poll.value.value?.answer.data;
  if (!cluster) return html`<${Said} poll=${poll} />`;
  const shards = [...cluster.shards].sort((a, b) => isReady(a) - isReady(b) || isWell(a) - isWell(b) || a.shard - b.shard);
  const total = (name) => count(sum(shards, held(name)));
  return html`<${Said} poll=${poll} /><${Trouble} shards=${shards} /><${Damage} shards=${shards} />
    <${Figures} figures=${[
      ["Shards ready", `${cluster.shardsReady} of ${shards.length}`],
      ["Workers", count(cluster.workers.length)],
      ["Series", total("series")],
      ["Samples", total("samples")],
      ["Samples/s", rate(sum(shards, rateOf("samples")))],
      ["Records", total("records")],
      ["Records/s", rate(sum(shards, rateOf("records")))],
      ["Vectors", total("vectors")],
      ["Memory of series and log", bytes(sum(shards, (shard) => shard.memoryBytes)), "Vectors are in the memory of their worker as a whole: see Memory"],
      ["Up since", time(cluster.startedAt * 1000, { millis: false })],
    ]} />
    <${Table} label="Shards" columns=${SHARDS} rows=${shards} rowKey=${(shard) => shard.shard} />
    <h2>Workers</h2>
    <${Table} label="Workers" columns=${WORKERS} rows=${cluster.workers} rowKey=${(worker) => worker.worker} empty="No worker is connected." />`;
}
