// The state that a link carries, in the part after '#': `#area?name=value&name=value`. What a person would want to send
// to somebody else, or to see again after a reload, is kept here and nowhere else. It never reaches the server.
import { batch, signal } from "../vendor.js";

export const AREAS = ["metrics", "log", "vectors", "alerts", "cluster"];

/** The area that is shown, one of AREAS. */
export const area = signal("metrics");
/** The parameters of the area that is shown, a URLSearchParams: not to be changed, see `change`. */
export const params = signal(new URLSearchParams());

const LINK_CHARS_MAX = 1_000_000; // browsers lose the page above 2 MB

const left = new Map(); // of the areas that are not shown, what their parameters were

function read() {
  const [name, query = ""] = splitOnce(location.hash.slice(1), "?");
  show(AREAS.includes(name) ? name : AREAS[0], new URLSearchParams(query));
}

// One step back is told twice, by hashchange and popstate: what is shown already changes nothing.
function show(name, next) {
  if (name === area.value && next.toString() === params.value.toString()) return;
  batch(() => {
    area.value = name;
    params.value = next;
  });
}

function splitOnce(text, separator) {
  const place = text.indexOf(separator);
  return place < 0 ? [text] : [text.slice(0, place), text.slice(place + 1)];
}

function write(isStep) {
  const query = params.value.toString();
  const target = `#${area.value}${query ? `?${query}` : ""}`;
  if (target === location.hash || target.length > LINK_CHARS_MAX) return;
  try {
    history[isStep ? "pushState" : "replaceState"](null, "", target);
  } catch {
    // Too many changes in a short time for this browser: the next one is written again.
  }
}

/** Set parameters of the area: {name: value}, an array for one that comes several times, null or "" to take it away.
 * `step`: whether the browser's back button undoes it. */
export function change(changes, { step = true } = {}) {
  const next = new URLSearchParams(params.value);
  for (const [name, value] of Object.entries(changes)) {
    next.delete(name);
    for (const one of Array.isArray(value) ? value : [value]) {
      if (one !== null && one !== undefined && one !== "") next.append(name, String(one));
    }
  }
  if (next.toString() === params.value.toString()) return;
  params.value = next;
  write(step);
}

/** Show an area as it was left, or with these parameters ({name: value or array}). */
export function go(name, changes = null) {
  left.set(area.value, params.value);
  show(name, changes ? new URLSearchParams(linkTo(name, changes).split("?")[1] ?? "") : (left.get(name) ?? new URLSearchParams()));
  write(true);
}

/** A link to an area with these parameters, for an `href`. */
export function linkTo(name, changes = {}) {
  const query = new URLSearchParams();
  for (const [key, value] of Object.entries(changes)) {
    for (const one of Array.isArray(value) ? value : [value]) {
      if (one !== null && one !== undefined && one !== "") query.append(key, String(one));
    }
  }
  return `#${name}${query.size ? `?${query}` : ""}`;
}

addEventListener("hashchange", read);
addEventListener("popstate", read);
read();
