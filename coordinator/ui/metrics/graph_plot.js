// What uPlot is told: scales, axes with 24-hour times, the cursor, and what the mouse does.
import { uPlot } from "../vendor.js";
import { short, time, utc } from "../base/format.js";
import { colour } from "../shell/theme.js";

const NEAR_PX = 100; // of the cursor: a line that is farther away is not the one that is meant
const DIM_UP_TO = 60; // lines: drawing more of them anew whenever another one is nearest would make the mouse lag
const ALONE_S = 30; // shown before and after a point that is the only one
const FLAT = 1e-13; // of the values: what differs by less is rounding, and leaves no room for ticks between two numbers
const GOLDEN_DEG = 137.508; // so that neighbours differ in colour, however many there are

/** The colour of the line with this index in the answer. */
export const lineColour = (index, lightness = colour("--series-lightness")) => `hsl(${Math.round((211 + index * GOLDEN_DEG) % 360)} 65% ${lightness})`;

/** A plot in `host`. `lines`: those that are shown; `columns`: [xs, …] as uPlot takes them; `view`: {isStacked, isLog, isFromZero};
 * `onHover(place, line)`: where the cursor is, and the index of the nearest line or null; `onZoom(from, to)` in seconds;
 * `onOut()`: a double click. */
export function plot(host, lines, columns, view, { onHover, onZoom, onOut }) {
  const axis = { font: "12px system-ui, sans-serif", stroke: colour("--faint"), grid: { stroke: colour("--line"), width: 1 }, ticks: { stroke: colour("--line"), width: 1 } };
  const lightness = colour("--series-lightness");
  let nearest = null;
  const told = ({ cursor }) => { if (cursor.left >= 0 && cursor.idx !== null && cursor.idx !== undefined) onHover(cursor.idx, nearest); };
  return new uPlot({
    width: Math.max(200, host.clientWidth),
    height: Math.max(120, host.clientHeight),
    legend: { show: false },
    tzDate: (at) => (utc.value ? uPlot.tzDate(new Date(at * 1000), "UTC") : new Date(at * 1000)),
    scales: {
      x: { time: true, range: () => xRange(columns[0]) },
      y: { distr: view.isLog ? 3 : 1, range: (_, min, max) => yRange(min, max, view) },
    },
    axes: [
      { ...axis, values: (_, splits, __, ___, step) => timesOf(splits, step), space: 70 },
      { ...axis, values: (_, splits) => textsOf(splits), size: axisWidth },
    ],
    series: [{}, ...lines.map((line) => seriesOf(line, lines.length, view, lightness))],
    bands: view.isStacked ? lines.slice(1).map((_, at) => ({ series: [at + 2, at + 1] })) : [],
    focus: { alpha: lines.length <= DIM_UP_TO ? 0.25 : 1 },
    cursor: {
      lock: true,
      drag: { x: true, y: false, setScale: false },
      focus: { prox: NEAR_PX },
      points: { one: true, size: 7 },
      bind: { dblclick: () => () => { onOut(); return null; } },
    },
    hooks: {
      setSeries: [(self, index) => { nearest = index ? index - 1 : null; told(self); }],
      setCursor: [told],
      setSelect: [(self) => {
        if (self.select.width < 4) return;
        const [from, to] = [self.posToVal(self.select.left, "x"), self.posToVal(self.select.left + self.select.width, "x")];
        self.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
        onZoom(from, to);
      }],
    },
  }, columns, host);
}

function seriesOf(line, count, { isStacked }, lightness) {
  const stroke = lineColour(line.index, lightness);
  return {
    stroke,
    width: count > 50 ? 1 : 1.5,
    fill: isStacked ? stroke.replace(")", " / 35%)") : undefined,
    points: line.single.length ? { show: true, size: 5, fill: stroke, filter: () => line.single } : { show: false },
  };
}

function xRange(xs) {
  return xs.length > 1 ? [xs[0], xs.at(-1)] : [xs[0] - ALONE_S, xs[0] + ALONE_S];
}

function yRange(min, max, { isLog, isFromZero, isStacked }) {
  if (min === null || max === null) return isLog ? [0.1, 10] : [0, 1];
  if (isLog) return uPlot.rangeLog(min, max, 10, false);
  const [low, high] = isFromZero || isStacked ? [Math.min(0, min), Math.max(0, max)] : [min, max];
  if (high - low <= FLAT * Math.max(Math.abs(low), Math.abs(high))) return uPlot.rangeNum(low, high, 0.1, true);
  const margin = (high - low) * 0.05;
  return [low === 0 ? 0 : low - margin, high === 0 ? 0 : high + margin];
}

/** The texts of an axis: short ones, unless two places would have the same. */
function textsOf(splits) {
  const shown = splits.filter((value) => value !== null);
  const write = new Set(shown.map(short)).size < shown.length ? String : short;
  return splits.map((value) => (value === null ? "" : write(value)));
}

/** As wide as the longest of the texts needs. */
function axisWidth(_, texts) {
  return 18 + 7.2 * Math.max(3, ...(texts ?? []).map((text) => text.length));
}

/** Clock times; the day below where it is another one than before. `step`: seconds between two of them. */
function timesOf(splits, step) {
  let day = "";
  return splits.map((at) => {
    const [date, clock] = time(at * 1000, { millis: step < 1 }).split(" ");
    const isNew = date !== day;
    day = date;
    if (step >= 86_400) return date;
    const text = step >= 60 ? clock.slice(0, 5) : clock;
    return isNew ? `${text}\n${date}` : text;
  });
}
