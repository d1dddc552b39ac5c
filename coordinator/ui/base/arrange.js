// Filters and sorts rows, in pieces that are short enough for the page to stay responsive.
import { useEffect, useRef, useSignal } from "../vendor.js";
import { pause } from "./pause.js";

const AT_ONCE_UP_TO = 2000; // rows: they take some milliseconds
const PIECE_MS = 10;
const BLOCK = 256; // rows between two looks at the clock
const KEY_CHARS_MAX = 300; // of a text, by which it is sorted
const NUMBER = 0, TEXT = 1, NONE = 2; // numbers come before texts, and what is missing is last in either direction

/** The rows (objects of `columns`, see table.js) that have the text `wanted` (in lower case) in a column, by `order`
 * ({column, down} or null). Returns {shown, isBusy}: while it works, `shown` is what it was before. */
export function useArranged(columns, rows, order, wanted) {
  const last = useRef({ shown: [] });
  const drawn = useSignal(0);
  const isDone = last.current.rows === rows && last.current.order === order && last.current.wanted === wanted;
  const isLong = rows.length > AT_ONCE_UP_TO && Boolean(order || wanted);
  if (!isDone && !isLong) last.current = { rows, order, wanted, shown: finished(arranging(columns, rows, order, wanted)) };
  useEffect(() => {
    if (!isLong) return undefined;
    const controller = new AbortController();
    inPieces(arranging(columns, rows, order, wanted), controller.signal).then((shown) => {
      if (controller.signal.aborted) return;
      last.current = { rows, order, wanted, shown };
      drawn.value += 1;
    });
    return () => controller.abort();
  }, [rows, order, wanted]);
  drawn.value; // draws again when it changes
  return { shown: last.current.shown, isBusy: isLong && !isDone };
}

/** Runs a generator to its end a piece at a time, and gives what it returns; undefined once `signal` is aborted. */
async function inPieces(work, signal) {
  for (;;) {
    const until = performance.now() + PIECE_MS;
    do {
      const { value, done } = work.next();
      if (done) return value;
    } while (performance.now() < until);
    await pause();
    if (signal?.aborted) return undefined;
  }
}

function finished(work) {
  for (;;) {
    const { value, done } = work.next();
    if (done) return value;
  }
}

function* arranging(columns, rows, order, wanted) {
  const kept = wanted ? yield* matching(columns, rows, wanted) : rows;
  return order ? yield* sorted(kept, columns[order.column].value, order.down) : kept;
}

function* matching(columns, rows, wanted) {
  const kept = [];
  for (let i = 0; i < rows.length; i += 1) {
    const row = rows[i];
    if (columns.some((column) => String(column.value(row) ?? "").toLowerCase().includes(wanted))) kept.push(row);
    if (i % BLOCK === 0) yield;
  }
  return kept;
}

function* sorted(rows, value, isDown) {
  const kinds = new Uint8Array(rows.length);
  const keys = new Array(rows.length);
  for (let i = 0; i < rows.length; i += 1) {
    [kinds[i], keys[i]] = keyOf(value(rows[i]));
    if (i % BLOCK === 0) yield;
  }
  const sign = isDown ? -1 : 1;
  const compare = (a, b) => {
    if (kinds[a] !== kinds[b]) return (kinds[a] === NONE || kinds[b] === NONE ? 1 : sign) * (kinds[a] - kinds[b]);
    return (keys[a] < keys[b] ? -sign : keys[a] > keys[b] ? sign : 0) || a - b;
  };
  const places = yield* mergeSorted(rows.length, compare);
  return Array.from(places, (place) => rows[place]);
}

/** [kind, what `<` compares]: texts without regard to case, and numbers in them by their size (disk2 before disk10). */
function keyOf(value) {
  if (typeof value === "number") return Number.isNaN(value) ? [NONE, 0] : [NUMBER, value];
  if (value === null || value === undefined) return [NONE, 0];
  const text = String(value).slice(0, KEY_CHARS_MAX).normalize("NFKD").toLowerCase();
  return [TEXT, text.replace(/\d+/g, (digits) => digits.padStart(20, "0"))];
}

/** Places 0 to total - 1 in order, as Uint32Array: blocks are sorted, then merged two by two. */
function* mergeSorted(total, compare) {
  let from = Uint32Array.from({ length: total }, (_, place) => place);
  let to = new Uint32Array(total);
  for (let begin = 0; begin < total; begin += BLOCK) {
    from.subarray(begin, begin + BLOCK).sort(compare);
    yield;
  }
  for (let width = BLOCK; width < total; width *= 2) {
    for (let begin = 0; begin < total; begin += 2 * width) {
      const middle = Math.min(begin + width, total);
      const end = Math.min(begin + 2 * width, total);
      for (let left = begin, right = middle, next = begin; next < end; next += 1) {
        const isLeft = left < middle && (right >= end || compare(from[left], from[right]) <= 0);
        to[next] = from[isLeft ? left++ : right++];
        if (next % BLOCK === 0) yield;
      }
    }
    [from, to] = [to, from];
  }
  return from;
}
