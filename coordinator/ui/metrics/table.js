// The result of a query at one time, as a table.
import { html } from "../vendor.js";
import { series, time } from "../base/format.js";
import { Table } from "../base/table.js";

/** `query`: as query.js gives it; `onTime(seconds)`: to be called when another time is chosen. */
export function ResultTable({ query }) {
  const { resultType, result } = query.result;
  const rows = resultType === "scalar" || resultType === "string" ? [{ metric: {}, value: result }] : result;
  return html`<${Table} label="Result" rows=${rows} columns=${[
    { title: "Series", value: (row) => series(row.metric) },
    { title: "Time", value: (row) => time((row.value ?? row.histogram ?? row.values?.at(-1) ?? row.histograms.at(-1))[0] * 1000) },
    { title: "Value", align: "end", value: (row) => text(row.value ?? row.histogram ?? row.values?.at(-1) ?? row.histograms.at(-1)) },
  ]} />`;
}

const text = ([, value]) => (typeof value === "string" ? value : JSON.stringify(value));
