// Everything that the page takes from others: what is exported here is all that vendor.js has.
import { h } from "preact";
import htm from "htm";
import "uplot/dist/uPlot.min.css";

export { h, render, Fragment, createContext, createRef } from "preact";
export { useErrorBoundary, useState, useEffect, useLayoutEffect, useMemo, useRef, useCallback, useContext, useId } from "preact/hooks";
export {
  signal, computed, effect, batch, untracked, useSignal, useComputed, useSignalEffect,
} from "@preact/signals";
export const html = htm.bind(h);

export { default as uPlot } from "uplot";

export { EditorState, EditorSelection, Compartment, Prec, StateEffect, StateField, RangeSetBuilder } from "@codemirror/state";
export {
  EditorView, Decoration, ViewPlugin, keymap, placeholder, drawSelection, highlightSpecialChars, hoverTooltip, lineNumbers,
  tooltips,
} from "@codemirror/view";
export { history, historyKeymap, defaultKeymap, insertNewlineAndIndent } from "@codemirror/commands";
export {
  autocompletion, closeBrackets, closeBracketsKeymap, completionKeymap, startCompletion, acceptCompletion, closeCompletion,
  completionStatus, snippet,
} from "@codemirror/autocomplete";
export {
  HighlightStyle, bracketMatching, indentOnInput, syntaxHighlighting, syntaxTree, LanguageSupport, LRLanguage,
} from "@codemirror/language";
export { linter, lintKeymap, setDiagnostics, forceLinting } from "@codemirror/lint";
export { highlightSelectionMatches } from "@codemirror/search";
export { tags } from "@lezer/highlight";
export { PromQLExtension, promQLLanguage } from "@prometheus-io/codemirror-promql";
export { parser as promqlParser } from "@prometheus-io/lezer-promql";
