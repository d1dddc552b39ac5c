// Taking something out of the page: to the clipboard, or as a file.
import { html, useSignal } from "../vendor.js";

/** Offer a text or bytes as a file. */
export function save(name, content, type = "text/plain") {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([content], { type }));
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
}

/** Rows (arrays of values) as CSV (RFC 4180). A text that a spreadsheet would take for a formula is left as it is. */
export function csv(rows) {
  const cell = (value) => {
    const text = value === null || value === undefined ? "" : String(value);
    return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  };
  return rows.map((row) => `${row.map(cell).join(",")}\r\n`).join("");
}

/** A button that copies what `text()` returns, and says that it did. */
export function Copy({ text, label = "Copy", title }) {
  const done = useSignal("");
  async function copy() {
    const content = text();
    try {
      await navigator.clipboard.writeText(content);
      done.value = "Copied";
    } catch {
      done.value = copyBySelection(content) ? "Copied" : "The browser refuses";
    }
    setTimeout(() => { done.value = ""; }, 1500);
  }
  return html`<button class="quiet" title=${title} onClick=${copy}><span aria-live="polite">${done.value || label}</span></button>`;
}

// Without TLS, a browser has no clipboard for a page of another host.
function copyBySelection(content) {
  const area = document.createElement("textarea");
  area.value = content;
  const focused = document.activeElement;
  (focused?.closest("dialog") ?? document.body).append(area); // all but an open dialog is inert
  area.select();
  const isDone = document.execCommand("copy");
  area.remove();
  focused?.focus();
  return isDone;
}
