// Keys that do something, wherever the focus is outside of text; a list of them is shown under '?'.
import { signal, useLayoutEffect } from "../vendor.js";

/** All that are there now: [{keys, label, run}]. `keys`: as KeyboardEvent.key says it, "g m" for one after the other. */
export const known = signal([]);

let before = "";
let at = 0;

const NOT_TEXT = ["checkbox", "radio", "button", "submit", "reset", "range", "color", "file"];

const isText = (node) =>
  node?.isContentEditable || ["TEXTAREA", "SELECT"].includes(node?.tagName) || node?.closest?.(".editor") ||
  (node?.tagName === "INPUT" && !NOT_TEXT.includes(node.type));

function pressed(event) {
  const target = event.composedPath()[0];
  if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey) return;
  if (isText(target) || isText(event.target) || document.querySelector("dialog[open]")) return;
  const pair = event.timeStamp - at < 1500 ? `${before} ${event.key}` : "";
  const found = known.value.findLast((one) => one.keys === pair) ?? known.value.findLast((one) => one.keys === event.key);
  [before, at] = [event.key, event.timeStamp];
  if (!found) return;
  event.preventDefault();
  before = "";
  found.run(event);
}

addEventListener("keydown", pressed);

/** Makes keys work while the component is shown: [{keys, label, run}]. `inputs`: as for useEffect. A key works on what is
 * seen: what it does changes with the document, not after it has been painted. */
export function useKeys(own, inputs = []) {
  useLayoutEffect(() => {
    known.value = [...known.value, ...own];
    return () => { known.value = known.value.filter((one) => !own.includes(one)); };
  }, inputs);
}
