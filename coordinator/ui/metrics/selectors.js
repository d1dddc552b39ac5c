// What the metrics explorer inserts: selectors, and what is mostly done with a metric of some type.
import { quoted } from "../base/format.js";

const PLAIN_LABEL = /^[A-Za-z_][A-Za-z0-9_]*$/;
const PLAIN_METRIC = /^[A-Za-z_:][A-Za-z0-9_:]*$/;

const escaped = (text) => text.replace(/[\\^$.|?*+()[\]{}]/g, "\\$&");

/** A matcher for one of these values of a label. */
export function matcher(label, values) {
  const name = PLAIN_LABEL.test(label) ? label : quoted(label);
  return values.length === 1 ? `${name}=${quoted(values[0])}` : `${name}=~${quoted(values.map(escaped).join("|"))}`;
}

/** A selector of a metric. `chosen`: {label: [values]}. */
export function selector(metric, chosen = {}) {
  const matchers = Object.entries(chosen).filter(([, values]) => values.length).map(([label, values]) => matcher(label, values));
  if (!PLAIN_METRIC.test(metric)) return `{${[quoted(metric), ...matchers].join(", ")}}`;
  return metric + (matchers.length ? `{${matchers.join(", ")}}` : "");
}

/** The families that a metric may be of: its own name, or that without the suffix of a histogram or a summary. */
export const familiesOf = (metric) => [metric, metric.replace(/_(bucket|count|sum|total|created)$/, "")];

/** Queries for a metric, the selector first. `type`: of its family, "" if it is not known. */
export function queriesFor(metric, type, chosen) {
  const own = selector(metric, chosen);
  const rate = `rate(${own}[5m])`;
  const [, stem, suffix] = /^(.*)_(bucket|sum|count)$/.exec(metric) ?? [];
  if (suffix === "bucket") return [`histogram_quantile(0.95, sum by (le) (${rate}))`, `sum by (le) (${rate})`, own];
  const hasParts = suffix && ["histogram", "summary", ""].includes(type);
  if (hasParts) return [rate, `rate(${selector(`${stem}_sum`, chosen)}[5m]) / rate(${selector(`${stem}_count`, chosen)}[5m])`, own];
  if (type === "histogram" || type === "gaugehistogram") {
    const inner = type === "histogram" ? rate : own;
    return [`histogram_quantile(0.95, sum(${inner}))`, `histogram_avg(${inner})`, own];
  }
  if (type === "counter" || metric.endsWith("_total")) return [rate, `sum(${rate})`, `increase(${own}[1h])`, own];
  if (type === "gauge") return [own, `avg_over_time(${own}[5m])`, `max_over_time(${own}[5m])`];
  return [own, rate];
}
