// Values of attributes as text. A text may have a megabyte: it is cut where it would only fill the screen.
import { html } from "../vendor.js";

const LINE_CHARS_MAX = 200;
const CLICKED_CHARS_MAX = 1000;
const FIELDS_MAX = 256; // names that a search takes

/** A value on one line. */
export function oneLine(value) {
  if (value === null || value === undefined) return "";
  if (typeof value !== "string") return cut(JSON.stringify(value));
  return cut(value.slice(0, LINE_CHARS_MAX + 1).replace(/\s+/g, " ") || '""');
}

const cut = (text) => (text.length > LINE_CHARS_MAX ? `${text.slice(0, LINE_CHARS_MAX)}…` : text);

/** Why a value cannot be put into a filter by a click, "" if it can: the filter is in the link, and the numbers of a browser
 * are exact up to 2^53. */
export function whyNot(value) {
  if (typeof value === "string" && value.length > CLICKED_CHARS_MAX) return "This text is too long for a link.";
  if (Number.isInteger(value) && !Number.isSafeInteger(value)) return "A browser does not know this number exactly: write it into the filter's JSON instead.";
  return "";
}

/** The names of attributes to ask for: all but the embedding. */
export const namesOf = (attributes) => attributes.slice(0, FIELDS_MAX).map((one) => one.name);

/** An attribute of a vector, undefined if it has none of that name, such as "constructor", which all objects inherit. */
export const attributeOf = ({ attributes }, name) => (Object.hasOwn(attributes, name) ? attributes[name] : undefined);

/** Columns of a table of vectors [{id, attributes}]: the id, and those of the attributes that one of them has. */
export function columnsOf(rows, names, options = {}) {
  const present = names.filter((name) => rows.some((row) => attributeOf(row, name) !== undefined));
  return [
    { title: "Id", value: (row) => row.id, render: (row) => html`<span class="mono">${row.id}</span>`, ...options },
    ...present.slice(0, 30).map((name) => ({
      title: name,
      ...options,
      value: (row) => { const own = attributeOf(row, name); return typeof own === "number" ? own : oneLine(own); },
      render: (row) => oneLine(attributeOf(row, name)),
      align: rows.every((row) => ["number", "undefined"].includes(typeof attributeOf(row, name))) ? "end" : undefined,
    })),
  ];
}

/** Numbers from what a person pasted: a JSON array, or numbers with commas or blanks between them.
 * {numbers, error}: the error says what is wrong. */
export function pastedVector(text, dimension) {
  const trimmed = text.trim();
  if (!trimmed) return { numbers: null, error: "paste a vector: a JSON array of numbers" };
  let list;
  if (trimmed.startsWith("[")) {
    try {
      list = JSON.parse(trimmed);
    } catch (error) {
      return { numbers: null, error: `this is not a JSON array: ${error.message}` };
    }
  } else {
    list = trimmed.split(/[\s,;]+/).filter(Boolean).map((one) => (Number.isNaN(Number(one)) ? one : Number(one)));
  }
  const wrong = list.findIndex((one) => typeof one !== "number" || !Number.isFinite(one));
  if (wrong >= 0) return { numbers: null, error: `component ${wrong} is ${JSON.stringify(list[wrong]).slice(0, 60)}; every component is a number` };
  if (list.length !== dimension) return { numbers: null, error: `this vector has ${list.length} components; those of this collection have ${dimension}` };
  return { numbers: list, error: "" };
}
