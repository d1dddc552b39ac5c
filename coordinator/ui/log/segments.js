// The segments of the log, and how far it may be read.
import { html } from "../vendor.js";
import { request } from "../base/api.js";
import { count, time } from "../base/format.js";
import { change } from "../base/link.js";
import { usePoll } from "../base/poll.js";
import { Problem, Remarks } from "../base/remarks.js";
import { Table } from "../base/table.js";
import { frontier } from "./selection.js";

const EVERY_MS = 10_000;
const PLACES = {
  logStartSequence: "The log begins at", readableSequence: "May be read below", durableSequence: "On disk below", nextSequence: "Next number",
};
const COLUMNS = [
  { title: "Segment", align: "end", value: (row) => row.id },
  { title: "First number", align: "end", value: (row) => row.startSeq, render: (row) => count(row.startSeq) },
  { title: "Numbers", align: "end", value: (row) => row.numbers, render: (row) => count(row.numbers) },
  { title: "Begun", value: (row) => row.startTimeMs, render: (row) => time(row.startTimeMs) },
];

async function read(signal) {
  const [{ answer }, places] = await Promise.all([request("GET", "api/v1/log/segments", { signal }), frontier(signal)]);
  const rows = answer.segments.map((segment, index, all) => {
    const end = all[index + 1]?.startSeq ?? (answer.more ? answer.nextSequence : places.nextSequence);
    return { ...segment, numbers: Math.max(0, end - segment.startSeq) };
  });
  return { rows, places, more: answer.more };
}

export function Segments() {
  const { value, error, again } = usePoll(read, EVERY_MS);
  const state = value.value;
  return html`<${Problem} error=${error.value} onRetry=${again} />
    ${state && html`<${Remarks} warnings=${state.places.warnings} infos=${state.more ? [`the first ${state.rows.length} segments are shown`] : []} />
      <table class="plain"><tbody>${Object.entries(PLACES).map(([name, label]) => html`<tr><th scope="row">${label}</th><td class="number">${count(state.places[name])}</td></tr>`)}</tbody></table>
      <${Table} label="Segments" columns=${COLUMNS} rows=${state.rows} rowKey=${(row) => row.id} empty="No segments yet."
        onRow=${(row) => change({ part: null, from: row.startSeq })} />`}`;
}
