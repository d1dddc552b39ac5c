// Asks for a token, or a name and a password.
import { html, useSignal } from "../vendor.js";
import { asked, authorization, basic, bearer, forget, give, kinds } from "../base/access.js";
import { Dialog } from "../base/dialog.js";

const LABELS = { token: "Token", password: "Name and password" };
const CHARS_MAX = 4096;

export function Credential({ onClose }) {
  const chosen = useSignal("");
  const token = useSignal("");
  const name = useSignal("");
  const password = useSignal("");
  const kind = kinds.value.includes(chosen.value) ? chosen.value : kinds.value[0];
  const fault = kind === "token" ? faultOfToken(token.value.trim()) : faultOfName(name.value);
  const isComplete = !fault && Boolean(kind === "token" ? token.value.trim() : name.value);
  function use(event) {
    event.preventDefault();
    if (!isComplete) return;
    give(kind === "token" ? bearer(token.value) : basic(name.value, password.value));
    onClose();
  }
  const field = (label, own, type) => html`<label>${label}<input type=${type} autocomplete="off" spellcheck=${false} maxlength=${CHARS_MAX}
    autofocus value=${own.value} onInput=${(event) => { own.value = event.target.value; }} /></label>`;
  return html`<${Dialog} title="Credential" onClose=${() => { give(null); onClose(); }}>
    <form class="stack" onSubmit=${use}>
      ${asked.value && html`<p role="alert">${asked.value}</p>`}
      ${kinds.value.length > 1 && html`<div class="choices" role="radiogroup" aria-label="Kind of credential">
        ${kinds.value.map((value) => html`<label><input type="radio" name="kind" checked=${kind === value}
          onChange=${() => { chosen.value = value; }} /> ${LABELS[value]}</label>`)}
      </div>`}
      ${kind === "token"
        ? field("Token", token, "password")
        : [field("Name", name, "text"), field("Password", password, "password")]}
      ${fault && html`<p class="problem" role="alert">${fault}</p>`}
      <p class="hint">It stays in the memory of this tab: a reload asks again.</p>
      <footer>
        ${authorization.value && html`<button type="button" onClick=${() => { forget(); onClose(); }}>Forget the one in use</button>`}
        <button type="submit" class="main" disabled=${!isComplete}>Use it</button>
      </footer>
    </form>
  <//>`;
}

// What a header cannot carry would fail as if the server were not there.
const faultOfToken = (token) => (/^[\x21-\x7e]*$/.test(token) ? "" : "A token has letters, digits and signs of ASCII, and no spaces.");
const faultOfName = (name) => (name.includes(":") ? "A name has no colon." : "");
