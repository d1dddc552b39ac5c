// What the answers of queries have in them: numbers, label sets and samples, as all of the tab reads them.

/** The number that the text of a sample means: "+Inf" and "-Inf" are none of JavaScript's. */
export const number = (text) => (text === "+Inf" ? Infinity : text === "-Inf" ? -Infinity : Number(text));

/** The value of a label, "" if the series does not have it, also if it is called as something that all objects have. */
export const labelOf = (labels, name) => (Object.hasOwn(labels, name) ? labels[name] : "");

/** What label sets have in common, and the names of the labels in which they differ: {common, varying}, the name of the
 * metric first, then by the alphabet. */
export function distinguished(sets) {
  const common = { ...sets[0] };
  const varying = new Set();
  for (const labels of sets) {
    for (const name of Object.keys(labels)) {
      if (Object.hasOwn(common, name) && common[name] === labels[name]) continue;
      varying.add(name);
      delete common[name];
    }
    for (const name of Object.keys(common)) {
      if (Object.hasOwn(labels, name)) continue;
      varying.add(name);
      delete common[name];
    }
  }
  const order = (name) => (name === "__name__" ? "" : name);
  return { common, varying: [...varying].sort((a, b) => (order(a) < order(b) ? -1 : 1)) };
}

/** All samples of one element of a vector or a matrix, in the order of time: [{at, text, histogram}]; `at` in seconds;
 * `text` of a float, else `histogram` as {count, sum, buckets}. */
export function samplesOf(series) {
  if (series.value || series.histogram) return [sample(series.value ?? series.histogram)];
  const floats = (series.values ?? []).map(sample);
  if (!series.histograms?.length) return floats;
  return [...floats, ...series.histograms.map(sample)].sort((a, b) => a.at - b.at);
}

function sample([at, value]) {
  return typeof value === "string" ? { at, text: value, histogram: null } : { at, text: "", histogram: value };
}

/** A bucket [boundaries, left, right, count] as an interval: "(0.25, 0.5]". */
export function interval([boundaries, left, right]) {
  const isLeft = boundaries === 1 || boundaries === 3;
  const isRight = boundaries === 0 || boundaries === 3;
  return `${isLeft ? "[" : "("}${left}, ${right}${isRight ? "]" : ")"}`;
}
