// Histograms over time as counts of cells: what a heat map draws.
import { number } from "./results.js";

const ROWS_MAX = 256;

/** `series`: of a matrix, either with the label `le` (classic histograms, whose buckets count all below) or with native
 * histograms; those of several label sets are added up. `grid`: {start, end, step} in seconds.
 *
 * Gives {edges, steps, counts, most, histograms}: row r has the values of (edges[r], edges[r + 1]], and
 * counts[step * rows + r] observations. `most`: the greatest of them; `histograms`: how many were added up. */
export function heatOf(series, grid) {
  const steps = Math.floor((grid.end - grid.start) / grid.step + 1e-6) + 1;
  const step = (at) => Math.round((at - grid.start) / grid.step);
  const isNative = series.some((one) => one.histograms?.length);
  const buckets = isNative ? nativeBuckets(series, step) : classicBuckets(series, step, steps);
  const edges = fewer([...new Set(buckets.flatMap((one) => [one.left, one.right]))].sort((a, b) => a - b));
  const rows = Math.max(0, edges.length - 1);
  const counts = new Float64Array(rows * steps);
  for (const bucket of buckets) add(counts, rows, steps, edges, bucket);
  const histograms = isNative ? series.filter((one) => one.histograms?.length).length : groupsOf(series).length;
  return { edges, steps, counts, most: counts.reduce((a, b) => Math.max(a, b), 0), histograms };
}

/** [{left, right, cells: [[step, count]]}], one for each distinct bucket. */
function nativeBuckets(series, step) {
  const buckets = new Map();
  for (const { histograms = [] } of series) {
    for (const [at, histogram] of histograms) {
      for (const [, left, right, count] of histogram.buckets ?? []) {
        const key = `${left} ${right}`;
        let bucket = buckets.get(key);
        if (!bucket) buckets.set(key, (bucket = { left: number(left), right: number(right), cells: [] }));
        bucket.cells.push([step(at), number(count)]);
      }
    }
  }
  return [...buckets.values()];
}

/** Series with `le`, by their other labels. */
function groupsOf(series) {
  const groups = new Map();
  for (const one of series) {
    const { le, ...others } = one.metric;
    if (le === undefined || Number.isNaN(number(le))) continue;
    const key = JSON.stringify(Object.entries(others).sort());
    if (!groups.has(key)) groups.set(key, []);
    groups.get(key).push({ le: number(le), values: one.values ?? [] });
  }
  return [...groups.values()];
}

function classicBuckets(series, step, steps) {
  return groupsOf(series).flatMap((group) => {
    group.sort((a, b) => a.le - b.le);
    const below = new Float64Array(steps); // counts up to the bucket before
    return group.map(({ le, values }, index) => {
      const left = index ? group[index - 1].le : le > 0 ? 0 : -Infinity;
      const cells = [];
      for (const [at, text] of values) {
        const place = step(at);
        const upToHere = number(text);
        if (!Number.isFinite(upToHere)) continue;
        cells.push([place, upToHere - below[place]]);
        below[place] = Math.max(below[place], upToHere);
      }
      return { left, right: le, cells };
    });
  });
}

/** At most ROWS_MAX rows: neighbours are put together. */
function fewer(edges) {
  const every = Math.ceil((edges.length - 1) / ROWS_MAX);
  return every > 1 ? edges.filter((_, index) => index % every === 0 || index === edges.length - 1) : edges;
}

/** Adds a bucket to the rows that it covers, by the share of it that each has. One without an end goes to the last row. */
function add(counts, rows, steps, edges, { left, right, cells }) {
  let first = rowAt(edges, left);
  let last = Math.max(first, rowAt(edges, right));
  if (last > first && edges[last] >= right) last -= 1;
  if (left === -Infinity) last = first;
  if (right === Infinity) first = last;
  const width = right - left;
  for (let row = first; row <= last; row += 1) {
    const covered = Math.min(edges[row + 1], right) - Math.max(edges[row], left);
    const share = first === last ? 1 : covered / width;
    for (const [step, count] of cells) {
      if (step >= 0 && step < steps && count > 0) counts[step * rows + row] += count * share;
    }
  }
}

/** The last row that begins at or below a value. */
function rowAt(edges, value) {
  let low = 0;
  let high = edges.length - 2;
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (edges[middle] <= value) low = middle;
    else high = middle - 1;
  }
  return low;
}

/** Where the edges are from the bottom (0) to the top (1). `scale`: "even", each row as high as the others; "linear";
 * "log". An edge that has no place on the scale is as far from its neighbour as the next one. */
export function placesOf(edges, scale) {
  const places = edges.map((edge, index) => (scale === "even" ? index : scale === "log" ? Math.log(edge) : edge));
  const has = places.map(Number.isFinite);
  const first = has.indexOf(true);
  const last = has.lastIndexOf(true);
  if (first < 0) return edges.map((_, index) => index / Math.max(1, edges.length - 1));
  const low = first < last ? places[first + 1] - places[first] : 1;
  const high = first < last ? places[last] - places[last - 1] : 1;
  for (let index = first - 1; index >= 0; index -= 1) places[index] = places[index + 1] - low;
  for (let index = last + 1; index < places.length; index += 1) places[index] = places[index - 1] + high;
  const all = places[places.length - 1] - places[0] || 1;
  return places.map((place) => (place - places[0]) / all);
}

/** Whether a logarithmic scale has a place for these edges. */
export const fitsLog = (edges) => edges.every((edge) => edge >= 0 || edge === -Infinity) && edges.some((edge) => edge > 0 && edge < Infinity);
