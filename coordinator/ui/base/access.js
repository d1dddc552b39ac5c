// The credential of this tab. It is kept in memory only: a reload asks again, and nothing is stored.
import { signal } from "../vendor.js";

/** The value of the header Authorization, "" without one. */
export const authorization = signal("");
/** What the dialog has to say while it waits for a credential: null when it is not asked for. */
export const asked = signal(null);

let answer = null;
let waiting = null;

/** Ask for a credential, once for all requests that wait. Resolves to whether one was given. `why`: the server's words. */
export function askCredential(why) {
  if (!waiting) {
    waiting = new Promise((resolve) => { answer = resolve; });
    asked.value = why || "This server asks for a credential.";
  }
  return waiting;
}

/** Called by the dialog. `value`: of the header Authorization, or null when the person does not give one. */
export function give(value) {
  if (value !== null) authorization.value = value;
  asked.value = null;
  answer?.(value !== null);
  answer = waiting = null;
}

export const bearer = (token) => `Bearer ${token.trim()}`;

export function basic(name, password) {
  const bytes = new TextEncoder().encode(`${name}:${password}`);
  return `Basic ${btoa(String.fromCharCode(...bytes))}`;
}
