// Consumer groups: who takes part, and how far they are behind.
import { html } from "../vendor.js";
import { request } from "../base/api.js";
import { count } from "../base/format.js";
import { change, params } from "../base/link.js";
import { usePoll } from "../base/poll.js";
import { Problem, Remarks } from "../base/remarks.js";
import { Table } from "../base/table.js";
import { bytesOf } from "./octets.js";
import { choosing, keyName, shortName } from "./selection.js";

const EVERY_MS = 5000;
const NAMES_MAX = 100;
const KEYS_MAX = 1000;
const LAGS_AT_ONCE = 4;

function prefixText(base64) {
  try {
    return new TextDecoder("utf-8", { fatal: true }).decode(bytesOf(base64)) || "all keys";
  } catch {
    return `base64:${base64}`;
  }
}

const path = (group) => `api/v1/log/groups/${encodeURIComponent(group)}`;
const describe = async (group, query, signal) => (await request("GET", path(group), { query: { encoding: "text", ...query }, signal })).answer;

/** Groups with their lag, LAGS_AT_ONCE of them at a time. */
async function list(after, signal) {
  const { answer } = await request("GET", "api/v1/log/groups", { query: { limit: NAMES_MAX, after }, signal });
  const rows = answer.groups.map((one) => ({ ...one, prefix: prefixText(one.prefix) }));
  const waiting = [...rows];
  async function work() {
    for (let row = waiting.shift(); row; row = waiting.shift()) {
      const { lag, committedSequence } = await describe(row.group, { limit: 1 }, signal).catch((error) => {
        if (error.status === 404) return {}; // deleted meanwhile
        throw error;
      });
      Object.assign(row, { lag, committedSequence });
    }
  }
  await Promise.all(Array.from({ length: LAGS_AT_ONCE }, work));
  return { rows, more: answer.more };
}

const COLUMNS = [
  { title: "Group", value: (row) => row.group },
  { title: "Lag", align: "end", value: (row) => row.lag, render: (row) => count(row.lag) },
  { title: "Members", align: "end", value: (row) => row.members },
  { title: "Keys", value: (row) => row.prefix },
  { title: "Committed to", align: "end", value: (row) => row.committedSequence, render: (row) => count(row.committedSequence) },
];

export function Groups() {
  const group = params.value.get("group");
  return group ? html`<${Group} key=${group} name=${group} />` : html`<${List} />`;
}

function List() {
  const after = params.value.get("after_group");
  const { value, error, again } = usePoll((signal) => list(after, signal), EVERY_MS, [after]);
  const answer = value.value;
  return html`<${Problem} error=${error.value} onRetry=${again} />
    ${answer && html`<${Table} key=${after} label="Consumer groups" columns=${COLUMNS} rows=${answer.rows} rowKey=${(row) => row.group} empty="No consumer groups."
      onRow=${(row) => change({ group: row.group })} />
      ${answer.more && html`<div><button onClick=${() => change({ after_group: answer.rows.at(-1).group })}>Next groups</button></div>`}`}`;
}

const MEMBERS = [
  { title: "Member", value: (row) => row.member },
  { title: "Slots", align: "end", value: (row) => row.slots },
  { title: "Generation", align: "end", value: (row) => row.generation },
  { title: "Committed to", align: "end", value: (row) => row.committedSequence, render: (row) => count(row.committedSequence) },
  { title: "Session, ms", align: "end", value: (row) => row.sessionTimeoutMs, render: (row) => count(row.sessionTimeoutMs) },
];
const LAGS = [
  { title: "Key", value: keyName, render: (row) => html`<span class="mono">${shortName(row)}</span>` },
  { title: "Lag", align: "end", value: (row) => row.lag, render: (row) => count(row.lag) },
  { title: "Committed to", align: "end", value: (row) => row.committedSequence, render: (row) => count(row.committedSequence) },
  { title: "Member", value: (row) => row.member ?? "nobody" },
];

function Group({ name }) {
  const { value, error, again } = usePoll((signal) => describe(name, { limit: KEYS_MAX }, signal), EVERY_MS, [name]);
  const group = value.value;
  return html`<div class="row"><button onClick=${() => change({ group: null })}>All groups</button><h2>${name}</h2></div>
    <${Problem} error=${error.value} onRetry=${again} />
    ${group && html`<${Remarks} warnings=${group.warnings} infos=${group.more ? [`the first ${KEYS_MAX} keys with a lag are shown`] : []} />
      <p>Keys: <code>${prefixText(group.prefix)}</code>. Lag: ${count(group.lag)} records. ${count(group.slotCount)} slots, all committed to ${count(group.committedSequence)}.</p>
      <h3>Members</h3><${Table} label="Members" columns=${MEMBERS} rows=${group.members} rowKey=${(row) => row.member} empty="No members: nobody works for this group." />
      <h3>Keys that wait</h3><${Table} label="Keys that wait" columns=${LAGS} rows=${group.keys} rowKey=${keyName} empty="Everything is committed."
        onRow=${(row) => change({ ...choosing(row), group: null, from: row.committedSequence })} />`}`;
}
