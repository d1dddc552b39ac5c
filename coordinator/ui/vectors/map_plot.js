// Points on a canvas: drawn, moved and zoomed, hovered and chosen, by pointer and by keyboard.
import { html, useEffect, useLayoutEffect, useMemo, useRef, useSignal } from "../vendor.js";
import { request } from "../base/api.js";
import { change, params } from "../base/link.js";
import { oneLine } from "./values.js";

const HIT_PX = 12; // so far from a point the pointer still means it
const CLICK_PX = 4; // a pointer that moved less has clicked
const MARGIN_PX = 18;
const ZOOM_MAX = 500;
const HOVER_MS = 120; // before the attributes of a point are asked for
const TIP_ATTRIBUTES = 8;

const START = { zoom: 1, dx: 0, dy: 0 };

/** `x`, `y`, `shades` and (or undefined) `values` belong to `ids`; a shade of null is of a point in the background. */
export function Plot({ ids, x, y, shades, values, collection, names }) {
  const canvas = useRef(null);
  const ring = useRef(null); // a layer of its own: what the pointer is over changes often, the points seldom
  const view = useSignal(START);
  const size = useSignal({ width: 0, height: 0 });
  const over = useSignal(-1);
  const grip = useRef(null);
  const bounds = useMemo(() => extent(x, y), [x, y]);
  const at = useMemo(() => placed(x, y, bounds, size.value, view.value), [x, y, bounds, size.value, view.value]);
  const selected = ids.indexOf(params.value.get("sel"));
  useLayoutEffect(() => {
    const look = () => { size.value = { width: canvas.current.clientWidth, height: canvas.current.clientHeight }; };
    const observer = new ResizeObserver(look);
    observer.observe(canvas.current);
    look();
    return () => observer.disconnect();
  }, []);
  useLayoutEffect(() => drawPoints(canvas.current, size.value, at, shades), [at, shades]);
  useLayoutEffect(() => drawRings(ring.current, size.value, at, [selected, over.value]), [at, shades, selected, over.value]);
  const zoom = (factor, px = size.value.width / 2, py = size.value.height / 2) => { view.value = zoomed(view.value, factor, px, py, size.value); };
  useEffect(() => {
    const element = canvas.current;
    const wheel = (event) => {
      event.preventDefault();
      zoom(Math.exp(-event.deltaY / 400), event.offsetX, event.offsetY);
    };
    element.addEventListener("wheel", wheel, { passive: false });
    return () => element.removeEventListener("wheel", wheel);
  }, []);
  const select = (index) => { if (index >= 0) change({ sel: ids[index] }, { step: false }); };
  const down = (event) => {
    canvas.current.setPointerCapture(event.pointerId);
    grip.current = { x: event.offsetX, y: event.offsetY, from: view.value, moved: false };
  };
  const move = (event) => {
    const held = grip.current;
    if (!held) { over.value = nearest(at, event.offsetX, event.offsetY, HIT_PX); return; }
    const [dx, dy] = [event.offsetX - held.x, event.offsetY - held.y];
    held.moved ||= Math.hypot(dx, dy) > CLICK_PX;
    if (held.moved) view.value = { ...held.from, dx: held.from.dx + dx, dy: held.from.dy + dy };
  };
  const up = (event) => {
    if (grip.current && !grip.current.moved) select(nearest(at, event.offsetX, event.offsetY, HIT_PX));
    grip.current = null;
  };
  const keys = {
    "+": () => zoom(1.5), "-": () => zoom(1 / 1.5), 0: () => { view.value = START; },
    Enter: () => select(over.value), Escape: () => { over.value = -1; },
    ArrowLeft: () => step(-1, 0), ArrowRight: () => step(1, 0), ArrowUp: () => step(0, -1), ArrowDown: () => step(0, 1),
  };
  const step = (dx, dy) => { over.value = beside(at, over.value, dx, dy, size.value); };
  const pressed = (event) => {
    if (!keys[event.key] || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    event.stopPropagation();
    keys[event.key]();
  };
  return html`<div class="vectors-plot">
    <canvas ref=${canvas} tabindex="0" role="application" aria-label=${`Map of ${ids.length} vectors: arrows go from point to point, Enter opens one, + and - zoom, 0 shows all`}
      onPointerDown=${down} onPointerMove=${move} onPointerUp=${up} onPointerCancel=${() => { grip.current = null; }}
      onPointerLeave=${() => { if (!grip.current) over.value = -1; }} onKeyDown=${pressed}></canvas>
    <canvas ref=${ring} class="vectors-rings" aria-hidden="true"></canvas>
    <div class="row vectors-zoom">
      <button aria-label="Zoom in" onClick=${() => zoom(1.5)}>+</button><button aria-label="Zoom out" onClick=${() => zoom(1 / 1.5)}>−</button>
      <button onClick=${() => { view.value = START; }}>All</button></div>
    ${over.value >= 0 && html`<${Tip} key=${ids[over.value]} id=${ids[over.value]} value=${values?.[over.value]} collection=${collection} names=${names}
      x=${at.x[over.value]} y=${at.y[over.value]} size=${size.value} />`}
  </div>`;
}

function extent(x, y) {
  const range = (list) => list.reduce(([low, high], one) => [Math.min(low, one), Math.max(high, one)], [Infinity, -Infinity]);
  const [left, right] = range(x);
  const [low, high] = range(y);
  return { left, low, width: right - left, height: high - low };
}

/** Where the points are, in pixels; `origin`: where the centre of the vectors is. One scale for both axes, so that distances
 * can be compared. */
function placed(x, y, bounds, size, view) {
  const room = (total, span) => (span > 0 ? Math.max(1, total - 2 * MARGIN_PX) / span : Infinity);
  const fit = Math.min(room(size.width, bounds.width), room(size.height, bounds.height));
  const scale = (Number.isFinite(fit) ? fit : 1) * view.zoom;
  const left = size.width / 2 + view.dx - scale * (bounds.left + bounds.width / 2);
  const top = size.height / 2 + view.dy + scale * (bounds.low + bounds.height / 2);
  return { x: Float64Array.from(x, (one) => left + scale * one), y: Float64Array.from(y, (one) => top - scale * one), origin: [left, top] };
}

/** The view when the point under (px, py) stays where it is. */
function zoomed(view, factor, px, py, size) {
  const zoom = Math.min(ZOOM_MAX, Math.max(0.5, view.zoom * factor));
  const own = zoom / view.zoom;
  const shifted = (d, p, total) => (p - total / 2) * (1 - own) + d * own;
  return { zoom, dx: shifted(view.dx, px, size.width), dy: shifted(view.dy, py, size.height) };
}

function nearest(at, px, py, within) {
  let best = -1;
  let least = within * within;
  for (let i = 0; i < at.x.length; i++) {
    const distance = (at.x[i] - px) ** 2 + (at.y[i] - py) ** 2;
    if (distance <= least) [best, least] = [i, distance];
  }
  return best;
}

/** The nearest point in a direction: what is beside the way counts twice. Without a point, the one nearest to the middle. */
function beside(at, from, dx, dy, size) {
  if (from < 0) return nearest(at, size.width / 2, size.height / 2, Infinity);
  let best = from;
  let least = Infinity;
  for (let i = 0; i < at.x.length; i++) {
    const along = (at.x[i] - at.x[from]) * dx + (at.y[i] - at.y[from]) * dy;
    const across = Math.abs((at.x[i] - at.x[from]) * dy) + Math.abs((at.y[i] - at.y[from]) * dx);
    if (along > 0.5 && along + 2 * across < least) [best, least] = [i, along + 2 * across];
  }
  return best;
}

/** A pen for an empty canvas, in which a unit is a pixel of CSS; null while there is no room. */
function penFor(canvas, { width, height }) {
  if (!width || !height) return null;
  const ratio = devicePixelRatio || 1;
  canvas.width = Math.round(width * ratio);
  canvas.height = Math.round(height * ratio);
  const pen = canvas.getContext("2d");
  pen.scale(ratio, ratio);
  return pen;
}

const radiusOf = (at) => (at.x.length > 1500 ? 2 : 3);
const colour = (canvas, name) => getComputedStyle(canvas).getPropertyValue(name).trim();

function drawPoints(canvas, size, at, shades) {
  const pen = penFor(canvas, size);
  if (!pen) return;
  pen.fillStyle = colour(canvas, "--line");
  pen.fillRect(0, Math.round(at.origin[1]), size.width, 1);
  pen.fillRect(Math.round(at.origin[0]), 0, 1, size.height);
  const radius = radiusOf(at);
  const stamps = new Map();
  const ratio = devicePixelRatio || 1;
  pen.globalAlpha = 0.85;
  for (const isShown of [false, true]) { // those in the background first
    for (let i = 0; i < at.x.length; i++) {
      const isOutside = at.x[i] < -radius || at.y[i] < -radius || at.x[i] > size.width + radius || at.y[i] > size.height + radius;
      if (isOutside || (shades[i] !== null) !== isShown) continue;
      if (!stamps.has(shades[i])) stamps.set(shades[i], stamp(shades[i] ?? colour(canvas, "--line"), radius, ratio));
      pen.drawImage(stamps.get(shades[i]), at.x[i] - radius - 1, at.y[i] - radius - 1, 2 * radius + 2, 2 * radius + 2);
    }
  }
}

/** A dot to be copied: ten times as quick as drawing one. */
function stamp(shade, radius, ratio) {
  const image = document.createElement("canvas");
  image.width = image.height = Math.ceil((2 * radius + 2) * ratio);
  const pen = image.getContext("2d");
  pen.scale(ratio, ratio);
  pen.fillStyle = shade;
  pen.arc(radius + 1, radius + 1, radius, 0, 7);
  pen.fill();
  return image;
}

function drawRings(canvas, size, at, indices) {
  const pen = penFor(canvas, size);
  if (!pen) return;
  pen.strokeStyle = colour(canvas, "--text");
  pen.lineWidth = 2;
  for (const index of indices) {
    if (index < 0) continue;
    pen.beginPath();
    pen.arc(at.x[index], at.y[index], radiusOf(at) + 4, 0, 7);
    pen.stroke();
  }
}

const seen = new Map(); // attributes of points that were hovered, by collection and id
const SEEN_MAX = 2000;

/** What a point is: at once its id and value, and its attributes when the pointer stays. */
function Tip({ id, value, collection, names, x, y, size }) {
  const key = `${collection}\n${id}`;
  const attributes = useSignal(seen.get(key));
  useEffect(() => {
    if (attributes.value || !names.length) return undefined;
    const controller = new AbortController();
    const timer = setTimeout(async () => {
      const asked = { json: { collection, ids: [id], includeFields: names }, signal: controller.signal };
      const found = await request("POST", "api/v1/vector/get", asked).catch(() => null); // the id is there in any case
      if (!found) return;
      if (seen.size > SEEN_MAX) seen.clear();
      seen.set(key, found.answer.vectors[0]?.attributes ?? {});
      attributes.value = seen.get(key);
    }, HOVER_MS);
    return () => { clearTimeout(timer); controller.abort(); };
  }, []);
  const side = x > size.width / 2 ? { right: `${size.width - x + 14}px` } : { left: `${x + 14}px` };
  const edge = y > size.height / 2 ? { bottom: `${size.height - y}px` } : { top: `${y}px` };
  return html`<div class="vectors-tip" role="status" style=${{ ...side, ...edge }}>
    <strong class="mono">${id}</strong>
    ${value !== undefined && !attributes.value && html`<div>${value === null ? "without it" : oneLine(value)}</div>`}
    ${attributes.value && html`<dl>${Object.entries(attributes.value).slice(0, TIP_ATTRIBUTES).map(([name, own]) => html`<dt>${name}</dt><dd>${oneLine(own)}</dd>`)}</dl>`}
  </div>`;
}
