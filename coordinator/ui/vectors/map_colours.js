// Which colour a value has on the map: one for each frequent value, or a scale from low to high for numbers.
import { short } from "../base/format.js";
import { oneLine } from "./values.js";

const HUES = [215, 25, 140, 350, 280, 50, 185, 310, 95, 245];
const SCALE_FROM = HUES.length; // different numbers: with more, they are a scale
const SCALE_STEPS = 6;
const NONE = "none";
const OTHERS = "others";

const root = () => getComputedStyle(document.documentElement);
const variable = (name, instead) => root().getPropertyValue(name).trim() || instead;
const hue = (degrees) => `hsl(${degrees} 65% ${variable("--series-lightness", "50%")})`;

/** How values are coloured: {entries: [{key, label, count, hue}], keyOf(value)}; for undefined, one colour for all. */
export function colouring(values) {
  if (!values) return { entries: [], keyOf: () => "" };
  const counts = new Map();
  for (const value of values) counts.set(keyed(value), (counts.get(keyed(value)) ?? 0) + 1);
  const numbers = values.filter((one) => typeof one === "number");
  const isScale = new Set(numbers).size > SCALE_FROM && numbers.length * 2 > values.length;
  return isScale ? scale(values, numbers) : categories(counts);
}

const keyed = (value) => (value === null ? NONE : `=${JSON.stringify(value)}`);

function categories(counts) {
  const frequent = [...counts].filter(([key]) => key !== NONE).sort((a, b) => b[1] - a[1]);
  const named = frequent.slice(0, frequent.length > HUES.length ? HUES.length - 1 : HUES.length);
  const known = new Set(named.map(([key]) => key));
  const rest = frequent.slice(named.length).reduce((sum, [, number]) => sum + number, 0);
  const entries = named.map(([key, number], index) => ({ key, label: oneLine(JSON.parse(key.slice(1))), count: number, hue: HUES[index] }));
  if (rest) entries.push({ key: OTHERS, label: `${frequent.length - named.length} other values`, count: rest, hue: null });
  return finished(entries, counts.get(NONE), (value) => (value === null ? NONE : known.has(keyed(value)) ? keyed(value) : OTHERS));
}

function scale(values, numbers) {
  const low = numbers.reduce((a, b) => Math.min(a, b));
  const high = numbers.reduce((a, b) => Math.max(a, b));
  const step = (value) => Math.min(SCALE_STEPS - 1, Math.floor((SCALE_STEPS * (value - low)) / (high - low)));
  const keyOf = (value) => (value === null ? NONE : typeof value === "number" ? `#${step(value)}` : OTHERS);
  const bound = (index) => short(low + ((high - low) * index) / SCALE_STEPS);
  const number = (key) => values.filter((value) => keyOf(value) === key).length;
  const entries = Array.from({ length: SCALE_STEPS }, (_, index) => ({
    key: `#${index}`, label: `${bound(index)} to ${bound(index + 1)}`, count: number(`#${index}`), hue: 250 - (index * 230) / (SCALE_STEPS - 1),
  }));
  const others = number(OTHERS);
  if (others) entries.push({ key: OTHERS, label: "no numbers", count: others, hue: null });
  return finished(entries, number(NONE), keyOf);
}

function finished(entries, without, keyOf) {
  if (without) entries.push({ key: NONE, label: "without it", count: without, hue: null });
  return { entries, keyOf };
}

/** The colour of an entry in the present theme, as CSS writes it; `null`: of all points, where there are no values. */
export function shade(entry) {
  if (!entry) return variable("--accent", "blue");
  return entry.hue === null ? variable("--faint", "gray") : hue(entry.hue);
}

/** The colour of each of `size` points, null for one that is not to be in colour. `only`: the key of the entry that alone
 * is, null for all. */
export function shades(colours, values, size, only) {
  if (!values) return new Array(size).fill(shade(null));
  const byKey = new Map(colours.entries.map((one) => [one.key, only === null || only === one.key ? shade(one) : null]));
  return values.map((value) => byKey.get(colours.keyOf(value)) ?? null);
}
