// What the tab shows, as the link has it: the queries, and the times that they share.
//
//   expr    the text of a query, once for each; a blank for one that is empty
//   view    how it is shown, in the same order: the tab, then words such as "off", "stacked", "log", "zero", "heat",
//           "hide.1x2y3z" (a series that is not drawn), "only.1x2y3z" (no other one is drawn)
//   range   a duration; end: a time, else now; step: a duration, else chosen; refresh: a duration, else never
import { duration, parseDuration, parseTime, writable } from "../base/format.js";

export const TABS = ["graph", "table", "explain"];
export const RANGE = 3600; // s
const RANGE_MAX = 20 * 365 * 86_400; // s
export const QUERIES_MAX = 20;
const POINTS = 400; // of a series, about: as many as a screen can show apart
const STEPS = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14_400, 21_600, 43_200, 86_400];
const FLAGS = { off: "isOff", stacked: "isStacked", log: "isLog", zero: "isFromZero", heat: "isHeat" };

export const EMPTY = { expr: "", tab: TABS[0], isOff: false, isStacked: false, isLog: false, isFromZero: false, isHeat: false, hidden: [], only: [] };

/** The queries of a link's parameters: one at least. */
export function queriesOf(params) {
  const views = params.getAll("view");
  const found = params.getAll("expr").slice(0, QUERIES_MAX).map((expr, index) => ({ ...viewOf(views[index] ?? ""), expr: expr.trim() }));
  return found.length ? found : [EMPTY];
}

function viewOf(text) {
  const view = { ...EMPTY, hidden: [], only: [] };
  for (const word of text.split(" ")) {
    if (TABS.includes(word)) view.tab = word;
    else if (word in FLAGS) view[FLAGS[word]] = true;
    else if (word.startsWith("hide.")) view.hidden.push(word.slice(5));
    else if (word.startsWith("only.")) view.only.push(word.slice(5));
  }
  return view;
}

/** The parameters that say these queries, for `change`. */
export function paramsOf(queries) {
  const words = (query) => [
    query.tab,
    ...Object.keys(FLAGS).filter((word) => query[FLAGS[word]]),
    ...query.hidden.map((one) => `hide.${one}`),
    ...query.only.map((one) => `only.${one}`),
  ];
  const views = queries.map((query) => words(query).join(" "));
  const isPlain = views.every((view) => view === TABS[0]);
  const isEmpty = queries.length === 1 && !queries[0].expr && isPlain;
  return { expr: isEmpty ? null : queries.map((query) => query.expr || " "), view: isPlain ? null : views };
}

/** The times of a link's parameters, in seconds: {start, end, step, range, isNow, isAuto}. `now`: what stands for "now". */
export function timesOf(params, now) {
  const range = Math.min(parseDuration(params.get("range") ?? "") || RANGE, RANGE_MAX);
  const fixed = parseTime(params.get("end") ?? "");
  const end = (fixed ?? now) / 1000;
  const typed = parseDuration(params.get("step") ?? "") || null;
  return { start: end - range, end, range, step: typed ?? autoStep(range), isNow: fixed === null, isAuto: typed === null };
}

/** The step, in seconds, with which a range has some hundred points. */
function autoStep(range) {
  const least = range / POINTS;
  if (least <= 0.5) return Math.max(0.001, Math.ceil(least * 1000) / 1000);
  return STEPS.find((step) => step >= least) ?? Math.ceil(least / 86_400) * 86_400;
}

/** Parameters for `change` that show another range (s) that ends at `end` (s; null: now). What is longer than some minutes is
 * rounded to whole seconds, which a person can read. */
export function timeParams(range, end) {
  const grain = range >= 120 ? 1 : 0.001;
  const rounded = (value) => Math.round(value / grain) * grain;
  return {
    range: duration(Math.min(Math.max(rounded(range), 0.01), RANGE_MAX)),
    end: end === null ? null : new Date(writable(Math.round(rounded(end) * 1000))).toISOString().replace(".000Z", "Z"),
  };
}
