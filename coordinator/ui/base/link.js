// The state that a link carries, in the part after '#': `#area?name=value&name=value`. What a person would want to send
// to somebody else, or to see again after a reload, is kept here and nowhere else. It never reaches the server.
import { signal } from "../vendor.js";

export const AREAS = ["metrics", "log", "vectors", "cluster"];

/** The area that is shown, one of AREAS. */
export const area = signal("metrics");
/** The parameters of the area that is shown, a URLSearchParams: not to be changed, see `change`. */
export const params = signal(new URLSearchParams());

const left = new Map(); // of the areas that are not shown, what their parameters were

function read() {
  const [name, query = ""] = splitOnce(location.hash.slice(1), "?");
  area.value = AREAS.includes(name) ? name : AREAS[0];
  params.value = new URLSearchParams(query);
}

function splitOnce(text, separator) {
  const place = text.indexOf(separator);
  return place < 0 ? [text] : [text.slice(0, place), text.slice(place + 1)];
}

function write(isStep) {
  const query = params.value.toString();
  const target = `#${area.value}${query ? `?${query}` : ""}`;
  if (target !== location.hash) history[isStep ? "pushState" : "replaceState"](null, "", target);
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
  area.value = name;
  params.value = changes ? new URLSearchParams() : (left.get(name) ?? new URLSearchParams());
  if (changes) change(changes, { step: false });
  write(true);
}

/** A link to an area with these parameters, for an `href`. */
export function linkTo(name, changes = {}) {
  const query = new URLSearchParams();
  for (const [key, value] of Object.entries(changes)) {
    for (const one of Array.isArray(value) ? value : [value]) query.append(key, String(one));
  }
  return `#${name}${query.size ? `?${query}` : ""}`;
}

addEventListener("hashchange", read);
addEventListener("popstate", read);
read();
