// What is taken out of the page: a command that asks the same, and answers as CSV.
import { authorization } from "../base/access.js";
import { address } from "../base/api.js";
import { series } from "../base/format.js";
import { csv } from "../base/take.js";
import { labelOf, samplesOf } from "./results.js";

const CELLS_AT_ONCE = 10_000;
const OWN_COLUMNS = ["time", "unix", "value"];

/** A text as one word of a POSIX shell. */
const shellQuoted = (text) => `'${text.replaceAll("'", "'\\''")}'`;

/** A command that asks the server what was asked: `path` of the API with `parameters`, as a form, since a query may be
 * longer than an address. The credential is not in it. */
export function curl(path, parameters) {
  const fields = Object.entries(parameters).filter(([, value]) => value !== null && value !== undefined);
  const credential = authorization.value.startsWith("Basic ") ? " -u 'NAME:PASSWORD'" : " -H 'Authorization: Bearer TOKEN'";
  return [
    `curl -sS${authorization.value ? credential : ""} ${shellQuoted(address(path).href)}`,
    ...fields.map(([name, value]) => `  --data-urlencode ${shellQuoted(`${name}=${value}`)}`),
  ].join(" \\\n");
}

const iso = (seconds) => new Date(Math.round(seconds * 1000)).toISOString();
const cell = (sample) => (sample.histogram ? JSON.stringify(sample.histogram) : sample.text);

/** The elements of an answer as a matrix has them. A scalar or a string is one without labels. */
const elements = ({ resultType, result }) =>
  (resultType === "scalar" || resultType === "string" ? [{ metric: {}, value: [result[0], String(result[1])] }] : result);

const title = ({ metric }) => (Object.keys(metric).length ? series(metric) : "value");

/** CSV with a row for each time and a column for each series, in pieces of text: some are empty, so that the page can be
 * answered in between. */
export function* wide(data) {
  const all = elements(data);
  yield csv([["time", "unix", ...all.map(title)]]);
  const seen = new Set();
  const samples = [];
  for (const one of all) {
    samples.push(samplesOf(one));
    for (const { at } of samples.at(-1)) seen.add(at);
    yield "";
  }
  const times = [...seen].sort((a, b) => a - b);
  const next = all.map(() => 0);
  const rowsAtOnce = Math.max(1, Math.floor(CELLS_AT_ONCE / (all.length + 10)));
  for (let first = 0; first < times.length; first += rowsAtOnce) {
    yield csv(times.slice(first, first + rowsAtOnce).map((at) => [
      iso(at), at, ...samples.map((own, index) => (own[next[index]]?.at === at ? cell(own[next[index]++]) : "")),
    ]));
  }
}

/** CSV with a row for each sample and a column for each label, in pieces of text. */
export function* long(data) {
  const all = elements(data);
  const names = [...new Set(all.flatMap((one) => Object.keys(one.metric)))].sort();
  yield csv([["time", "unix", ...names.map((name) => (OWN_COLUMNS.includes(name) ? `label ${name}` : name)), "value"]]);
  const rowsAtOnce = Math.max(1, Math.floor(CELLS_AT_ONCE / (names.length + 3)));
  let rows = [];
  for (const one of all) {
    const labels = names.map((name) => labelOf(one.metric, name));
    for (const sample of samplesOf(one)) {
      rows.push([iso(sample.at), sample.at, ...labels, cell(sample)]);
      if (rows.length < rowsAtOnce) continue;
      yield csv(rows);
      rows = [];
    }
  }
  yield csv(rows);
}
