// A record as it is shown: what its value is, and one line of it.
import { bytesOf } from "./octets.js";

const LINE_CHARACTERS = 300;
const encoder = new TextEncoder();

/** The record of a row. Rows of a tail are texts until they are looked at. */
export function recordOf(row) {
  row.record ??= JSON.parse(row.raw);
  return row.record;
}

/** Whether only the beginning of the value is there. */
export const isCut = (record) => record.valueBytes !== undefined;
export const isBinary = (record) => record.value !== undefined;

/** Bytes of the whole value. */
export function sizeOf(record) {
  return record.valueBytes ?? shownBytes(record);
}

/** Bytes of the part of the value that is there. */
export function shownBytes(record) {
  if (isBinary(record)) return (record.value.length / 4) * 3 - (record.value.endsWith("==") ? 2 : record.value.endsWith("=") ? 1 : 0);
  return encoder.encode(record.text).length;
}

/** The beginning of the value, as one line. */
export function line(record) {
  if (record.tombstone) return "";
  if (!isBinary(record)) return record.text.slice(0, LINE_CHARACTERS).replace(/\s+/g, " ");
  const begin = bytesOf(record.value.slice(0, 64));
  return [...begin.subarray(0, 32)].map((octet) => octet.toString(16).padStart(2, "0")).join(" ");
}

/** A number that JavaScript cannot hold, as it is written. */
export class Literal {
  constructor(source) {
    this.source = source;
  }
}

/** The value as JSON: {json}, or null if it is cut or is none. Numbers keep all their digits. */
export function jsonOf(record) {
  if (isBinary(record) || isCut(record) || record.tombstone || !/^\s*["[{\dtfn-]/.test(record.text)) return null;
  try {
    if (!/\d{16}|[eE]/.test(record.text)) return { json: JSON.parse(record.text) };
    return { json: JSON.parse(record.text, exactly) };
  } catch {
    return null;
  }
}

function exactly(name, value, context) {
  const isExact = typeof value !== "number" || !context || (Number.isFinite(value) && String(value) === context.source);
  return isExact ? value : new Literal(context.source);
}
