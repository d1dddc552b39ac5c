// The series of an answer as lines on a common grid of times.
import { series } from "../base/format.js";

const LINES_MAX = 200;

/** {xs: seconds, lines, total: series with numbers, histograms: series with native histograms}. At most LINES_MAX lines,
 * those with the greatest values, in the answer's order. A line is {index, labels, text, hash, values: null where there is
 * no sample, isFinite: whether all of them can be drawn, single: places of points with gaps on both sides, last, min, max, mean}. */
export function linesOf(result, times) {
  const start = Math.round(times.start * 1000) / 1000;
  const step = Math.round(times.step * 1000) / 1000;
  const length = Math.floor((times.end - start) / step + 1e-6) + 1;
  const xs = Float64Array.from({ length }, (_, place) => Math.round((start + place * step) * 1000) / 1000);
  const histograms = result.filter((one) => one.histograms);
  const all = result.filter((one) => one.values).map((one, index) => lineOf(one.values, index, start, step, length));
  const chosen = all.length > LINES_MAX ? greatest(all) : all;
  const found = result.filter((one) => one.values);
  for (const line of chosen) {
    line.labels = found[line.index].metric;
    line.text = series(line.labels);
    line.hash = hash(line.text);
  }
  return { xs, lines: chosen, total: all.length, histograms };
}

function lineOf(pairs, index, start, step, length) {
  const values = new Array(length).fill(null);
  let min = Infinity;
  let max = -Infinity;
  let sum = 0;
  let finite = 0;
  let last = null;
  for (const [at, text] of pairs) {
    const value = number(text);
    const place = Math.round((at - start) / step);
    if (place < 0 || place >= length) continue;
    values[place] = last = value;
    if (!Number.isFinite(value)) continue;
    finite += 1;
    sum += value;
    if (value < min) min = value;
    if (value > max) max = value;
  }
  const isFinite = finite === pairs.length;
  const [least, most, mean] = finite ? [min, max, sum / finite] : [null, null, null];
  return { index, values, isFinite, single: pairs.length < length || length === 1 ? singles(values) : [], last, min: least, max: most, mean };
}

function number(text) {
  const value = Number(text);
  return Number.isNaN(value) && text.endsWith("Inf") ? (text[0] === "-" ? -Infinity : Infinity) : value;
}

// A line needs two neighbours to be seen: a point alone is drawn as a point.
function singles(values) {
  const found = [];
  const isGap = (place) => !Number.isFinite(values[place] ?? NaN);
  for (let place = 0; place < values.length; place += 1) {
    if (!isGap(place) && isGap(place - 1) && isGap(place + 1)) found.push(place);
  }
  return found;
}

function greatest(lines) {
  const height = (line) => line.max ?? -Infinity;
  const chosen = [...lines].sort((a, b) => height(b) - height(a)).slice(0, LINES_MAX);
  return chosen.sort((a, b) => a.index - b.index);
}

/** A short name for a series in a link (FNV-1a). */
export function hash(text) {
  let value = 0x811c9dc5;
  for (let place = 0; place < text.length; place += 1) value = Math.imul(value ^ text.charCodeAt(place), 0x01000193);
  return (value >>> 0).toString(36);
}

/** Whether a line is drawn: `query` has what was hidden, or what alone is shown. */
export const isShown = (query, line) => (query.only.length ? query.only.includes(line.hash) : !query.hidden.includes(line.hash));

/** What of `query` changes when a line is shown or hidden by itself. */
export function toggled(query, { hash: own }) {
  const flip = (list) => (list.includes(own) ? list.filter((one) => one !== own) : [...list, own]);
  return query.only.length ? { only: flip(query.only) } : { hidden: flip(query.hidden) };
}

/** What changes when only this line is to be drawn, or all of them again if it is the only one. */
export function isolated(query, { hash: own }) {
  return { hidden: [], only: query.only.length === 1 && query.only[0] === own ? [] : [own] };
}

/** What uPlot draws: arrays of the values of the lines that are shown, null for what has no place on the scale. */
export function drawn(lines, { isStacked, isLog }) {
  const fits = isLog ? (value) => value > 0 && value < Infinity : Number.isFinite;
  if (!isStacked) return lines.map((line) => (line.isFinite && !isLog ? line.values : line.values.map((value) => (fits(value) ? value : null))));
  const below = new Float64Array(lines[0]?.values.length ?? 0);
  const isEmpty = Array.from(below, (_, place) => lines.every((line) => !Number.isFinite(line.values[place] ?? NaN)));
  return lines.map((line) => line.values.map((value, place) => {
    if (isEmpty[place]) return null;
    if (Number.isFinite(value ?? NaN)) below[place] += value; // else it has no height here
    return fits(below[place]) ? below[place] : null;
  }));
}
