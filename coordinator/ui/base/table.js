// A table that stays quick with a hundred thousand rows: only those in sight are in the document.
import { html, useComputed, useLayoutEffect, useRef, useSignal } from "../vendor.js";
import { count } from "./format.js";

const ROW_PX = 29; // of one line; also in styles/table.css
const ALL_UP_TO = 300; // rows: so few are all in the document, where the browser's own search finds them
const BEYOND = 12; // rows above and below those in sight

/** `columns`: [{title, value(row), render?(row), align?: "end", width?, sortable?: false}]; `value` is what is sorted,
 * filtered and exported, `render` what is shown (a line high). `rows`: an array, a new one when something changed.
 * `label`: the table's name. `filter`: whether there is a field that filters. `onRow(row)`: for a click or Enter.
 * `key(row)`: what tells rows apart. `sort`: {column, down} at the beginning. */
export function Table({ columns, rows, label, filter = rows.length > 20, onRow, key, sort = null, empty = "Nothing." }) {
  const order = useSignal(sort);
  const wanted = useSignal("");
  const shown = arranged(columns, rows, order.value, wanted.value.trim().toLowerCase());
  const { ref, first, last, onScroll } = useWindow(shown.length);
  const before = first * ROW_PX;
  const after = (shown.length - last) * ROW_PX;
  return html`<div class="table">
    ${filter && html`<div class="table-tools">
      <input type="search" placeholder="Filter" aria-label=${`Filter ${label}`} value=${wanted.value}
        onInput=${(event) => { wanted.value = event.target.value; }} />
      <span class="hint" aria-live="polite">${shown.length === rows.length ? count(rows.length) : `${count(shown.length)} of ${count(rows.length)}`}</span>
    </div>`}
    <div class="table-scroll" ref=${ref} onScroll=${onScroll} tabindex="0" role="region" aria-label=${label}>
      <table aria-label=${label} aria-rowcount=${shown.length + 1}>
        <thead><tr>${columns.map((column, index) => html`<${Head} column=${column} index=${index} order=${order} />`)}</tr></thead>
        <tbody>
          ${before > 0 && html`<tr class="gap" aria-hidden="true"><td colspan=${columns.length} style=${{ height: `${before}px` }}></td></tr>`}
          ${shown.slice(first, last).map((row, index) => html`<tr key=${key ? key(row) : first + index} aria-rowindex=${first + index + 2}
              class=${onRow ? "choice" : ""} tabindex=${onRow ? 0 : undefined}
              onClick=${onRow && (() => { if (!String(getSelection())) onRow(row); })}
              onKeyDown=${onRow && ((event) => { if (event.key === "Enter" && event.target === event.currentTarget) onRow(row); })}>
            ${columns.map((column) => html`<td class=${column.align ?? ""}>${column.render ? column.render(row) : column.value(row)}</td>`)}
          </tr>`)}
          ${after > 0 && html`<tr class="gap" aria-hidden="true"><td colspan=${columns.length} style=${{ height: `${after}px` }}></td></tr>`}
        </tbody>
      </table>
      ${!shown.length && html`<p class="hint">${rows.length ? "No row has this text." : empty}</p>`}
    </div>
  </div>`;
}

function Head({ column, index, order }) {
  const own = order.value?.column === index ? order.value : null;
  if (column.sortable === false) return html`<th scope="col" class=${column.align ?? ""}>${column.title}</th>`;
  const turn = () => { order.value = own ? (own.down === startsDown(column) ? { column: index, down: !own.down } : null) : { column: index, down: startsDown(column) }; };
  return html`<th scope="col" class=${column.align ?? ""} aria-sort=${own ? (own.down ? "descending" : "ascending") : "none"}>
    <button class="head" onClick=${turn}>${column.title}<span aria-hidden="true">${own ? (own.down ? " ▾" : " ▴") : ""}</span></button>
  </th>`;
}

// The greatest numbers come first, texts by the alphabet.
const startsDown = (column) => column.align === "end";

const cache = new WeakMap(); // of rows: the last arrangement, since a table is drawn again while it is scrolled

function arranged(columns, rows, order, text) {
  const wanted = `${order?.column} ${order?.down} ${text}`;
  const last = cache.get(rows);
  if (last?.wanted === wanted) return last.shown;
  let shown = rows;
  if (text) shown = shown.filter((row) => columns.some((column) => String(column.value(row) ?? "").toLowerCase().includes(text)));
  if (order) {
    const { value } = columns[order.column];
    const sign = order.down ? -1 : 1;
    shown = shown.map((row) => [value(row), row]).sort(([a], [b]) => sign * compare(a, b)).map(([, row]) => row);
  }
  cache.set(rows, { wanted, shown });
  return shown;
}

const texts = new Intl.Collator(undefined, { numeric: true });

function compare(a, b) {
  if (typeof a === "number" && typeof b === "number") return Number.isNaN(a) ? 1 : Number.isNaN(b) ? -1 : a - b;
  if (a === null || a === undefined || b === null || b === undefined) return (a ?? null) === null ? ((b ?? null) === null ? 0 : 1) : -1;
  return texts.compare(String(a), String(b));
}

/** Which of `total` rows of ROW_PX are in sight of the element `ref`: [first, last). */
export function useWindow(total) {
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
  if (total <= ALL_UP_TO) return { ref, first: 0, last: total, onScroll };
  return { ref, first: Math.min(first, Math.max(0, total - 1)), last: Math.min(last, total), onScroll };
}
