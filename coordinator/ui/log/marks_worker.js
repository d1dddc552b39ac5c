// Finds the matches of expressions in texts: [[expression, text]] in, for each [[begin, end]] out, or null if this browser
// does not know the expression. Its first message says that it has been loaded.
const MATCHES_MAX = 500; // of a text

const compiled = new Map();

/** An expression of RE2 as one of this browser: flags at its beginning are given apart, and a few names differ. */
function compile(pattern) {
  const [, flags = "", rest] = /^(?:\(\?([imsU]+)\))?(.*)$/s.exec(pattern);
  const source = rest.replaceAll("(?P<", "(?<").replaceAll("\\A", "^").replaceAll("\\z", "$");
  try {
    return new RegExp(source, `gmu${flags.includes("i") ? "i" : ""}`);
  } catch {
    return null;
  }
}

function matches(pattern, text) {
  if (!compiled.has(pattern)) compiled.clear();
  if (!compiled.size) compiled.set(pattern, compile(pattern));
  const expression = compiled.get(pattern);
  if (!expression) return null;
  const found = [];
  for (const match of text.matchAll(expression)) {
    if (match[0]) found.push([match.index, match.index + match[0].length]);
    if (found.length >= MATCHES_MAX) break;
  }
  return found;
}

onmessage = ({ data }) => postMessage(data.map(([pattern, text]) => matches(pattern, text)));
postMessage("ready");
