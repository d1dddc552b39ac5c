// What is wrong with a text, or remarkable, shown at its place in the editor.
import { completionStatus, Decoration, EditorView, setDiagnostics, StateEffect, StateField } from "../vendor.js";
import { form, isCancelled, request } from "../base/api.js";

const QUIET_MS = 400; // after the last key, until the parser is asked
const found = new WeakMap(); // of an editor: what the parser said of its text {text, message}

/** Asks the parser some time after the last call. `onResult(view, message)`: "" when the text is right. */
export function checked(onResult) {
  let timer = 0;
  let controller = null;
  async function ask(view) {
    const text = view.state.doc.toString();
    if (completionStatus(view.state) === "active") return later(view); // a word that is not finished
    controller = new AbortController();
    const message = text.trim() ? await faultOf(text, controller.signal) : "";
    if (message === null || view.state.doc.toString() !== text) return undefined;
    found.set(view, { text, message });
    return onResult(view, message);
  }
  function later(view) {
    controller?.abort();
    clearTimeout(timer);
    timer = setTimeout(() => ask(view), QUIET_MS);
  }
  later.cancel = () => {
    controller?.abort();
    clearTimeout(timer);
  };
  return later;
}

/** What the parser says of a text: "" if it is right, null if it could not be asked. */
async function faultOf(query, signal) {
  try {
    await request("POST", "api/v1/parse_query", { body: form({ query }), signal });
    return "";
  } catch (error) {
    return isCancelled(error) || error.kind !== "bad_data" ? null : error.message;
  }
}

/** Underlines what the parser says of this text, and the places of the last answer's error and remarks. */
export function showDiagnostics(view, { place, remarks }) {
  const { doc } = view.state;
  const fault = found.get(view);
  const isOfText = !fault || fault.text === doc.toString();
  const messages = [
    ...(fault && isOfText && fault.message ? [["error", fault.message]] : place && isOfText ? [["error", place.message]] : []),
    ...(remarks?.warnings ?? []).map((text) => ["warning", text]),
    ...(remarks?.infos ?? []).map((text) => ["info", text]),
  ];
  const shown = messages.flatMap(([severity, message]) => {
    const match = severity === "error" ? /(\d+):(\d+): parse error/.exec(message) : /\((\d+):(\d+)\)$/.exec(message);
    return match ? [{ ...offsetAt(doc, Number(match[1]), Number(match[2])), severity, message }] : [];
  });
  view.dispatch(setDiagnostics(view.state, shown));
}

/** {from, to} of what stands at a line and column, which count characters from 1: to the end of the word, and never empty
 * unless the text is. */
export function offsetAt(doc, line, column) {
  const { from, to, text } = doc.line(Math.min(Math.max(line, 1), doc.lines));
  const start = Math.min(from + [...text].slice(0, column - 1).join("").length, to);
  const word = /^[\w:]+|^[^]/u.exec(text.slice(start - from))?.[0] ?? "";
  return word ? { from: start, to: start + word.length } : { from: Math.max(from, start - 1), to: start };
}

const setPart = StateEffect.define();

/** The part of the text that somebody points at, until the text changes. */
export const marks = StateField.define({
  create: () => Decoration.none,
  update(value, transaction) {
    const effect = transaction.effects.find((one) => one.is(setPart));
    if (effect) return effect.value;
    return transaction.docChanged ? Decoration.none : value;
  },
  provide: (field) => EditorView.decorations.from(field),
});

/** Marks the characters [from, to); nothing when `to` is not above `from`. */
export function markPart(view, from, to) {
  const end = Math.min(to ?? 0, view.state.doc.length);
  view.dispatch({ effects: setPart.of(end > from ? Decoration.set([Decoration.mark({ class: "cm-part" }).range(from, end)]) : Decoration.none) });
}
