// Requests to the server, and what went wrong with one. Every request can be cancelled and has a deadline.
import { askCredential, authorization } from "./access.js";
import { pause } from "./pause.js";

const LONG_CHARS = 100_000; // of an answer: to read it takes some milliseconds, and to show it as many again
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
  const url = new URL(path.replace(/^\/+/, "") || ".", document.baseURI);
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
 * `signal`: cancels; `deadline`: in ms, 0 for none (a stream). Both count until the body has been read.
 * Throws ApiError when there is no response. */
export async function fetched(method, path, { query, body, json, headers = {}, signal, deadline = DEADLINE_MS } = {}) {
  for (;;) {
    const used = authorization.value;
    const ends = [signal, deadline && AbortSignal.timeout(deadline)].filter(Boolean);
    const asking = fetch(address(path, query), {
      method,
      body: json === undefined ? body : JSON.stringify(json),
      headers: {
        "X-Requested-With": "page", // else the browser asks for a password with a window of its own
        ...(json === undefined ? {} : { "Content-Type": "application/json" }),
        ...(used ? { Authorization: used } : {}),
        ...headers,
      },
      credentials: "same-origin", // certificates of clients, and cookies of a proxy in between
      cache: "no-store",
      signal: AbortSignal.any(ends),
    });
    const response = await asking.catch((error) => { throw explained(error, path, { signal, deadline }); });
    if (response.status !== 401) return response;
    const why = await failure(response);
    signal?.throwIfAborted(); // then the server's words may not have been read
    const isGiven = authorization.value !== used || (await askCredential(used && why.message, response.headers.get("WWW-Authenticate") ?? ""));
    signal?.throwIfAborted();
    if (!isGiven) throw why;
  }
}

/** Why there is no answer, or not all of it, as an error for people. */
function explained(error, path, { signal, deadline = DEADLINE_MS }, what = `the server at ${location.host} does not answer`) {
  if (signal?.aborted) return isCancelled(error) ? error : new DOMException("cancelled", "AbortError");
  if (["TimeoutError", "AbortError"].includes(error.name)) { // while a body is read, browsers call either AbortError
    return new ApiError(`no answer to ${path} within ${deadline / 1000} s`, { kind: "timeout", advice: "Try again, or ask for less." });
  }
  return new ApiError(what, {
    kind: "unreachable",
    advice: "Is it running, and can this machine reach it? What is shown is what it said last.",
  });
}

/** The JSON that a request answers, with `seconds` (until it was read) and `bytes` (of its text). Options: as `fetched`.
 * Throws ApiError for an error in the envelope of either kind. */
export async function request(method, path, options = {}) {
  const started = performance.now();
  const response = await fetched(method, path, options);
  if (!response.ok) throw await failure(response);
  const text = await response.text().catch((error) => {
    throw explained(error, path, options, `the answer to ${path} broke off`);
  });
  const seconds = (performance.now() - started) / 1000;
  const answer = text ? parsed(text, path) : {};
  if (text.length > LONG_CHARS) await pause();
  options.signal?.throwIfAborted();
  return { answer, seconds, bytes: text.length, headers: response.headers };
}

function parsed(text, path) {
  try {
    return JSON.parse(text);
  } catch {
    throw new ApiError(`the answer to ${path} is not of this service; it begins with ${JSON.stringify(text.slice(0, 60))}`, {
      kind: "unreadable",
      advice: "Perhaps a proxy in between wants you to log in: reload the page.",
    });
  }
}

/** `data` of a Prometheus envelope. */
export async function read(path, query = {}, options = {}) {
  return (await request("GET", path, { query, ...options })).answer.data;
}

/** The error that a response with a status of 400 and more says. */
export async function failure(response) {
  const text = await response.text().catch(() => "");
  const said = envelope(text);
  const isPlain = (response.headers.get("Content-Type") ?? "").startsWith("text/plain");
  const plain = isPlain && text.trim().slice(0, 500);
  const retryAfter = Number(response.headers.get("Retry-After")) || null;
  return new ApiError(said?.error ?? said?.message ?? (plain || `status ${response.status} ${response.statusText}`.trim()), {
    status: response.status,
    kind: said?.errorType ?? "",
    retryAfter,
    advice: said || plain ? adviceOn(response.status, retryAfter) : "A proxy in between may say so: is the server behind it running?",
  });
}

/** The envelope of an error of either area, null for what is none. */
function envelope(text) {
  try {
    const said = JSON.parse(text);
    return typeof (said?.error ?? said?.message) === "string" ? said : null;
  } catch {
    return null;
  }
}

function adviceOn(status, retryAfter) {
  if (status === 401) return "Give a credential: the key at the top right.";
  if (status === 403 && authorization.value) return "Another credential may do this: the key at the top right.";
  if (status === 404) return "It may have been deleted, or the page is of another version than the server: reload it.";
  if (status === 422) return "Ask for less: a shorter range, a longer step, fewer series.";
  if (status === 503) return retryAfter ? `Try again in ${retryAfter} s.` : "Try again in a moment.";
  if (status >= 500) return "The server's log has the reason.";
  return "";
}
