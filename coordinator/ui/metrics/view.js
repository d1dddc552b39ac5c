// The area "metrics": the queries, the times that they share, and what is shown of each.
import { html, useEffect, useSignal } from "../vendor.js";
import { parseDuration } from "../base/format.js";
import { useKeys } from "../base/keys.js";
import { change, params } from "../base/link.js";
import { Explorer } from "./explorer.js";
import { HistoryDialog } from "./history.js";
import { Query } from "./query.js";
import { clearRow, committed, insertRow, moveRow, removeRow, rowsOf } from "./rows.js";
import { EMPTY, paramsOf, QUERIES_MAX, queriesOf, TABS, timeParams, timesOf } from "./state.js";
import { TimeBar } from "./timebar.js";

const REFRESH_MIN = 1; // s
const REFRESH_MAX = 86_400; // s: timers of browsers end at once above 24 days

export function View() {
  const moment = useSignal(Date.now()); // what "now" is for all queries
  const current = useSignal(0); // the query that keys and dialogs are about
  const dialog = useSignal(null);
  const queries = queriesOf(params.value);
  const rows = rowsOf(queries);
  const times = timesOf(params.value, moment.value);
  const actions = actionsOf(queries, moment, current);
  const isBusy = rows.some((row) => row.answer.value.isBusy);
  const chosen = Math.min(current.value, rows.length - 1);
  useRefresh(parseDuration(params.value.get("refresh") ?? ""), rows, moment);
  useKeys(keysOf(queries, rows, chosen, times, actions, dialog), [params.value, chosen]);
  const insert = (text) => { dialog.value = null; rows[chosen].editor?.insert(text); };
  return html`<h1 class="seen-not">Metrics</h1>
    <${TimeBar} times=${times} isBusy=${isBusy} onRun=${actions.run} onCancel=${() => rows.forEach((row) => row.cancel?.())} />
    ${rows.map((row, index) => html`<${Query} key=${row.id} index=${index} count=${rows.length} row=${row} query=${queries[index]}
      times=${times} moment=${moment.value} actions=${actions} onFocus=${() => { current.value = index; }} />`)}
    <div class="row metrics-more">
      <button onClick=${() => actions.add()} disabled=${rows.length >= QUERIES_MAX} title="Add a query (a)">+ Add a query</button>
      <button onClick=${() => { dialog.value = "explorer"; }} title="Metrics that are there (m)">Explore metrics</button>
      <button onClick=${() => { dialog.value = "history"; }} title="Queries that were run (h)">History</button>
    </div>
    ${dialog.value === "explorer" && html`<${Explorer} onChoose=${insert} onClose=${() => { dialog.value = null; }} />`}
    ${dialog.value === "history" && html`<${HistoryDialog} onClose=${() => { dialog.value = null; }}
      onChoose=${(expr) => { dialog.value = null; rows[chosen].draft.value = expr; actions.run(); }} />`}`;
}

/** What buttons and keys do to the queries. All of it ends in the link. */
function actionsOf(queries, moment, current) {
  const write = (next, options) => change(paramsOf(next), options);
  return {
    run() {
      write(committed(queries));
      moment.value = Date.now();
    },
    update(index, changes, options) {
      write(queries.map((query, at) => (at === index ? { ...query, ...changes } : query)), options);
    },
    add(index = queries.length, query = EMPTY) {
      if (queries.length >= QUERIES_MAX) return;
      insertRow(index, query.expr);
      write(queries.toSpliced(index, 0, query));
      current.value = index;
    },
    remove(index) {
      if (queries.length > 1) removeRow(index);
      else clearRow(index);
      write(queries.length > 1 ? queries.toSpliced(index, 1) : [EMPTY]);
    },
    move(index, to) {
      if (to < 0 || to >= queries.length) return;
      moveRow(index, to);
      write(queries.toSpliced(index, 1).toSpliced(to, 0, queries[index]));
      current.value = to;
    },
    /** Shows another range: seconds; end null: now. */
    zoom: (range, end) => change(timeParams(range, end)),
  };
}

function keysOf(queries, rows, chosen, times, actions, dialog) {
  const { range, end, isNow } = times;
  return [
    { keys: "r", label: "Run the queries", run: actions.run },
    { keys: "/", label: "Type in the query", run: () => rows[chosen].editor?.focus() },
    { keys: "a", label: "Add a query", run: () => actions.add() },
    { keys: "m", label: "Explore metrics", run: () => { dialog.value = "explorer"; } },
    { keys: "h", label: "Queries that were run", run: () => { dialog.value = "history"; } },
    ...TABS.map((tab, index) => ({ keys: String(index + 1), label: `Show the ${tab}`, run: () => actions.update(chosen, { tab }) })),
    { keys: "-", label: "A longer range", run: () => actions.zoom(range * 2, isNow ? null : end + range / 2) },
    { keys: "+", label: "A shorter range", run: () => actions.zoom(range / 2, isNow ? null : end - range / 4) },
    { keys: "[", label: "Earlier, by half of the range", run: () => actions.zoom(range, end - range / 2) },
    { keys: "]", label: "Later, by half of the range", run: () => actions.zoom(range, end + range / 2) },
  ];
}

/** Runs the queries again `interval` seconds (null: never) after the last of them has its answer, while the page is seen. */
function useRefresh(interval, rows, moment) {
  const isBusy = rows.some((row) => row.answer.value.isBusy);
  useEffect(() => {
    if (!interval || isBusy) return undefined;
    const timer = setInterval(() => { if (!document.hidden) moment.value = Date.now(); }, Math.min(Math.max(interval, REFRESH_MIN), REFRESH_MAX) * 1000);
    return () => clearInterval(timer);
  }, [interval, isBusy, moment.value]);
}
