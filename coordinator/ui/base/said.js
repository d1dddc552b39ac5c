// What was said at the last request of a poll.
import { html } from "../vendor.js";
import { Problem, Remarks } from "./remarks.js";

/** The error of the last request, its warnings and hints; and a sign while nothing has come yet. */
export function Said({ poll }) {
  const { value, error, again } = poll;
  const answer = value.value?.answer;
  return html`<${Problem} error=${error.value} onRetry=${again} />
    ${answer && html`<${Remarks} warnings=${answer.warnings} infos=${answer.infos} />`}
    ${!answer && !error.value && html`<p class="hint" role="status">Asking …</p>`}`;
}
