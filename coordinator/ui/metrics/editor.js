// The editor of a query: CodeMirror in a shadow root, where its style sheets are objects, which the page's policy allows.
import {
  acceptCompletion, autocompletion, bracketMatching, closeBrackets, closeBracketsKeymap, completionStatus, defaultKeymap,
  drawSelection, EditorState, EditorView, highlightSpecialChars, history, historyKeymap, html, insertNewlineAndIndent, keymap,
  placeholder, Prec, promQLLanguage, syntaxHighlighting, tooltips, useEffect, useRef, useSignal,
} from "../vendor.js";
import { form, request } from "../base/api.js";
import { complete, prepare } from "./complete.js";
import { checked, marks, markPart, offsetAt, showDiagnostics } from "./diagnostics.js";
import { colours, look } from "./editor_look.js";

/** `row`: gets what is typed in `row.draft`, and in `row.editor` what others may do here: `focus()`, `select(line, column)`,
 * `mark(from, to)` (characters), `insert(text)`, `format()`. `place`: of the last error; `remarks`: of the last answer. */
export function Editor({ row, label, place, remarks, onRun }) {
  const host = useRef(null);
  const view = useRef(null);
  const fault = useSignal(""); // what the parser says of what is typed
  const current = useRef({});
  current.current = { onRun, place, remarks, label };
  useEffect(() => {
    const root = host.current.shadowRoot ?? host.current.attachShadow({ mode: "open" });
    const check = checked((made, message) => { fault.value = message; showDiagnostics(made, current.current); });
    view.current = new EditorView({
      root,
      parent: root,
      state: EditorState.create({ doc: row.draft.peek(), extensions: extensions(row, current, check) }),
    });
    row.editor = handleOf(view.current, fault);
    return () => {
      row.editor = null;
      check.cancel();
      view.current.destroy();
    };
  }, [row]);
  useEffect(() => { // a text that did not come from the keyboard
    const { state } = view.current;
    if (state.doc.toString().trim() === row.draft.value.trim()) return;
    view.current.dispatch({ changes: { from: 0, to: state.doc.length, insert: row.draft.value } });
  }, [row.draft.value]);
  useEffect(() => showDiagnostics(view.current, current.current), [place?.message, remarks]);
  useEffect(() => view.current.dispatch({}), [label]); // which takes over the label
  return html`<div class="editor-place"><div class="editor" ref=${host}></div>
    <p class="editor-fault" role="status">${place ? "" : fault.value}</p></div>`;
}

function extensions(row, current, check) {
  const run = () => { current.current.onRun(); return true; };
  return [
    look,
    promQLLanguage("PromQL"),
    syntaxHighlighting(colours),
    highlightSpecialChars(),
    history(),
    drawSelection(),
    bracketMatching(),
    closeBrackets(),
    EditorView.lineWrapping,
    EditorView.contentAttributes.of(() => ({ "aria-label": current.current.label, spellcheck: "false", autocapitalize: "off", autocorrect: "off" })),
    placeholder("An expression of PromQL: Enter runs it, Shift+Enter starts a line"),
    autocompletion({ override: [complete], activateOnTypingDelay: 0, updateSyncTime: 20, interactionDelay: 0, maxRenderedOptions: 120, icons: false }),
    tooltips({ position: "fixed" }),
    marks,
    keymap.of([{ key: "Tab", run: acceptCompletion }]),
    Prec.high(keymap.of([{ key: "Enter", run: (view) => completionStatus(view.state) !== "active" && run() }, { key: "Mod-Enter", run }, { key: "Shift-Enter", run: insertNewlineAndIndent }])),
    keymap.of([...closeBracketsKeymap, ...defaultKeymap, ...historyKeymap, { key: "Escape", run: leave }]),
    EditorView.updateListener.of((update) => {
      if (update.focusChanged && update.view.hasFocus) prepare();
      if (!update.docChanged) return;
      row.draft.value = update.state.doc.toString();
      check(update.view);
    }),
  ];
}

/** Leaves the text, so that the keys of the page count again. */
function leave(view) {
  view.contentDOM.blur();
  return true;
}

function handleOf(view, fault) {
  const select = (from, to = from) => {
    view.dispatch({ selection: { anchor: Math.min(from, view.state.doc.length), head: Math.min(to, view.state.doc.length) }, scrollIntoView: true });
    view.focus();
  };
  return {
    focus: () => view.focus(),
    select: (line, column) => {
      const { from, to } = offsetAt(view.state.doc, line, column);
      select(from, to);
    },
    mark: (from, to) => markPart(view, from, to),
    insert(text) {
      const { from, to } = view.state.selection.main;
      view.dispatch({ changes: { from, to, insert: text }, selection: { anchor: from + text.length } });
      view.focus();
    },
    async format() {
      const text = view.state.doc.toString();
      try {
        const { answer } = await request("POST", "api/v1/format_query", { body: form({ query: text }) });
        if (view.state.doc.toString() !== text) return; // somebody types on
        view.dispatch({ changes: { from: 0, to: view.state.doc.length, insert: answer.data } });
      } catch (error) {
        if (view.state.doc.toString() === text) fault.value = error.message;
      }
    },
  };
}
