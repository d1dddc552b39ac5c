// Selectors as texts, and one more matcher in them.
import { quoted } from "../base/format.js";

const PLAIN = /^[A-Za-z_][A-Za-z0-9_]*$/;

/** The matcher of a label value. */
export const labelMatcher = (label, value) => `${PLAIN.test(label) ? label : quoted(label)}=${quoted(value)}`;

/** These selectors, of which each series matches one, with a matcher more in each. A selector that has the matcher already
 * stays as it is. */
export function narrowed(selectors, matcher) {
  if (!selectors.length) return [`{${matcher}}`];
  return [...new Set(selectors.map((selector) => withMatcher(selector.trim(), matcher)))];
}

function withMatcher(selector, matcher) {
  if (!selector.endsWith("}")) return matcher === `__name__=${quoted(selector)}` ? selector : `${selector}{${matcher}}`;
  const inside = selector.slice(0, -1).trimEnd();
  if (inside.endsWith(matcher)) return selector;
  return `${inside}${/[{,]$/.test(inside) ? "" : ", "}${matcher}}`;
}
