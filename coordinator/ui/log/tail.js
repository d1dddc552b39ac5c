// The live tail: a stream of events that goes on where it was after a break, and a bounded number of the newest records.
import { signal } from "../vendor.js";
import { failure, fetched, isCancelled } from "../base/api.js";

export const KEPT_MAX = 5000;
const TAIL_BYTES = 1024; // of a value
const KEPT_CHARACTERS_MAX = 32_000_000;
const EVENT_CHARACTERS_MAX = 8_000_000;
const SHOWN_EVERY_MS = 100;
const PIECE_BYTES = 65_536;
const AT_ONCE_MS = 10; // of work, before the browser gets a turn
const SILENCE_MS = 45_000; // the server says something every 15 s
const BACKOFF_MS = 500;
const BACKOFF_MAX_MS = 10_000;
const WARNINGS_MAX = 20;

/** The newest of what came, at most KEPT_MAX rows {sequence, raw} of at most KEPT_CHARACTERS_MAX together. */
class Newest {
  rows = [];
  first = 0;
  characters = 0;

  /** Whether nothing had to go. */
  add(row) {
    this.rows.push(row);
    this.characters += row.raw?.length ?? 0;
    let isWhole = true;
    while (this.rows.length - this.first > KEPT_MAX || (this.characters > KEPT_CHARACTERS_MAX && this.rows.length - this.first > 1)) {
      this.characters -= this.rows[this.first].raw?.length ?? 0;
      this.rows[this.first++] = null;
      isWhole = false;
    }
    if (this.first > KEPT_MAX) {
      this.rows = this.rows.slice(this.first);
      this.first = 0;
    }
    return isWhole;
  }

  all() {
    return this.rows.slice(this.first);
  }
}

/** `query`: the parameters that select and search. `begin(signal)`: resolves to {rows: shown at first, start: the
 * sequence number from which on records are followed}. */
export class Tail {
  /** "connecting", "live", "waiting" (for the next attempt) or "over" (it failed for good). */
  state = signal("connecting");
  rows = signal([]);
  /** Whether new records are held back. */
  isPaused = signal(false);
  /** How many came while it is paused, and whether they are more than are kept. */
  meanwhile = signal(0);
  isTooMany = signal(false);
  perSecond = signal(0);
  problem = signal(null);
  retryMs = signal(0);
  warnings = signal([]);

  #query;
  #begin;
  #kept = new Newest();
  #held = new Newest();
  #start = null;
  #last = null; // the id of the last event
  #controller = new AbortController();
  #reader = null;
  #isStopped = false;
  #attempts = 0;
  #came = 0;
  #newWhilePaused = 0;
  #timers = [];
  #isDrawing = false;

  constructor(query, begin) {
    this.#query = query;
    this.#begin = begin;
    this.#timers.push(setInterval(() => {
      this.perSecond.value = this.#came;
      this.#came = 0;
    }, 1000));
    this.#run();
  }

  stop() {
    this.#isStopped = true;
    this.#timers.forEach(clearInterval);
    this.#disconnect();
  }

  pause() {
    this.isPaused.value = true;
  }

  /** Go on from where it was paused. Records that were too many to be held are read again. */
  resume() {
    if (!this.isPaused.value) return;
    this.isPaused.value = false;
    const held = this.#held.all();
    this.#held = new Newest();
    this.#newWhilePaused = this.meanwhile.value = 0;
    if (this.isTooMany.value) {
      this.isTooMany.value = false;
      this.#last = this.#kept.rows.at(-1)?.sequence ?? this.#start - 1;
      this.#reconnect();
    } else {
      held.forEach((row) => this.#kept.add(row));
    }
    this.#draw();
  }

  #disconnect() {
    this.#controller.abort();
    this.#reader?.cancel().catch(() => {});
  }

  #reconnect() {
    this.#attempts = 0;
    this.#disconnect();
  }

  async #run() {
    while (!this.#isStopped) {
      this.#controller = new AbortController();
      this.state.value = "connecting";
      try {
        await this.#connected();
      } catch (error) {
        if (this.#isStopped) return;
        if (isCancelled(error)) continue; // to read again what was too much, see `resume`
        this.problem.value = error;
        if (error.status >= 400 && error.status < 500 && error.status !== 429 && error.status !== 408) {
          this.state.value = "over";
          return;
        }
      }
      await this.#wait();
    }
  }

  async #wait() {
    const most = Math.min(BACKOFF_MAX_MS, BACKOFF_MS * 2 ** Math.min(this.#attempts, 10));
    this.retryMs.value = (this.problem.value?.retryAfter ?? 0) * 1000 || most * (0.5 + Math.random() / 2);
    this.#attempts += 1;
    this.state.value = "waiting";
    await new Promise((resolve) => { setTimeout(resolve, this.retryMs.value); });
  }

  async #connected() {
    const { signal: stopped } = this.#controller;
    if (this.#start === null) {
      const { rows, start } = await this.#begin(stopped);
      rows.forEach((row) => this.#kept.add(row));
      this.#start = start;
      this.#draw();
    }
    await this.#watched(async (watch) => {
      const response = await fetched("GET", "api/v1/log/tail", {
        query: { ...this.#query, encoding: "text", value_bytes: TAIL_BYTES, start_seq: this.#start },
        headers: { Accept: "text/event-stream", ...(this.#last === null ? {} : { "Last-Event-ID": String(this.#last) }) },
        signal: stopped,
        deadline: 0,
      });
      if (!response.ok) throw await failure(response);
      this.#reader = response.body.getReader();
      await this.#read(this.#reader, watch);
    });
  }

  // Ends the connection when nothing comes from it for SILENCE_MS. `work({silent})` sets `silent` to 0 when something comes.
  async #watched(work) {
    const watch = { silent: 0 };
    const own = this.#controller;
    const timer = setInterval(() => { if ((watch.silent += 1) > 3) own.abort(); }, SILENCE_MS / 3);
    try {
      await work(watch);
    } catch (error) {
      throw watch.silent > 3 ? new Error(`the server has said nothing for ${SILENCE_MS / 1000} s`) : error;
    } finally {
      clearInterval(timer);
      this.#reader?.cancel().catch(() => {});
    }
  }

  async #read(reader, watch) {
    const decoder = new TextDecoder();
    let text = "";
    let begun = performance.now();
    for (;;) {
      const { value, done } = await reader.read();
      this.#check();
      if (done) throw new Error("the connection ended");
      watch.silent = 0;
      for (let low = 0; low < value.length; low += PIECE_BYTES) {
        this.#check();
        text = this.#taken(text + decoder.decode(value.subarray(low, low + PIECE_BYTES), { stream: true }));
        if (text.length > EVENT_CHARACTERS_MAX) throw new Error(`an event has more than ${EVENT_CHARACTERS_MAX} characters`);
        if (performance.now() - begun > AT_ONCE_MS) {
          await new Promise((resolve) => { setTimeout(resolve); });
          begun = performance.now();
        }
      }
      this.#live();
    }
  }

  #check() {
    if (this.#isStopped || this.#controller.signal.aborted) throw new DOMException("stopped", "AbortError");
  }

  #live() {
    if (this.state.value === "live") return;
    this.state.value = "live";
    this.problem.value = null;
    this.#attempts = 0;
  }

  /** Takes the events of the text; returns the rest, of which the end has not come yet. */
  #taken(text) {
    let at = 0;
    for (let end = text.indexOf("\n\n"); end >= 0; end = text.indexOf("\n\n", at)) {
      this.#event(text, at, end);
      at = end + 2;
    }
    this.#draw();
    return text.slice(at);
  }

  #event(text, begin, end) {
    const data = text.indexOf("\ndata: ", begin);
    if (text.startsWith("id: ", begin) && data >= 0 && data < end) {
      this.#record({ sequence: Number(text.slice(begin + 4, data)), raw: text.slice(data + 7, end) });
      return;
    }
    const lines = text.slice(begin, end).split("\n");
    const field = (name) => lines.find((one) => one.startsWith(`${name}: `))?.slice(name.length + 2);
    if (field("event") === "warning") this.#warn(JSON.parse(field("data")));
    else if (field("id") !== undefined) this.#last = Math.max(this.#last ?? -1, Number(field("id")));
  }

  #record(row) {
    if (this.#last !== null && row.sequence <= this.#last) return; // it came before the connection broke
    this.#last = row.sequence;
    this.#came += 1;
    if (!this.isPaused.value) {
      this.#kept.add(row);
      return;
    }
    this.#newWhilePaused += 1;
    if (this.isTooMany.value) return;
    if (!this.#held.add(row)) {
      this.#held = new Newest();
      this.isTooMany.value = true;
    }
  }

  #warn(text) {
    if (!this.warnings.value.includes(text)) this.warnings.value = [...this.warnings.value, text].slice(-WARNINGS_MAX);
  }

  // At most once a frame, and ten times a second: nobody reads faster.
  #draw() {
    if (this.#isDrawing) return;
    this.#isDrawing = true;
    setTimeout(() => requestAnimationFrame(() => {
      this.#isDrawing = false;
      if (this.#isStopped) return;
      this.meanwhile.value = this.#newWhilePaused;
      if (!this.isPaused.value) this.rows.value = this.#kept.all();
    }), SHOWN_EVERY_MS);
  }
}
