// Keeps a fault in a part of the page to this part.
import { html, useErrorBoundary } from "../vendor.js";
import { Problem } from "../base/remarks.js";

export function Fence({ children }) {
  const [fault, forget] = useErrorBoundary((error) => console.error(error));
  if (fault) return html`<${Problem} error=${new Error(`this part of the page failed: ${fault.message}`)} onRetry=${forget} />`;
  return children;
}
