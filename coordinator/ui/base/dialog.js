// A dialog over the page. The browser keeps the focus in it, closes it with Escape, and gives the focus back.
import { html, useEffect, useId, useRef } from "../vendor.js";

export function Dialog({ title, onClose, children, class: kind = "" }) {
  const ref = useRef(null);
  const id = useId();
  useEffect(() => {
    const dialog = ref.current;
    dialog.showModal();
    return () => dialog.close();
  }, []);
  return html`<dialog ref=${ref} class=${kind} aria-labelledby=${id} onClose=${onClose}
      onCancel=${(event) => { event.preventDefault(); onClose(); }}
      onClick=${(event) => { if (event.target === ref.current) onClose(); }}>
    <div class="dialog-body">
      <header><h2 id=${id}>${title}</h2>
        <button class="quiet" aria-label="Close" onClick=${onClose}>✕</button></header>
      ${children}
    </div>
  </dialog>`;
}

/** A question before something that cannot be undone. */
export function Confirm({ title, action, onConfirm, onClose, children }) {
  return html`<${Dialog} title=${title} onClose=${onClose}>
    <div>${children}</div>
    <footer><button onClick=${onClose}>Leave it</button>
      <button class="danger" onClick=${() => { onClose(); onConfirm(); }}>${action}</button></footer>
  <//>`;
}
