// The request behind what a tab shows.
import { form, request } from "../base/api.js";

const POINTS_MAX = 1_000_000; // in an answer: more would take the page seconds to read
const SERIES_MIN = 200;
const ROWS_MAX = 10_000;

/** Ask for a query as its tab needs it. `times`: as `timesOf` gives them. Resolves to what `query.answer` has of it;
 * throws ApiError. A tab "table" asks for one time (`times.end`), the others for the range. */
export async function ask({ expr, tab }, times, signal) {
  const { start, end, step } = times;
  const isRange = tab !== "table";
  const points = Math.floor((end - start) / step) + 1;
  const fields = isRange
    ? { query: expr, start: seconds(start), end: seconds(end), step: seconds(step), limit: Math.max(SERIES_MIN, Math.floor(POINTS_MAX / points)) }
    : { query: expr, time: seconds(end), limit: ROWS_MAX };
  if (tab === "explain") Object.assign(fields, { explain: true, stats: "all" });
  const path = isRange ? "api/v1/query_range" : "api/v1/query";
  const got = await request("POST", path, { body: form(fields), signal });
  const { data, warnings = [], infos = [] } = got.answer;
  return {
    result: data,
    remarks: { warnings, infos },
    seconds: got.seconds,
    bytes: got.bytes,
    received: performance.now(),
    times,
    request: { path, fields },
    ...sizes(data),
  };
}

/** Seconds as a parameter: without the noise of binary fractions, and exact to the millisecond. */
export const seconds = (value) => String(Math.round(value * 1000) / 1000);

function sizes({ resultType, result }) {
  if (resultType === "scalar" || resultType === "string") return { series: 1, samples: 1 };
  const one = (series) => (series.values?.length ?? 0) + (series.histograms?.length ?? 0) || 1;
  return { series: result.length, samples: result.reduce((sum, series) => sum + one(series), 0) };
}
