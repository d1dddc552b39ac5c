// Asks for a token, or a name and a password.
import { html, useSignal } from "../vendor.js";
import { asked, authorization, basic, bearer, give } from "../base/access.js";
import { Dialog } from "../base/dialog.js";

export function Credential({ onClose }) {
  const way = useSignal("token");
  const token = useSignal("");
  const name = useSignal("");
  const password = useSignal("");
  const isUsed = Boolean(authorization.value);
  const close = () => { give(null); onClose(); };
  const isComplete = way.value === "token" ? token.value.trim() : name.value;
  function use(event) {
    event.preventDefault();
    if (!isComplete) return;
    give(way.value === "token" ? bearer(token.value) : basic(name.value, password.value));
    onClose();
  }
  function forget() {
    authorization.value = "";
    close();
  }
  const field = (label, own, type) => html`<label>${label}<input type=${type} autocomplete="off" autofocus value=${own.value}
    onInput=${(event) => { own.value = event.target.value; }} /></label>`;
  return html`<${Dialog} title="Credential" onClose=${close}>
    <form class="stack" onSubmit=${use}>
      ${asked.value && html`<p role="alert">${asked.value}</p>`}
      <div class="choices" role="radiogroup" aria-label="Kind of credential">
        ${[["token", "Token"], ["password", "Name and password"]].map(([value, label]) => html`<label><input type="radio" name="way"
          checked=${way.value === value} onChange=${() => { way.value = value; }} /> ${label}</label>`)}
      </div>
      ${way.value === "token"
        ? field("Token", token, "password")
        : [field("Name", name, "text"), field("Password", password, "password")]}
      <p class="hint">It stays in the memory of this tab: a reload asks again.</p>
      <footer>
        ${isUsed && html`<button type="button" onClick=${forget}>Forget the one in use</button>`}
        <button type="submit" class="main" disabled=${!isComplete}>Use it</button>
      </footer>
    </form>
  <//>`;
}
