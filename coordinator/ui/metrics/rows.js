// The queries of the tab as they are worked on: what is typed, and what was answered. What the link has is the rest.
import { signal } from "../vendor.js";

export const IDLE = { result: null, remarks: {}, error: null, isBusy: false, seconds: 0, bytes: 0, series: 0, samples: 0, times: null };

let last = 0;

/** {id, draft: signal of the text in the editor, expr: the text that the link had last, answer: signal, editor: what
 * the editor offers to others (`focus`, `select`, `insert`), null until it is shown}. */
function newRow(expr) {
  return { id: (last += 1), draft: signal(expr), expr, answer: signal(IDLE), editor: null };
}

const rows = [];

/** A row for each query: the text in the editor is replaced when another one comes from the link. */
export function rowsOf(queries) {
  rows.length = Math.min(rows.length, queries.length);
  queries.forEach(({ expr }, index) => {
    const row = (rows[index] ??= newRow(expr));
    if (row.expr !== expr) row.draft.value = row.expr = expr;
  });
  return [...rows];
}

/** The queries with what is typed. The rows are from then on taken as run with it. */
export function committed(queries) {
  return queries.map((query, index) => ({ ...query, expr: (rows[index].expr = rows[index].draft.value.trim()) }));
}

/** Puts a row for a query at a place, before the link has it. */
export const insertRow = (index, expr) => rows.splice(index, 0, newRow(expr));

export const removeRow = (index) => rows.splice(index, 1);

/** Takes away the text of a row, also what the link has not had yet. */
export function clearRow(index) {
  rows[index].draft.value = rows[index].expr = "";
}

export function moveRow(from, to) {
  rows.splice(to, 0, ...rows.splice(from, 1));
}
