// Requests to the server, and what went wrong with one. Every request can be cancelled and has a deadline.
import { askCredential, authorization } from "./access.js";

const DEADLINE_MS = 130_000; // a little more than the longest query may take

/** What a request failed with. `message`: the server's words; `advice`: what a person can do. */
export class ApiError extends Error {
  constructor(message, { status = 0, kind = "", advice = "", retryAfter = null } = {}) {
    super(message);
    Object.assign(this, { name: "ApiError", status, kind, advice, retryAfter });
  }
}

/** Whether the request was cancelled by the person, which is no failure. */
export const isCancelled = (error) => error?.name === "AbortError";

/** The address of a path of the API ("api/v1/query"), also behind a proxy that serves this page under a prefix. */
export function address(path, query = {}) {
  const url = new URL(path.replace(/^\//, ""), document.baseURI);
  url.hash = "";
  url.search = form(query).toString();
  return url;
}

/** {name: value, or array of values; null and undefined are left out} as URLSearchParams. */
export function form(query) {
  const fields = new URLSearchParams();
  for (const [name, value] of Object.entries(query)) {
    for (const one of Array.isArray(value) ? value : [value]) {
      if (one !== null && one !== undefined) fields.append(name, String(one));
    }
  }
  return fields;
}

/** The response to a request, whatever its status but for 401, which asks for a credential and tries again.
 * `query`: parameters in the address; `body`: URLSearchParams, text or bytes; `json`: a body as JSON;
 * `signal`: cancels; `deadline`: in ms, 0 for none (a stream). Throws ApiError when there is no response. */
export async function fetched(method, path, { query, body, json, headers = {}, signal, deadline = DEADLINE_MS } = {}) {
  for (;;) {
    const controller = new AbortController();
    const cancel = () => controller.abort(signal.reason);
    if (signal?.aborted) cancel();
    signal?.addEventListener("abort", cancel, { once: true });
    let late = false;
    const timer = deadline && setTimeout(() => { late = true; controller.abort(); }, deadline);
    try {
      const used = authorization.value;
      const response = await fetch(address(path, query), {
        method,
        body: json === undefined ? body : JSON.stringify(json),
        headers: {
          ...(json === undefined ? {} : { "Content-Type": "application/json" }),
          ...(used ? { Authorization: used } : {}),
          ...headers,
        },
        credentials: "omit", // else the browser asks for a password with a window of its own
        cache: "no-store",
        signal: controller.signal,
      });
      if (response.status !== 401) return response;
      const why = await failure(response);
      if (authorization.value === used && !(await askCredential(why.message))) throw why;
    } catch (error) {
      if (late) throw new ApiError(`no answer to ${path} within ${deadline / 1000} s`, { advice: "Try again, or ask for less." });
      if (error instanceof ApiError || isCancelled(error)) throw error;
      throw new ApiError(`the server at ${location.host} does not answer`, {
        kind: "unreachable",
        advice: "Is it running, and can this machine reach it? What is shown is what it said last.",
      });
    } finally {
      clearTimeout(timer);
      signal?.removeEventListener("abort", cancel);
    }
  }
}

/** The JSON that a request answers, with `seconds` (until it was read) and `bytes` (of its text). Options: as `fetched`.
 * Throws ApiError for an error in the envelope of either kind. */
export async function request(method, path, options = {}) {
  const started = performance.now();
  const response = await fetched(method, path, options);
  if (!response.ok) throw await failure(response);
  const text = await response.text();
  const answer = text ? JSON.parse(text) : {};
  return { answer, seconds: (performance.now() - started) / 1000, bytes: text.length, headers: response.headers };
}

/** `data` of a Prometheus envelope. */
export async function read(path, query = {}, options = {}) {
  return (await request("GET", path, { query, ...options })).answer.data;
}

/** The error that a response with a status of 400 and more says. */
export async function failure(response) {
  let said = {};
  const text = await response.text().catch(() => "");
  try {
    said = JSON.parse(text);
  } catch {
    said = { error: text.trim().slice(0, 500) };
  }
  const message = said.error ?? said.message ?? `status ${response.status}`;
  const retryAfter = Number(response.headers.get("Retry-After")) || null;
  return new ApiError(message, {
    status: response.status,
    kind: said.errorType ?? "",
    retryAfter,
    advice: adviceOn(response.status, retryAfter),
  });
}

function adviceOn(status, retryAfter) {
  if (status === 401 || status === 403) return "Give a credential that may do this: the key at the top right.";
  if (status === 404) return "It may have been deleted, or the page is of another version than the server: reload it.";
  if (status === 422) return "Ask for less: a shorter range, a longer step, fewer series.";
  if (status === 503) return retryAfter ? `Try again in ${retryAfter} s.` : "Try again in a moment.";
  if (status >= 500) return "The server's log has the reason.";
  return "";
}
