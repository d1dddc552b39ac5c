// Numbers, sizes, durations and times as text, and back.
import { signal } from "../vendor.js";

/** Whether times are shown in UTC rather than in the time of this browser. */
export const utc = signal(false);

const UNITS = [["y", 31_536_000], ["w", 604_800], ["d", 86_400], ["h", 3600], ["m", 60], ["s", 1], ["ms", 0.001]];

/** Seconds of a duration such as "1h30m", "15s", "250ms", "90" (seconds); null if it is none. */
export function parseDuration(text) {
  const trimmed = text.trim();
  if (/^\d+(\.\d+)?$/.test(trimmed)) return Number(trimmed);
  if (!/^(\d+(ms|[ywdhms]))+$/.test(trimmed)) return null;
  const sizes = Object.fromEntries(UNITS);
  return [...trimmed.matchAll(/(\d+)(ms|[ywdhms])/g)].reduce((sum, [, count, unit]) => sum + count * sizes[unit], 0);
}

/** A duration as PromQL writes it: 5400 gives "1h30m". Weeks and years are written in days. */
export function duration(seconds) {
  let rest = Math.round(Math.abs(seconds) * 1000) / 1000;
  let text = seconds < 0 ? "-" : "";
  for (const [unit, size] of UNITS.slice(2)) {
    const count = Math.floor(rest / size + 1e-9);
    if (count) text += `${count}${unit}`;
    rest = Math.round((rest - count * size) * 1000) / 1000;
  }
  return text || "0s";
}

/** How long something took: "3 ms", "1.24 s". */
export function took(seconds) {
  if (seconds < 0.0995) return `${(seconds * 1000).toPrecision(seconds < 0.00995 ? 2 : 3).replace(/\.0+$/, "")} ms`;
  return seconds < 100 ? `${seconds.toPrecision(3)} s` : `${Math.round(seconds)} s`;
}

/** A count with thin spaces between thousands. */
export function count(value) {
  return value === null || value === undefined ? "–" : Math.round(value).toString().replace(/\B(?=(\d{3})+(?!\d))/g, "\u202f");
}

/** Bytes with a binary unit. */
export function bytes(value) {
  if (value === null || value === undefined) return "–";
  const power = value < 1024 ? 0 : Math.min(5, Math.floor(Math.log2(value) / 10));
  const scaled = value / 1024 ** power;
  return `${power && scaled < 100 ? scaled.toPrecision(3) : Math.round(scaled)} ${["B", "KiB", "MiB", "GiB", "TiB", "PiB"][power]}`;
}

/** A number as short as an axis or a legend has place for: 12345678 gives "12.3M". */
export function short(value) {
  if (!Number.isFinite(value)) return String(value).replace("Infinity", "∞");
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-3 || size >= 1e15)) return value.toExponential(2);
  for (const [unit, limit] of [["T", 1e12], ["G", 1e9], ["M", 1e6], ["k", 1e4]]) {
    if (size >= limit) return `${Number((value / (unit === "k" ? 1e3 : limit)).toPrecision(4))}${unit}`;
  }
  return String(Number(value.toPrecision(6)));
}

const FIRST_MS = -62_167_219_200_000; // of the years that have four digits
const LAST_MS = 253_402_300_799_999;

/** The nearest time (ms) in a year from 0 to 9999: others cannot be written so that they are read again. */
export const writable = (ms) => Math.min(Math.max(ms, FIRST_MS), LAST_MS);

const two = (value) => String(value).padStart(2, "0");

/** A time (ms) as 2026-01-31 17:05:09, 24 hours, here or in UTC; with ms if asked or if it has some. */
export function time(ms, { date = true, millis = ms % 1000 !== 0 } = {}) {
  const moment = new Date(ms);
  if (Number.isNaN(moment.getTime())) return String(ms);
  const get = (name) => moment[`get${utc.value ? "UTC" : ""}${name}`]();
  const day = `${String(get("FullYear")).padStart(4, "0")}-${two(get("Month") + 1)}-${two(get("Date"))}`;
  const clock = `${two(get("Hours"))}:${two(get("Minutes"))}:${two(get("Seconds"))}`;
  return `${date ? `${day} ` : ""}${clock}${millis ? `.${String(get("Milliseconds")).padStart(3, "0")}` : ""}`;
}

/** The time (ms) that a text as `time` writes it (seconds and clock may be missing), a Unix time in seconds, or an RFC 3339
 * time means; null if it is none, or not in a year from 0 to 9999. */
export function parseTime(text) {
  const trimmed = text.trim();
  if (/^-?\d+(\.\d+)?$/.test(trimmed)) return inRange(Number(trimmed) * 1000);
  const match = /^(\d{4}-\d\d-\d\d)(?:[ T](\d\d:\d\d(?::\d\d(?:\.\d{1,3})?)?))?(Z|[+-]\d\d:?\d\d)?$/.exec(trimmed);
  if (!match) return null;
  const [, day, clock = "00:00:00", zone = utc.value ? "Z" : ""] = match;
  const ms = Date.parse(`${day}T${clock}${zone}`);
  return inRange(ms);
}

const inRange = (ms) => (ms === writable(ms) ? ms : null);

/** A label set as PromQL writes it. Names that are no plain identifiers are quoted. */
export function series(labels) {
  const { __name__: name = "", ...others } = labels;
  const plain = /^[A-Za-z_][A-Za-z0-9_]*$/;
  const isPlain = /^[A-Za-z_:][A-Za-z0-9_:]*$/.test(name);
  const pairs = Object.entries(others).map(([key, value]) => `${plain.test(key) ? key : quoted(key)}=${quoted(value)}`);
  if (name && !isPlain) pairs.unshift(quoted(name));
  return `${isPlain ? name : ""}${pairs.length || !isPlain ? `{${pairs.join(", ")}}` : ""}`;
}

/** A text in double quotes with the escapes of PromQL, which are those of JSON for all that can be in a label. */
export const quoted = (text) => JSON.stringify(text);

/** A text for a place that has room for so many characters; of a longer one, the beginning, and how much is missing. */
export function cut(text, chars) {
  return text.length <= chars ? text : `${text.slice(0, chars)}… (${count(text.length - chars)} characters more)`;
}
