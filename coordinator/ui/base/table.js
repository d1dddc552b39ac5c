// A table that stays quick with a hundred thousand rows: only those in sight are in the document.
import { html, useComputed, useLayoutEffect, useMemo, useRef, useSignal } from "../vendor.js";
import { useArranged } from "./arrange.js";
import { count } from "./format.js";

const ROW_PX = 29; // of one line; also in styles/table.css
const ALL_UP_TO = 300; // rows: so few are all in the document, where the browser's own search finds them
const BEYOND = 12; // rows above and below those in sight
const SAMPLED = 200; // rows that tell how wide the columns of a long table are
const WIDTH_CHARS_MAX = 60;

/** `columns`: [{title, value(row), render?(row), align?: "end", sortable?: false}]; `value` is what is sorted, filtered
 * and exported, `render` what is shown (a line high). `rows`: an array, a new one when something changed.
 * `label`: the table's name. `filter`: whether there is a field that filters. `onRow(row)`: for a click or Enter; arrow
 * keys go from row to row. `rowKey(row)`: what tells rows apart. `sort`: {column, down} at the beginning. Its order, filter
 * and place stay while rows change; with another `key` (of Preact) it begins anew: for other columns, or rows of something else. */
export function Table({ columns, rows, label, filter = rows.length > 20, onRow, rowKey, sort = null, empty = "Nothing." }) {
  const order = useSignal(sort);
  const wanted = useSignal("");
  const { shown, isBusy } = useArranged(columns, rows, order.value, wanted.value.trim().toLowerCase());
  const { ref, first, last, onScroll, reveal } = useWindow(shown.length);
  const { stop, onFocus, onKeyDown } = useRows({ ref, shown, first, last, reveal, onRow });
  const widths = useWidths(columns, rows);
  const before = first * ROW_PX;
  const after = (shown.length - last) * ROW_PX;
  return html`<div class="table">
    ${filter && html`<div class="table-tools">
      <input type="search" placeholder="Filter" aria-label=${`Filter ${label}`} value=${wanted.value}
        onInput=${(event) => { wanted.value = event.target.value; }} />
      <span class="hint" aria-live="polite">${isBusy ? "…" : shown.length === rows.length ? count(rows.length) : `${count(shown.length)} of ${count(rows.length)}`}</span>
    </div>`}
    <div class="table-scroll" ref=${ref} onScroll=${onScroll} tabindex="0" role="region" aria-label=${label} aria-busy=${isBusy}>
      <table aria-label=${label} aria-rowcount=${shown.length + 1}>
        <thead><tr aria-rowindex="1">${columns.map((column, index) => html`<${Head} column=${column} index=${index} order=${order} width=${widths[index]} />`)}</tr></thead>
        <tbody onKeyDown=${onKeyDown} onFocusIn=${onFocus}>
          ${before > 0 && html`<tr class="gap" aria-hidden="true"><td colspan=${columns.length} style=${{ height: `${before}px` }}></td></tr>`}
          ${shown.slice(first, last).map((row, index) => html`<tr key=${rowKey ? rowKey(row) : first + index} aria-rowindex=${first + index + 2}
              class=${onRow ? "choice" : ""} tabindex=${onRow ? (first + index === stop ? 0 : -1) : undefined}
              onClick=${onRow && (() => { if (!String(getSelection())) onRow(row); })}>
            ${columns.map((column) => html`<td class=${column.align ?? ""}>${column.render ? column.render(row) : column.value(row)}</td>`)}
          </tr>`)}
          ${after > 0 && html`<tr class="gap" aria-hidden="true"><td colspan=${columns.length} style=${{ height: `${after}px` }}></td></tr>`}
        </tbody>
      </table>
      ${!shown.length && !isBusy && html`<p class="hint">${rows.length ? "No row has this text." : empty}</p>`}
    </div>
  </div>`;
}

function Head({ column, index, order, width }) {
  const own = order.value?.column === index ? order.value : null;
  const style = { minWidth: width };
  if (column.sortable === false) return html`<th scope="col" class=${column.align ?? ""} style=${style}>${column.title}</th>`;
  const turn = () => { order.value = own ? (own.down === startsDown(column) ? { column: index, down: !own.down } : null) : { column: index, down: startsDown(column) }; };
  return html`<th scope="col" class=${column.align ?? ""} style=${style} aria-sort=${own ? (own.down ? "descending" : "ascending") : "none"}>
    <button type="button" class="head" onClick=${turn}>${column.title}<span aria-hidden="true">${own ? (own.down ? " ▾" : " ▴") : ""}</span></button>
  </th>`;
}

// The greatest numbers come first, texts by the alphabet.
const startsDown = (column) => column.align === "end";

// Of a long table, the widths of columns would change with the rows in sight: samples tell them beforehand.
function useWidths(columns, rows) {
  return useMemo(() => {
    if (rows.length <= ALL_UP_TO) return [];
    const step = Math.floor(rows.length / SAMPLED) || 1;
    return columns.map(({ value }) => {
      let chars = 0;
      for (let i = 0; i < rows.length; i += step) chars = Math.max(chars, String(value(rows[i]) ?? "").length);
      return `${Math.min(chars, WIDTH_CHARS_MAX) + 2}ch`;
    });
  }, [rows]);
}

// One row is a stop of the Tab key; arrows, Page, Home and End move it. Enter chooses the row.
function useRows({ ref, shown, first, last, reveal, onRow }) {
  const current = useSignal(0);
  const isMoved = useRef(false);
  const stop = Math.max(first, Math.min(current.value, last - 1));
  useLayoutEffect(() => {
    if (!isMoved.current) return;
    isMoved.current = false;
    ref.current.querySelector(`tr[aria-rowindex="${current.value + 2}"]`)?.focus();
  });
  if (!onRow) return { stop };
  const placeOf = (event) => (event.target.tagName === "TR" ? Number(event.target.getAttribute("aria-rowindex")) - 2 : -1);
  const onFocus = (event) => { if (placeOf(event) >= 0) current.value = placeOf(event); };
  function onKeyDown(event) {
    const place = placeOf(event);
    if (place < 0 || event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "Enter") return void onRow(shown[place]);
    const page = Math.max(1, Math.floor(ref.current.clientHeight / ROW_PX) - 2);
    const moves = { ArrowDown: 1, ArrowUp: -1, PageDown: page, PageUp: -page, Home: -place, End: shown.length };
    if (!(event.key in moves)) return;
    event.preventDefault();
    const next = Math.max(0, Math.min(shown.length - 1, place + moves[event.key]));
    if (next === place) return;
    isMoved.current = true;
    current.value = next;
    reveal(next);
  }
  return { stop, onFocus, onKeyDown };
}

/** Which of `total` rows of ROW_PX are in sight of the element `ref`: [first, last). `reveal(place)` scrolls to a row, below
 * a head of one row. */
function useWindow(total) {
  const ref = useRef(null);
  const place = useSignal({ top: 0, height: 600 });
  useLayoutEffect(() => {
    const look = () => { place.value = { top: ref.current.scrollTop, height: ref.current.clientHeight || 600 }; };
    const observer = new ResizeObserver(look);
    observer.observe(ref.current);
    return () => observer.disconnect();
  }, []);
  const span = useComputed(() => {
    const first = Math.floor(place.value.top / ROW_PX) - BEYOND;
    return `${Math.max(0, first - (first % 8))} ${Math.ceil((place.value.top + place.value.height) / ROW_PX) + BEYOND + 8}`;
  });
  const [first, last] = span.value.split(" ").map(Number);
  const onScroll = (event) => { place.value = { top: event.currentTarget.scrollTop, height: event.currentTarget.clientHeight }; };
  function reveal(row) {
    const node = ref.current;
    const top = row * ROW_PX;
    node.scrollTop = Math.max(top + 2 * ROW_PX - node.clientHeight, Math.min(node.scrollTop, top));
    place.value = { top: node.scrollTop, height: node.clientHeight };
  }
  if (total <= ALL_UP_TO) return { ref, first: 0, last: total, onScroll, reveal };
  return { ref, first: Math.min(first, Math.max(0, total - 1)), last: Math.min(last, total), onScroll, reveal };
}
