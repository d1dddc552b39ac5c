// The colours of the editor: those of styles/colours.css, which reach into a shadow root.
import { EditorView, HighlightStyle, tags } from "../vendor.js";

export const look = EditorView.theme({
  "&": { border: "1px solid var(--line)", borderRadius: "5px", background: "var(--ground)", color: "var(--text)", fontSize: "14px" },
  "&.cm-focused": { outline: "2px solid var(--accent)", outlineOffset: "0" },
  ".cm-scroller": { fontFamily: 'ui-monospace, "SF Mono", Menlo, Consolas, "DejaVu Sans Mono", monospace', lineHeight: "1.5", maxHeight: "40vh" },
  ".cm-content": { padding: "5px 0", caretColor: "var(--text)" },
  ".cm-cursor": { borderLeftColor: "var(--text)" },
  ".cm-placeholder": { color: "var(--faint)" },
  "& > .cm-scroller > .cm-selectionLayer .cm-selectionBackground, &.cm-focused > .cm-scroller > .cm-selectionLayer .cm-selectionBackground": { background: "var(--selected)" },
  ".cm-matchingBracket, &.cm-focused .cm-matchingBracket": { background: "var(--sunken)", outline: "1px solid var(--line)" },
  ".cm-nonmatchingBracket, &.cm-focused .cm-nonmatchingBracket": { background: "none", color: "var(--bad)" },
  ".cm-part": { background: "var(--mark)" },
  ".cm-tooltip": { border: "1px solid var(--line)", background: "var(--raised)", color: "var(--text)", maxWidth: "min(40rem, 95vw)" },
  ".cm-tooltip.cm-tooltip-autocomplete > ul": { fontFamily: "inherit", maxHeight: "16em" },
  ".cm-tooltip.cm-tooltip-autocomplete > ul > li": { padding: "2px 8px" },
  ".cm-tooltip-autocomplete ul li[aria-selected]": { background: "var(--accent)", color: "var(--on-accent)" },
  ".cm-completionDetail": { color: "var(--faint)", fontStyle: "normal" },
  "li[aria-selected] .cm-completionDetail": { color: "inherit" },
  ".cm-tooltip.cm-completionInfo": { padding: "4px 8px" },
  ".cm-diagnostic": { padding: "4px 8px", whiteSpace: "pre-wrap" },
  ".cm-diagnostic-error": { borderLeft: "4px solid var(--bad)" },
  ".cm-diagnostic-warning": { borderLeft: "4px solid var(--warn)" },
  ".cm-diagnostic-info": { borderLeft: "4px solid var(--accent)" },
  ".cm-lintRange-error": { backgroundImage: "none", textDecoration: "underline wavy var(--bad)" },
  ".cm-lintRange-warning": { backgroundImage: "none", textDecoration: "underline wavy var(--warn)" },
  ".cm-lintRange-info": { backgroundImage: "none", textDecoration: "underline dotted var(--accent)" },
});

export const colours = HighlightStyle.define([
  { tag: tags.function(tags.variableName), color: "var(--code-function)" },
  { tag: [tags.operatorKeyword, tags.modifier, tags.logicOperator], color: "var(--code-keyword)" },
  { tag: tags.labelName, color: "var(--code-label)" },
  { tag: tags.string, color: "var(--code-string)" },
  { tag: tags.number, color: "var(--code-number)" },
  { tag: tags.comment, color: "var(--faint)", fontStyle: "italic" },
]);
