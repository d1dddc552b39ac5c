// A dialog over the page. The browser keeps the focus in it, closes it with Escape, and gives the focus back.
import { html, useId, useLayoutEffect, useRef } from "../vendor.js";

export function Dialog({ title, onClose, children, class: kind = "" }) {
  const ref = useRef(null);
  const isOver = useRef(false);
  const isPressedOutside = useRef(false);
  const id = useId();
  useLayoutEffect(() => {
    const dialog = ref.current;
    dialog.showModal();
    return () => {
      isOver.current = true; // what closes it from now on is no doing of the person
      dialog.close();
    };
  }, []);
  const isOutside = (event) => event.target === ref.current;
  return html`<dialog ref=${ref} class=${kind} aria-labelledby=${id} onClose=${() => { if (!isOver.current) onClose(); }}
      onCancel=${(event) => { if (!isOutside(event)) return; event.preventDefault(); onClose(); }}
      onPointerDown=${(event) => { isPressedOutside.current = isOutside(event); }}
      onClick=${(event) => { if (isOutside(event) && isPressedOutside.current) onClose(); }}>
    <div class="dialog-body">
      <header><h2 id=${id}>${title}</h2>
        <button type="button" class="quiet" aria-label="Close" onClick=${onClose}>✕</button></header>
      ${children}
    </div>
  </dialog>`;
}

/** A question before something that cannot be undone. */
export function Confirm({ title, action, onConfirm, onClose, children }) {
  return html`<${Dialog} title=${title} onClose=${onClose}>
    <div>${children}</div>
    <footer><button type="button" onClick=${onClose}>Leave it</button>
      <button type="button" class="danger" onClick=${() => { onClose(); onConfirm(); }}>${action}</button></footer>
  <//>`;
}
