// The times that all queries share: range, end, step, and how often they are asked again.
import { html } from "../vendor.js";
import { duration, parseDuration, parseTime, time } from "../base/format.js";
import { change, params } from "../base/link.js";
import { timeParams } from "./state.js";

const RANGES = ["5m", "15m", "30m", "1h", "3h", "6h", "12h", "1d", "2d", "7d", "30d"];
const REFRESHES = ["1s", "5s", "15s", "30s", "1m", "5m"];

export function TimeBar({ times, isBusy, onRun, onCancel }) {
  const { range, end, step, isNow, isAuto } = times;
  const show = (nextRange, nextEnd) => change(timeParams(nextRange, nextEnd));
  const refresh = params.value.get("refresh") ?? "";
  return html`<form class="row timebar" aria-label="Times" onSubmit=${(event) => { event.preventDefault(); onRun(); }}>
    <${Field} label="Range" size="5" value=${duration(range)} list=${RANGES} read=${(text) => parseDuration(text) || null}
      wrong="a duration such as 1h30m" onValue=${(value) => show(value, isNow ? null : end)} />
    <button type="button" class="quiet" title="Shorter range (+)" aria-label="Shorter range"
      onClick=${() => show(range / 2, isNow ? null : end - range / 4)}>+</button>
    <button type="button" class="quiet" title="Longer range (-)" aria-label="Longer range"
      onClick=${() => show(range * 2, isNow ? null : end + range / 2)}>−</button>
    <button type="button" class="quiet" title="Earlier ([)" aria-label="Earlier" onClick=${() => show(range, end - range / 2)}>‹</button>
    <${Field} label="End" size="19" value=${isNow ? "now" : time(end * 1000)} read=${(text) => (text === "now" || !text ? "now" : parseTime(text))}
      wrong="now, Unix seconds, or a time such as 2026-01-31 17:05:09" onValue=${(value) => show(range, value === "now" ? null : value / 1000)} />
    <button type="button" class="quiet" title="Later (])" aria-label="Later" onClick=${() => show(range, end + range / 2)}>›</button>
    ${!isNow && html`<button type="button" class="quiet" onClick=${() => show(range, null)}>Now</button>`}
    <${Field} label="Step" size="9" value=${isAuto ? "" : duration(step)} placeholder=${`auto (${duration(step)})`}
      read=${(text) => (text === "" ? "auto" : parseDuration(text) || null)} wrong="a duration such as 15s, or nothing for auto"
      onValue=${(value) => change({ step: value === "auto" ? null : duration(value) })} />
    <label>Refresh <select value=${refresh} onChange=${(event) => change({ refresh: event.target.value })}>
      <option value="">off</option>
      ${[...new Set([...REFRESHES, refresh])].filter(Boolean).map((text) => html`<option value=${text}>${text}</option>`)}
    </select></label>
    <span class="space"></span>
    ${isBusy && html`<button type="button" onClick=${onCancel}>Cancel</button>`}
    <button type="submit" class="main" title="Run (Enter in a query, or r)">Run</button>
  </form>`;
}

/** A text field that is read when it is left or Enter is pressed. What cannot be read is said, and not used. */
function Field({ label, value, list, read, wrong, onValue, ...rest }) {
  const id = `times-${label.toLowerCase()}`;
  function use(event) {
    const input = event.currentTarget;
    const result = read(input.value.trim());
    input.setCustomValidity(result === null ? `${label}: ${input.value} is not ${wrong}` : "");
    if (result === null) input.reportValidity();
    else onValue(result);
  }
  return html`<label>${label} <input type="text" autocomplete="off" spellcheck=${false} value=${value} list=${list && id} onChange=${use}
      onInput=${(event) => event.currentTarget.setCustomValidity("")} ...${rest} /></label>
    ${list && html`<datalist id=${id}>${list.map((text) => html`<option value=${text}></option>`)}</datalist>`}`;
}
