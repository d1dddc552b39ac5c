// What a query can go on with. The package codemirror-promql says what kind of thing may stand at the cursor; names come from
// here: of tens of thousands only those that fit are handed on, so that no key press has to go through all of them later.
import { PromQLExtension, promqlParser } from "../vendor.js";
import { read } from "../base/api.js";
import { quoted } from "../base/format.js";
import { cut, namesAt, prepareNames } from "./names.js";

const SHOWN_MAX = 100;
const VALUES_MAX = 10_000; // of one label, that are asked for
const PLAIN_LABEL = /^[A-Za-z_]\w*$/;
const PLAIN_METRIC = /^[A-Za-z_:][\w:]*$/;
const OPERATORS = { EqlSingle: "=", Neq: "!=", EqlRegex: "=~", NeqRegex: "!~" };

let typed = ""; // the word before the cursor
let more = 0; // names that fit and are left out
let isOfMetrics = false; // whether names of metrics were asked for, rather than those of labels

const client = {
  metricNames: async () => {
    const { names, total } = await namesAt(typed, SHOWN_MAX);
    more += total - names.length;
    isOfMetrics = true;
    return names;
  },
  metricMetadata: async () => ({}),
  labelNames: async (metric) => kept("api/v1/labels", { "match[]": metric ? `{__name__=${quoted(metric)}}` : undefined, limit: VALUES_MAX }),
  labelValues: async (label, metric, matchers = []) => {
    const path = `api/v1/label/${encodeURIComponent(label)}/values`;
    const others = selectorOf(metric, matchers.filter((one) => one.name && one.name !== label && one.value !== ""));
    const values = await kept(path, { "match[]": others ? `{${others}}` : undefined, limit: VALUES_MAX });
    if (values.length < VALUES_MAX || !typed) return cut(values, typed, SHOWN_MAX);
    const wanted = `${PLAIN_LABEL.test(label) ? label : quoted(label)}=~${quoted(`.*${escaped(typed)}.*`)}`;
    return kept(path, { "match[]": `{${[others, wanted].filter(Boolean).join(",")}}`, limit: SHOWN_MAX });
  },
  series: async () => [],
  flags: async () => ({}),
};

const strategy = new PromQLExtension().setComplete({ remote: client }).getComplete();

export const prepare = prepareNames;

/** A completion source of CodeMirror. */
export async function complete(context) {
  const before = context.state.sliceDoc(Math.max(0, context.pos - 200), context.pos);
  typed = /"[^"]*$/.test(before) && !/^[^"]*("[^"]*"[^"]*)*$/.test(before) ? /[^"]*$/.exec(before)[0] : /[\w:.]*$/.exec(before)[0];
  more = 0;
  isOfMetrics = false;
  if (!typed && !context.explicit && !/[{("=,]\s*$/.test(before)) return null;
  const result = await strategy.promQL(context).catch(() => null);
  if (!result || context.aborted) return null;
  const isInText = /["'`]/.test(context.state.sliceDoc(result.from, result.from + 1)); // the name of a metric in braces
  const options = ranked(result.options, typed.toLowerCase()).map((option) => ({ ...option, apply: option.apply ?? textOf(option, isInText) }));
  if (!options.length || (options.length === 1 && options[0].label === typed)) return null;
  const left = more + Math.max(0, options.length - SHOWN_MAX);
  const shown = options.slice(0, SHOWN_MAX);
  if (left > 0) shown.push({ label: `… ${left} more`, detail: "type on", apply: () => {} });
  return { from: result.from, to: Math.max(result.to ?? context.pos, context.pos), options: shown, filter: false, getMatch: (option) => matchOf(option, typed) };
}

/** Those that have the text: first those that begin with it, then those with a word that does. */
function ranked(options, text) {
  const scored = [];
  for (const option of options) {
    const place = option.label.toLowerCase().indexOf(text);
    if (place < 0) continue;
    const begins = place === 0 ? 0 : /[^a-z0-9]/i.test(option.label[place - 1]) ? 1 : 2;
    const kind = option.apply && option.type !== "text" ? 2 : option.type === "constant" ? 1 : 0;
    scored.push([begins * 4 + kind, option.type === "constant" ? { ...option, info } : option]);
  }
  return scored.sort(([a, one], [b, other]) => a - b || (one.label < other.label ? -1 : 1)).map(([, option]) => option);
}

/** What is put into the query for a name: quotes around one that is no plain identifier, and braces around a metric's. */
function textOf({ label, type }, isInText) {
  if (type !== "constant") return undefined;
  if (!isOfMetrics) return PLAIN_LABEL.test(label) ? undefined : quoted(label);
  if (isInText) return quoted(label);
  return PLAIN_METRIC.test(label) ? undefined : `{${quoted(label)}}`;
}

function matchOf(option, text) {
  const place = text ? option.label.toLowerCase().indexOf(text.toLowerCase()) : -1;
  return place < 0 ? [] : [place, place + text.length];
}

/** What is known of a metric, asked when it is looked at. */
async function info({ label }) {
  const found = await kept("api/v1/metadata", { metric: label, limit_per_metric: 1 }).catch(() => ({}));
  if (!Object.hasOwn(found, label)) return null;
  const [known] = found[label];
  const node = document.createElement("div");
  node.textContent = `${known.type}${known.unit ? `, ${known.unit}` : ""}: ${known.help}`;
  return node;
}

function selectorOf(metric, matchers) {
  const parts = matchers.map(({ type, name, value }) => {
    const operator = OPERATORS[promqlParser.nodeSet.types[type]?.name] ?? "=";
    return `${PLAIN_LABEL.test(name) ? name : quoted(name)}${operator}"${value.replace(/(?<!\\)"/g, '\\"')}"`;
  });
  return [...(metric ? [`__name__=${quoted(metric)}`] : []), ...parts].join(",");
}

const escaped = (text) => text.replace(/[\\^$.*+?()[\]{}|]/g, "\\$&");

const KEPT_MS = 30_000;
const KEPT_MAX = 100;
const answers = new Map();

/** As `read`; an answer is used again for a while. */
function kept(path, query) {
  const key = JSON.stringify([path, query]);
  const known = answers.get(key);
  if (known && performance.now() - known.at < KEPT_MS) return known.answer;
  if (answers.size >= KEPT_MAX) answers.delete(answers.keys().next().value);
  const answer = read(path, query, { deadline: 10_000 });
  answer.catch(() => answers.delete(key));
  answers.set(key, { answer, at: performance.now() });
  return answer;
}
