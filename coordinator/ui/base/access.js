// The credential of this tab. It is kept in memory only: a reload asks again, and nothing is stored.
import { batch, signal } from "../vendor.js";

/** The value of the header Authorization, "" without one. */
export const authorization = signal("");
/** What the dialog has to say while it waits for a credential: null when it is not asked for. */
export const asked = signal(null);
/** The kinds of credential that the server knows, as far as it has said so: of "token" and "password". */
export const kinds = signal(["token", "password"]);

let answer = null;
let waiting = null;
let isDeclined = false; // then requests fail, and the dialog comes by its button only: most requests repeat themselves

/** Ask for a credential, once for all requests that wait. Resolves to whether one was given. `why`: what was wrong with
 * the one that was used, "" if there was none; `challenge`: the header WWW-Authenticate. */
export function askCredential(why, challenge = "") {
  if (isDeclined) return Promise.resolve(false);
  if (!waiting) {
    waiting = new Promise((resolve) => { answer = resolve; });
    const known = [["token", /bearer /i], ["password", /basic /i]].filter(([, scheme]) => scheme.test(challenge)).map(([kind]) => kind);
    batch(() => {
      if (known.length) kinds.value = known;
      asked.value = why || "This server asks for a credential.";
    });
  }
  return waiting;
}

/** Called by the dialog. `value`: of the header Authorization, or null when the person does not give one. */
export function give(value) {
  isDeclined = value === null;
  batch(() => {
    if (value !== null) authorization.value = value;
    asked.value = null;
  });
  answer?.(value !== null);
  answer = waiting = null;
}

/** From now on requests have no credential, and none is asked for. */
export function forget() {
  authorization.value = "";
  give(null);
}

export const bearer = (token) => `Bearer ${token.trim()}`;

export function basic(name, password) {
  const bytes = new TextEncoder().encode(`${name}:${password}`);
  return `Basic ${btoa(Array.from(bytes, (byte) => String.fromCharCode(byte)).join(""))}`;
}
