// Everything that the page takes from others: what is exported here is all that vendor.js has.
import { h } from "preact";
import htm from "htm";
import "uplot/dist/uPlot.min.css";

export { render } from "preact";
export { useErrorBoundary, useEffect, useLayoutEffect, useMemo, useRef, useId } from "preact/hooks";
export { signal, computed, batch, useSignal, useComputed } from "@preact/signals";
export const html = htm.bind(h);

export { default as uPlot } from "uplot";

export { EditorState, Prec, StateEffect, StateField } from "@codemirror/state";
export {
  EditorView, Decoration, keymap, placeholder, drawSelection, highlightSpecialChars, tooltips,
} from "@codemirror/view";
export { history, historyKeymap, defaultKeymap, insertNewlineAndIndent } from "@codemirror/commands";
export {
  autocompletion, closeBrackets, closeBracketsKeymap, acceptCompletion, completionStatus,
} from "@codemirror/autocomplete";
export { HighlightStyle, bracketMatching, syntaxHighlighting } from "@codemirror/language";
export { setDiagnostics } from "@codemirror/lint";
export { tags } from "@lezer/highlight";
export { PromQLExtension, promQLLanguage } from "@prometheus-io/codemirror-promql";
export { parser as promqlParser } from "@prometheus-io/lezer-promql";
