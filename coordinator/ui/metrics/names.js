// The names of metrics, in order: those that fit a word are found among a hundred thousand within some milliseconds.
import { request } from "../base/api.js";

const NAMES_MAX = 100_000; // kept here; a server that has more is asked for each word
const FRESH_MS = 60_000;
const PATH = "api/v1/label/__name__/values";

let names = null; // sorted
let asked = null;
let at = -Infinity;

/** Ask for the names, if those that are here are old. Resolves when there are some. */
export function prepareNames() {
  if (performance.now() - at > FRESH_MS) {
    at = performance.now();
    asked = request("GET", PATH, { query: { limit: NAMES_MAX }, deadline: 30_000 }).then(
      ({ answer }) => { names = answer.data; },
      () => { at = -Infinity; },
    );
  }
  return names ? Promise.resolve() : asked;
}

/** {names: those that have the word, at most `max`; total: how many have it}. */
export async function namesAt(word, max) {
  await prepareNames();
  if (!names) return { names: [], total: 0 };
  if (names.length >= NAMES_MAX && word) {
    const pattern = `{__name__=~${JSON.stringify(`.*${word.replace(/\./g, "\\.")}.*`)}}`;
    const { answer } = await request("GET", PATH, { query: { "match[]": pattern, limit: max + 1 }, deadline: 10_000 });
    return { names: answer.data.slice(0, max), total: answer.data.length };
  }
  return fitting(names, word, max);
}

/** Those of `sorted` that begin with the word, then those that have it elsewhere: {names, total}. */
function fitting(sorted, word, max) {
  if (!word) return { names: sorted.slice(0, max), total: sorted.length };
  const text = word.toLowerCase();
  const begin = [];
  const inside = [];
  let total = 0;
  for (const name of sorted) {
    const place = name.toLowerCase().indexOf(text);
    if (place < 0) continue;
    total += 1;
    const list = place === 0 ? begin : inside;
    if (list.length < max) list.push(name);
  }
  return { names: [...begin, ...inside].slice(0, max), total };
}

/** The first `max` of these texts that have the word, those that begin with it first. */
export const cut = (texts, word, max) => fitting(texts, word, max).names;
