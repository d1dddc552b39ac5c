// One query: its editor, and what is shown of its answer.
import { html, useEffect, useId, useRef, useSignal } from "../vendor.js";
import { isCancelled } from "../base/api.js";
import { bytes, count, duration, took } from "../base/format.js";
import { Problem, Progress, Remarks } from "../base/remarks.js";
import { ask } from "./ask.js";
import { Editor } from "./editor.js";
import { Explain } from "./explain.js";
import { ExportMenu } from "./export.js";
import { Graph } from "./graph.js";
import { remember } from "./history.js";
import { IDLE } from "./rows.js";
import { TABS } from "./state.js";
import { ResultTable } from "./table.js";

const QUIET_MS = 300; // work that takes no longer is not announced
const TITLES = { graph: "Graph", table: "Table", explain: "Explain" };

export function Query({ index, count: total, row, query, times, moment, actions, onFocus }) {
  useAnswer(row, query, times, moment);
  const answer = row.answer.value;
  const place = answer.error && placeOf(answer.error.message);
  const onPlace = (line, column) => row.editor?.select(line, column);
  return html`<section class="panel query" aria-label=${`Query ${index + 1}`} onFocusIn=${onFocus}>
    <div class="query-row">
      <span class="query-mark" aria-hidden="true">${String.fromCharCode(65 + index)}</span>
      <${Editor} row=${row} label=${`Query ${index + 1}`} place=${place} remarks=${answer.remarks} onRun=${actions.run} />
      <${Tools} index=${index} total=${total} row=${row} query=${query} actions=${actions} />
    </div>
    ${!query.isOff && html`
      <${Problem} error=${answer.error} />
      <${Remarks} ...${answer.remarks} onPlace=${onPlace} />
      <${Tabs} index=${index} query=${query} row=${row} actions=${actions} />`}
  </section>`;
}

/** Asks when something changed that the answer depends on; the request before is cancelled. */
function useAnswer(row, { expr, tab, isOff }, times, moment) {
  const { answer } = row;
  useEffect(() => {
    if (!expr || isOff) {
      answer.value = IDLE;
      return undefined;
    }
    const controller = new AbortController();
    row.cancel = () => {
      controller.abort();
      answer.value = { ...answer.value, isBusy: false };
    };
    answer.value = { ...answer.value, isBusy: true };
    const asked = JSON.stringify([expr, tab, times.range, times.isNow ? null : times.end, times.step]);
    ask({ expr, tab }, times, controller.signal).then(
      (got) => {
        remember(expr);
        answer.value = { ...IDLE, ...got, tab, asked };
      },
      (error) => {
        if (isCancelled(error)) return;
        const last = answer.value.asked === asked ? answer.value : IDLE; // what was shown stays when it is only asked again
        answer.value = { ...last, isBusy: false, error };
      },
    );
    return () => controller.abort();
  }, [expr, tab, isOff, times.range, times.isNow ? null : times.end, times.step, moment]);
}

/** {line, column} that the message of the parser begins with, such as "1:5: parse error: …"; null without. */
export function placeOf(message) {
  const match = /(\d+):(\d+): parse error/.exec(message);
  return match && { line: Number(match[1]), column: Number(match[2]), message };
}

function Tools({ index, total, row, query, actions }) {
  const button = (label, text, onClick, rest = {}) => html`<button class="quiet" title=${label} aria-label=${`${label} query ${index + 1}`}
    onClick=${onClick} ...${rest}>${text}</button>`;
  return html`<span class="query-tools">
    ${button("Format", "{ }", () => row.editor?.format())}
    ${button(query.isOff ? "Show" : "Hide", query.isOff ? "◌" : "◉", () => actions.update(index, { isOff: !query.isOff }), { "aria-pressed": query.isOff })}
    ${button("Duplicate", "2×", () => actions.add(index + 1, { ...query, expr: row.draft.value.trim() }))}
    ${total > 1 && button("Move up", "↑", () => actions.move(index, index - 1), { disabled: index === 0 })}
    ${total > 1 && button("Move down", "↓", () => actions.move(index, index + 1), { disabled: index === total - 1 })}
    ${button("Remove", "✕", () => actions.remove(index))}
  </span>`;
}

function Tabs({ index, query, row, actions }) {
  const id = useId();
  const answer = row.answer.value;
  const turn = (event) => {
    const by = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!by) return;
    const tab = TABS[(TABS.indexOf(query.tab) + by + TABS.length) % TABS.length];
    actions.update(index, { tab });
    event.currentTarget.children[TABS.indexOf(tab)].focus();
  };
  return html`<div class="query-bar">
      <div role="tablist" aria-label=${`What is shown of query ${index + 1}`} class="tabs" onKeyDown=${turn}>
        ${TABS.map((tab) => html`<button role="tab" id="${id}-${tab}" aria-selected=${query.tab === tab} aria-controls="${id}-panel"
          tabindex=${query.tab === tab ? 0 : -1} onClick=${() => actions.update(index, { tab })}>${TITLES[tab]}</button>`)}
      </div>
      <${Facts} answer=${answer} tab=${query.tab} />
      <span class="space"></span>
      ${answer.result && html`<${ExportMenu} query=${{ ...query, ...answer, index }} range=${answer.times} />`}
    </div>
    <${Busy} answer=${answer} onCancel=${() => row.cancel?.()} />
    <div role="tabpanel" id="${id}-panel" aria-labelledby="${id}-${query.tab}">
      ${answer.result && answer.tab === query.tab && html`<${Shown} index=${index} query=${query} row=${row} actions=${actions} />`}
      ${!query.expr && html`<p class="hint">Type a query and press Enter.</p>`}
    </div>`;
}

/** What the tab shows. Each of the components gets `query`: {index, expr, tab, isStacked …, result, remarks, error, seconds,
 * bytes, series, samples, times, request}; `result` is `data` of the answer. */
function Shown({ index, query, row, actions }) {
  const shown = { ...query, ...row.answer.value, index };
  const update = (changes, options) => actions.update(index, changes, options);
  if (query.tab === "table") return html`<${ResultTable} query=${shown} onTime=${(end) => actions.zoom(shown.times.range, end)} />`;
  if (query.tab === "explain") {
    return html`<${Explain} query=${shown} onMark=${(from, to) => row.editor?.mark(from, to)}
      onPlace=${(line, column) => row.editor?.select(line, column)} />`;
  }
  return html`<${Graph} query=${shown} update=${update} onZoom=${actions.zoom} />`;
}

function Facts({ answer, tab }) {
  if (!answer.result) return null;
  const { series, samples, seconds, times } = answer;
  const said = [
    `${count(series)} series`,
    tab !== "table" && `${count(samples)} points`,
    tab !== "table" && `step ${duration(times.step)}`,
    took(seconds),
    bytes(answer.bytes),
  ].filter(Boolean);
  return html`<span class="hint facts" aria-label="About the answer">${said.join(" · ")}</span>`;
}

/** Says that the answer is awaited, once it takes long. */
function Busy({ answer, onCancel }) {
  const isLong = useSignal(false);
  const since = useRef(0);
  useEffect(() => {
    isLong.value = false;
    if (!answer.isBusy) return undefined;
    since.current = performance.now();
    const timer = setTimeout(() => { isLong.value = true; }, QUIET_MS);
    return () => clearTimeout(timer);
  }, [answer.isBusy]);
  return answer.isBusy && isLong.value && html`<${Progress} label="The query is running" onCancel=${onCancel} />`;
}
