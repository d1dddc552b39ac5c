// Pages of records: from a sequence number on, or those before one.
import { request } from "../base/api.js";
import { frontier } from "./selection.js";

const PAGE_RECORDS = 200;
export const SHOWN_BYTES = 4096; // of a value, in a page
const WINDOW_GROWTH = 4;

/** {record}s as rows of a list. */
const rowsOf = (records) => records.map((record) => ({ sequence: record.sequence, record }));

async function scan(query, more, signal) {
  const options = { query: { ...query, encoding: "text", value_bytes: SHOWN_BYTES, ...more }, signal };
  return (await request("GET", "api/v1/log/scan", options)).answer;
}

/** A page: {rows, ascending; isEnd: whether its end is what was asked for; older: what `before` gives the page before this one, null if there is none; newer: what
 * `after` gives the next one; warnings, infos}. */
function pageOf(records, { isEnd, older, newer, logStart, answers }) {
  const remarks = (name) => [...new Set(answers.flatMap((answer) => answer[name] ?? []))];
  return { rows: rowsOf(records), isEnd, older: older > logStart ? older : null, newer, warnings: remarks("warnings"), infos: remarks("infos") };
}

/** The first records from `start` on. */
export async function after(query, start, signal) {
  const answer = await scan(query, { start_seq: start, limit: PAGE_RECORDS }, signal);
  const logStart = answer.logStartSequence;
  return pageOf(answer.records, { isEnd: false, older: Math.max(start, logStart), newer: answer.nextSequence, logStart, answers: [answer] });
}

/** The last records before `end` (null: of all). `tell(sequence)`: how far back it has looked. `windows`: at most so many
 * are looked at, where there are several. */
export async function before(query, end, { signal, limit = PAGE_RECORDS, tell = () => {}, windows = Infinity } = {}) {
  const { readableSequence, logStartSequence: logStart } = await frontier(signal);
  const last = end === null ? readableSequence : Math.min(end, readableSequence);
  const ends = { isEnd: true, newer: last, logStart };
  if ("key" in query || "key_base64" in query) {
    const answer = await scan(query, { end_seq: last, limit, reverse: true }, signal);
    return pageOf(answer.records.reverse(), { ...ends, older: answer.nextSequence, answers: [answer] });
  }
  const found = await windowed(query, logStart, last, limit, { signal, tell, windows });
  return pageOf(found.records, { ...ends, older: found.low, answers: found.answers });
}

// Records of several keys are merged forward only. So the part of the log before `end` is read in windows, each of them
// before the one that was read last, and larger if little was found. A window with more records than are wanted is read
// again, smaller: one as small as what is wanted always fits.
async function windowed(query, start, end, limit, { signal, tell, windows }) {
  const answers = [];
  let records = [];
  let low = end;
  for (let size = limit; low > start && records.length < limit && windows > 0; windows -= 1) {
    const missing = limit - records.length;
    size = Math.max(size, missing);
    const first = Math.max(start, low - size);
    const { found, isMore, read } = await oneWindow(query, first, low, missing, signal);
    if (isMore) {
      size = Math.max(missing, Math.floor(size / (2 * WINDOW_GROWTH)));
      continue;
    }
    answers.push(...read);
    records = [...found, ...records];
    low = first;
    tell(low);
    if (read.some((answer) => answer.infos || answer.warnings)) break; // it takes long: the person says whether to go on
    if (found.length < missing / 2) size *= WINDOW_GROWTH;
  }
  return { records, low, answers };
}

// A search may end before the window does, and says where it goes on.
async function oneWindow(query, first, end, limit, signal) {
  const found = [];
  const read = [];
  for (let start = first; start < end; start = read.at(-1).nextSequence) {
    const answer = await scan(query, { start_seq: start, end_seq: end, limit: limit + 1 - found.length }, signal);
    read.push(answer);
    found.push(...answer.records);
    if (found.length > limit) return { isMore: true };
    if (answer.nextSequence <= start) break;
  }
  return { found, isMore: false, read };
}

/** The number of the first record at or after a time (ms). */
export async function sequenceAt(selected, timeMs, signal) {
  return (await request("GET", "api/v1/log/offsets", { query: { ...selected, time: timeMs / 1000 }, signal })).answer.sequence;
}
