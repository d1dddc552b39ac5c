// Work that a person can cancel while it goes on.
import { html, useEffect, useMemo, useSignal } from "../vendor.js";
import { Progress } from "../base/remarks.js";

/** `signal`: for requests, together with another signal if there is one; `isOver`: whether it was cancelled. The work is
 * cancelled as well when the component goes. */
export function useCancel() {
  const controller = useMemo(() => new AbortController(), []);
  const isOver = useSignal(false);
  const cancel = () => { isOver.value = true; controller.abort(); };
  useEffect(() => () => controller.abort(), []);
  return { signal: (other) => (other ? AbortSignal.any([controller.signal, other]) : controller.signal), isOver, cancel };
}

/** What is shown until there is an answer. */
export function Waiting({ label, work }) {
  if (work.isOver.value) return html`<p class="hint" role="status">Cancelled.</p>`;
  return html`<${Progress} label=${label} onCancel=${work.cancel} />`;
}
