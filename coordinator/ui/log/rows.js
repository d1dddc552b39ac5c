// The list of records: a line each, of which only those in sight are in the document.
import { html, useLayoutEffect, useRef, useSignal } from "../vendor.js";
import { bytes, time } from "../base/format.js";
import { Marked } from "./marks.js";
import { isBinary, isCut, line, recordOf, sizeOf } from "./records.js";
import { shortName } from "./selection.js";

const ROW_PX = 29; // as in styles/table.css
const ALL_UP_TO = 300; // rows: so few are all in the document, where the browser's own search finds them
const BEYOND = 10; // rows above and below those in sight
const BOTTOM_PX = 40;

/** `rows`: [{sequence, record or raw}], ascending. `chosen`: a sequence number; `onChoose(sequence)`. `isFollowing`: keep
 * the end in sight; `onLeave()`: the person looks elsewhere; `onBottom()`: and is back at the end. `isEnd`: new rows are
 * shown from their end, else from their beginning. */
export function Rows({ rows, chosen, onChoose, withKey, isFollowing = false, isEnd = false, onLeave, onBottom, empty, pattern }) {
  const { ref, first, last, onScroll } = useSight(rows.length, isFollowing, onLeave, onBottom);
  useSelectionWatch(ref, onLeave);
  useLayoutEffect(() => { if (isFollowing) ref.current.scrollTop = ref.current.scrollHeight; }, [rows, isFollowing]);
  useLayoutEffect(() => { if (!onLeave) ref.current.scrollTop = isEnd ? ref.current.scrollHeight : 0; }, [rows]);
  useLayoutEffect(() => { reveal(ref.current, rows, chosen); }, [chosen, onLeave ? null : rows]);
  const gap = (count) => count > 0 && html`<tr class="gap" aria-hidden="true"><td colspan="4" style=${{ height: `${count * ROW_PX}px` }}></td></tr>`;
  return html`<div class="table-scroll log-list ${isFollowing || onLeave ? "log-tail" : ""}" ref=${ref} onScroll=${onScroll} tabindex="0" role="region" aria-label="Records">
    <table aria-label="Records" aria-rowcount=${rows.length + 1}>
      <thead><tr><th scope="col" class="end">Sequence</th><th scope="col">Time</th>${withKey && html`<th scope="col">Key</th>`}<th scope="col" class="log-wide">Value</th></tr></thead>
      <tbody>
        ${gap(first)}
        ${rows.slice(first, last).map((row, index) => html`<${Row} key=${row.sequence} row=${row} number=${first + index + 2} withKey=${withKey}
          isChosen=${row.sequence === chosen} onChoose=${onChoose} pattern=${pattern} />`)}
        ${gap(rows.length - last)}
      </tbody>
    </table>
    ${!rows.length && html`<p class="hint">${empty}</p>`}
  </div>`;
}

function Row({ row, number, withKey, isChosen, onChoose, pattern }) {
  const record = recordOf(row);
  const choose = () => onChoose(row.sequence);
  return html`<tr class="choice" tabindex="0" aria-rowindex=${number} aria-current=${isChosen ? "true" : undefined} data-sequence=${row.sequence}
      onClick=${() => { if (!String(getSelection())) choose(); }}
      onKeyDown=${(event) => { if (event.key === "Enter" && event.target === event.currentTarget) choose(); }}>
    <td class="end">${row.sequence}</td>
    <td class="mono">${record.timeMs ? time(record.timeMs, { millis: true }) : "–"}</td>
    ${withKey && html`<td class="mono log-key">${shortName(record)}</td>`}
    <td class="mono"><${Value} record=${record} pattern=${pattern} /></td>
  </tr>`;
}

function Value({ record, pattern }) {
  if (record.tombstone) return html`<span class="tag">tombstone</span>`;
  const text = line(record);
  return html`${isBinary(record) && html`<span class="tag">binary</span> `}${isCut(record) && html`<span class="tag">${bytes(sizeOf(record))}</span> `}
    ${pattern && !isBinary(record) ? html`<${Marked} text=${text} pattern=${pattern} />` : text}`;
}

// Which rows are in the document, [first, last). While the end is followed, that is the end, wherever the scroll bar was.
function useSight(total, isFollowing, onLeave, onBottom) {
  const ref = useRef(null);
  const place = useSignal({ top: 0, height: 600 });
  const lastTop = useRef(0);
  useLayoutEffect(() => {
    const observer = new ResizeObserver(() => {
      place.value = { top: ref.current.scrollTop, height: ref.current.clientHeight || 600 };
      if (isFollowing) ref.current.scrollTop = ref.current.scrollHeight;
    });
    observer.observe(ref.current);
    return () => observer.disconnect();
  }, [isFollowing]);
  function onScroll({ currentTarget: list }) {
    const isUp = list.scrollTop < lastTop.current - 1;
    lastTop.current = list.scrollTop;
    const isBottom = list.scrollHeight - list.scrollTop - list.clientHeight < BOTTOM_PX;
    if (isUp && !isBottom) onLeave?.();
    if (!isUp && isBottom) onBottom?.();
    place.value = { top: list.scrollTop, height: list.clientHeight };
  }
  if (total <= ALL_UP_TO) return { ref, first: 0, last: total, onScroll };
  if (isFollowing) return { ref, first: Math.max(0, total - Math.ceil(place.peek().height / ROW_PX) - 1), last: total, onScroll };
  const first = Math.max(0, Math.floor(place.value.top / ROW_PX) - BEYOND);
  return { ref, first: Math.min(first, total), last: Math.min(total, Math.ceil((place.value.top + place.value.height) / ROW_PX) + BEYOND), onScroll };
}

// Text that is being selected must not move away.
function useSelectionWatch(ref, onLeave) {
  useLayoutEffect(() => {
    if (!onLeave) return undefined;
    const look = () => {
      const selection = getSelection();
      if (!selection.isCollapsed && ref.current?.contains(selection.anchorNode)) onLeave();
    };
    document.addEventListener("selectionchange", look);
    return () => document.removeEventListener("selectionchange", look);
  }, [onLeave]);
}

function reveal(list, rows, chosen) {
  const index = rows.findIndex((row) => row.sequence === chosen);
  if (index < 0) return;
  const head = list.querySelector("thead").offsetHeight;
  const top = index * ROW_PX;
  if (top < list.scrollTop) list.scrollTop = top;
  else if (top + ROW_PX + head > list.scrollTop + list.clientHeight) list.scrollTop = top + ROW_PX + head - list.clientHeight;
}
