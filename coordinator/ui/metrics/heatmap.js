// Histograms over time as a heat map: a column for each step, a row for each bucket.
import { html, useLayoutEffect, useMemo, useRef, useSignal } from "../vendor.js";
import { count, short, time } from "../base/format.js";
import { colour, colours } from "../shell/theme.js";
import { fitsLog, heatOf, placesOf } from "./buckets.js";

const HEIGHT = 320; // px
const LABEL_APART = 18; // px
const TICK_APART = 110; // px
const RAMP = ["--sunken", "--accent", "--text"]; // of counts: few, more, most
const SHADES = 256;
const SCALES = { even: "even", log: "logarithmic", linear: "linear" };

/** `series`: of a matrix, with native histograms or with the label le; `grid`: {start, end, step} in seconds. */
export function HeatMap({ series, grid }) {
  const heat = useMemo(() => heatOf(series, grid), [series, grid]);
  const scale = useSignal("even");
  const cell = useSignal(null); // {step, row} that is pointed at
  const canvas = useRef(null);
  const width = useSignal(0);
  const scales = Object.keys(SCALES).filter((name) => name !== "log" || fitsLog(heat.edges));
  const used = scales.includes(scale.value) ? scale.value : "even";
  const places = useMemo(() => placesOf(heat.edges, used), [heat, used]);
  const rows = Math.max(0, heat.edges.length - 1);
  const changed = colours.value;
  useLayoutEffect(() => {
    const observer = new ResizeObserver(([entry]) => { width.value = Math.round(entry.contentRect.width); });
    observer.observe(canvas.current);
    return () => observer.disconnect();
  }, []);
  useLayoutEffect(() => { if (width.value && rows) draw(canvas.current, heat, places, width.value); }, [heat, places, width.value, changed]);

  const inside = (value, size) => Math.min(size - 1, Math.max(0, value));
  function point(event) {
    const box = canvas.current.getBoundingClientRect();
    const height = 1 - (event.clientY - box.top) / box.height;
    const row = places.findLastIndex((place) => place <= height);
    cell.value = { step: inside(Math.floor(((event.clientX - box.left) / box.width) * heat.steps), heat.steps), row: inside(row, rows) };
  }
  function keys(event) {
    const [right, up] = { ArrowRight: [1, 0], ArrowLeft: [-1, 0], ArrowUp: [0, 1], ArrowDown: [0, -1] }[event.key] ?? [];
    if (right === undefined) return;
    event.preventDefault();
    const from = cell.value ?? { step: heat.steps - 1, row: 0 };
    cell.value = { step: inside(from.step + right, heat.steps), row: inside(from.row + up, rows) };
  }

  const pointed = cell.value && rows > 0 ? { step: inside(cell.value.step, heat.steps), row: inside(cell.value.row, rows) } : null; // it may be of another answer
  const what = `${heat.histograms === 1 ? "1 histogram" : `${count(heat.histograms)} histograms, added up`}, ${count(rows)} buckets, ${count(heat.steps)} steps`;
  return html`<figure class="heat">
    <div class="row heat-tools">
      <span class="hint">${what}</span><span class="space"></span>
      <label>Buckets <select value=${used} onChange=${(event) => { scale.value = event.target.value; }}>
        ${scales.map((name) => html`<option value=${name}>${SCALES[name]}</option>`)}</select></label>
    </div>
    ${!rows && html`<p class="hint">No histogram has a bucket in this range.</p>`}
    <div class="heat-drawing">
      <div class="heat-edges">${labelsOf(heat.edges, places).map(({ text, bottom }) => html`<span style=${{ bottom: `${bottom}px` }}>${text}</span>`)}</div>
      <div class="heat-cells">
        <canvas ref=${canvas} style=${{ height: `${HEIGHT}px` }} tabindex="0" role="img" aria-label=${`Heat map: ${what}. Arrow keys go from cell to cell.`}
          onPointerMove=${point} onPointerLeave=${() => { cell.value = null; }} onKeyDown=${keys}></canvas>
        ${pointed && html`<span class="heat-cell" aria-hidden="true" style=${boxOf(pointed, heat, places)}></span>`}
        <div class="heat-times">${ticksOf(grid, heat.steps, width.value).map(({ text, left }) => html`<span style=${{ left: `${left}%` }}>${text}</span>`)}</div>
      </div>
    </div>
    <div class="row heat-legend">
      <output class="mono" aria-live="polite">${pointed ? said(pointed, heat, grid) : "Point at a cell to see its bucket, time and count."}</output>
      <span class="space"></span>
      <span>0</span><span class="heat-ramp" aria-hidden="true"></span><span>${short(heat.most)}</span>
    </div>
  </figure>`;
}

function said({ step, row }, { edges, counts }, grid) {
  const value = counts[step * (edges.length - 1) + row];
  return `${time(Math.round((grid.start + step * grid.step) * 1000))} · (${short(edges[row])}, ${short(edges[row + 1])}] · count ${short(value)}`;
}

const boxOf = ({ step, row }, { steps }, places) => ({
  left: `${(step / steps) * 100}%`,
  width: `${100 / steps}%`,
  top: `${(1 - places[row + 1]) * HEIGHT}px`,
  height: `${(places[row + 1] - places[row]) * HEIGHT}px`,
});

/** Texts at edges that are far enough from each other to be read. */
function labelsOf(edges, places) {
  const labels = [];
  edges.forEach((edge, index) => {
    const bottom = places[index] * HEIGHT;
    if (!labels.length || bottom - labels.at(-1).bottom >= LABEL_APART) labels.push({ text: short(edge), bottom });
  });
  return labels;
}

function ticksOf({ start, end, step }, steps, width) {
  const total = Math.max(1, Math.min(steps, Math.floor(width / TICK_APART)));
  const isLong = end - start > 86_400;
  return Array.from({ length: total }, (_, index) => {
    const at = Math.floor((index * steps) / total);
    const text = time(Math.round((start + at * step) * 1000), { millis: step < 1 });
    return { left: ((at + 0.5) / steps) * 100, text: isLong ? text.slice(5, 16) : text.slice(11) };
  });
}

/** Draws each row of cells at its height. All cells are made at once, a pixel each. */
function draw(canvas, { edges, steps, counts, most }, places, width) {
  const rows = edges.length - 1;
  const cells = document.createElement("canvas");
  cells.width = steps;
  cells.height = rows;
  const image = new ImageData(steps, rows);
  const pixels = new Uint32Array(image.data.buffer);
  const shades = shadesOf();
  for (let step = 0; step < steps; step += 1) {
    for (let row = 0; row < rows; row += 1) {
      const value = counts[step * rows + row];
      // The root shows differences between few and more, where most cells are.
      if (value > 0) pixels[row * steps + step] = shades[Math.min(SHADES - 1, Math.ceil(Math.sqrt(value / most) * (SHADES - 1)))];
    }
  }
  cells.getContext("2d").putImageData(image, 0, 0);
  const ratio = devicePixelRatio || 1;
  canvas.width = width * ratio;
  canvas.height = HEIGHT * ratio;
  const context = canvas.getContext("2d");
  context.imageSmoothingEnabled = false;
  for (let row = 0; row < rows; row += 1) {
    const top = Math.round((1 - places[row + 1]) * canvas.height);
    const bottom = Math.round((1 - places[row]) * canvas.height);
    if (bottom > top) context.drawImage(cells, 0, row, steps, 1, 0, top, canvas.width, bottom - top);
  }
}

/** Pixels (little-endian: alpha, blue, green, red) from few to most. */
function shadesOf() {
  const stops = RAMP.map((name) => {
    const value = parseInt(colour(name).slice(1), 16);
    return [value >> 16, (value >> 8) & 255, value & 255];
  });
  return Uint32Array.from({ length: SHADES }, (_, index) => {
    const place = (index / (SHADES - 1)) * (stops.length - 1);
    const from = Math.min(Math.floor(place), stops.length - 2);
    const [red, green, blue] = stops[from].map((value, part) => Math.round(value + (stops[from + 1][part] - value) * (place - from)));
    return ((255 << 24) | (blue << 16) | (green << 8) | red) >>> 0;
  });
}
