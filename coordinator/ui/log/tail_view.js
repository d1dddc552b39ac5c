// The live tail as it is shown.
import { html, useEffect, useSignal } from "../vendor.js";
import { count } from "../base/format.js";
import { useKeys } from "../base/keys.js";
import { params, change } from "../base/link.js";
import { Problem, Remarks } from "../base/remarks.js";
import { before } from "./reading.js";
import { frontier, hasSearch, isOfField, query } from "./selection.js";
import { KEPT_MAX, Tail } from "./tail.js";
import { WithRecord } from "./with_record.js";

const BEFORE_RECORDS = 100;
const WINDOWS = 4;

/** What the tail begins with: the last records, unless they would have to be searched for. */
async function begin(asked, isSearch, signal) {
  const { readableSequence } = await frontier(signal);
  if (isSearch) return { rows: [], start: readableSequence };
  const { rows } = await before(asked, readableSequence, { signal, limit: BEFORE_RECORDS, windows: WINDOWS });
  return { rows, start: readableSequence };
}

export function TailView({ failure, onStop }) {
  const tail = useSignal(null);
  const times = useSignal(0); // how often it was begun anew
  const isOwnPause = useSignal(false); // the person asked for it: only a click goes on
  useEffect(() => {
    const asked = query.peek();
    const isSearch = hasSearch.peek();
    const own = (tail.value = new Tail(asked, (signal) => begin(asked, isSearch, signal)));
    return () => own.stop();
  }, [times.value]);
  const own = tail.value;
  useEffect(() => { failure.value = own?.problem.value ?? null; }, [own?.problem.value]);
  const pause = () => { isOwnPause.value = true; own.pause(); };
  const resume = () => { isOwnPause.value = false; own.resume(); };
  const newest = () => { isOwnPause.value = false; change({ record: null }, { step: false }); times.value += 1; };
  useKeys([{ keys: "p", label: "Pause what is followed, or go on", run: () => (own.isPaused.value ? resume() : pause()) }], [own]);
  if (!own) return null;
  const isPaused = own.isPaused.value;
  const hold = () => own.pause();
  const list = {
    isFollowing: !isPaused,
    onLeave: hold,
    onBottom: () => { if (isPaused && !isOwnPause.value && !params.value.get("record") && getSelection().isCollapsed) resume(); },
  };
  return html`<div class="row" role="toolbar" aria-label="Follow">
      <button aria-pressed="true" onClick=${onStop} title="Stop following (w)">■ Stop</button>
      ${isPaused
        ? html`<button class="main" onClick=${resume} title="Go on (p)">▶ Go on</button>`
        : html`<button onClick=${pause} title="Pause (p)">❚❚ Pause</button>`}
      ${isPaused && html`<span class="log-new" role="status">${own.meanwhile.value ? `${count(own.meanwhile.value)} new` : "paused"}</span>`}
      ${isPaused && own.isTooMany.value && html`<button onClick=${newest}>Skip to the newest</button>`}
      <${State} tail=${own} />
      <span class="space"></span><span class="hint">${count(own.rows.value.length)} shown, at most the newest ${count(KEPT_MAX)}; ${count(own.perSecond.value)}/s</span>
    </div>
    ${!isOfField(own.problem.value) && own.state.value !== "live" && html`<${Problem} error=${own.problem.value} onRetry=${own.state.value === "over" ? newest : undefined} />`}
    <${Remarks} warnings=${own.warnings.value} />
    <${WithRecord} rows=${own.rows.value} list=${list} onChoose=${hold} empty="No records yet: they appear as they come." />`;
}

function State({ tail }) {
  const state = tail.state.value;
  const text = {
    connecting: "○ connecting…",
    live: "● live",
    waiting: `○ trying again in ${(tail.retryMs.value / 1000).toFixed(1)} s, from where it was`,
    over: "○ ended",
  }[state];
  return html`<span class="state ${state === "live" ? "good" : state === "over" ? "bad" : ""}" role="status" aria-label="State">${text}</span>`;
}
