// The result of a query over a range, drawn.
import { html, useEffect, useLayoutEffect, useMemo, useRef, useSignal } from "../vendor.js";
import { count, time, utc } from "../base/format.js";
import { colours } from "../shell/theme.js";
import { drawn, isolated, isShown, linesOf, toggled } from "./graph_data.js";
import { plot } from "./graph_plot.js";
import { HeatMap } from "./heatmap.js";
import { Hovered, Legend } from "./legend.js";

const LINE_FLAGS = [["isStacked", "Stacked"], ["isLog", "Log scale"], ["isFromZero", "From zero"]];
const NOWHERE = { place: null, line: null };

/** `query`: as query.js gives it; `update(changes, options)` changes what the link has of it; `onZoom(range, end)` in seconds. */
export function Graph({ query, update, onZoom }) {
  const { result, times } = query;
  const data = useMemo(() => linesOf(result.result, times), [result]);
  const hover = useSignal(NOWHERE);
  const buckets = useMemo(() => result.result.filter((one) => one.values && "le" in one.metric), [result]);
  if (!result.result.length) return html`<p class="hint">No series has samples in this range: from ${time(times.start * 1000)} to ${time(times.end * 1000)}.</p>`;
  const isHeat = query.isHeat && buckets.length > 0;
  return html`<div class="graph">
    <div class="row graph-tools">
      ${[...(isHeat || !data.lines.length ? [] : LINE_FLAGS), ...(buckets.length ? [["isHeat", "Heat map"]] : [])].map(
        ([flag, label]) => html`<button aria-pressed=${query[flag]} onClick=${() => update({ [flag]: !query[flag] })}>${label}</button>`)}
      ${data.total > data.lines.length && html`<span role="note">${data.lines.length} of ${count(data.total)} series are drawn: those with the greatest values.</span>`}
      ${(query.only.length > 0 || query.hidden.length > 0) && html`<button onClick=${() => update({ only: [], hidden: [] }, { step: false })}>Show all series</button>`}
    </div>
    ${data.histograms.length > 0 && html`<${HeatMap} series=${data.histograms} grid=${times} />`}
    ${isHeat && html`<${HeatMap} series=${buckets} grid=${times} />`}
    ${!isHeat && data.lines.length > 0 && html`
      <${Plot} data=${data} query=${query} hover=${hover} onZoom=${onZoom} />
      <${Hovered} hover=${hover} xs=${data.xs} />
      <${AfterPaint}><${Legend} lines=${data.lines} query=${query} hover=${hover}
        onToggle=${(line) => update(toggled(query, line), { step: false })}
        onIsolate=${(line) => update(isolated(query, line), { step: false })} /><//>`}
  </div>`;
}

/** Its children come when what is there already has been seen: two hundred rows of text take as long as their lines. */
function AfterPaint({ children }) {
  const isTime = useSignal(false);
  useEffect(() => { isTime.value = true; }, []);
  return isTime.value && children;
}

function Plot({ data, query, hover, onZoom }) {
  const host = useRef(null);
  const made = useRef(null);
  const { xs, lines } = data;
  const { isStacked, isLog, isFromZero, times } = query;
  useLayoutEffect(() => {
    const shown = lines.filter((line) => isShown(query, line));
    hover.value = NOWHERE;
    made.current = plot(host.current, shown, [xs, ...drawn(shown, query)], { isStacked, isLog, isFromZero }, {
      onHover: (place, line) => { hover.value = { place, line: shown[line] ?? null }; },
      onZoom: (from, to) => onZoom(to - from, to),
      onOut: () => onZoom(times.range * 2, times.isNow ? null : times.end + times.range / 2),
    });
    const fit = new ResizeObserver(() => made.current.setSize({ width: Math.max(200, host.current.clientWidth), height: Math.max(120, host.current.clientHeight) }));
    fit.observe(host.current);
    return () => {
      fit.disconnect();
      made.current.destroy();
    };
  }, [data, isStacked, isLog, isFromZero, query.hidden.join(), query.only.join(), colours.value, utc.value]);
  return html`<div class="plot" ref=${host} tabindex="0" role="img" onKeyDown=${(event) => walk(event, made.current, xs)}
    aria-label=${`Graph of ${lines.length} series, ${time(xs[0] * 1000)} to ${time(xs.at(-1) * 1000)}. The arrow keys move the cursor.`}></div>`;
}

/** Moves the cursor by keys. */
function walk(event, made, xs) {
  const by = { ArrowLeft: -1, ArrowRight: 1, PageUp: -10, PageDown: 10 }[event.key];
  if (!by) return;
  event.preventDefault();
  const place = Math.min(Math.max((made.cursor.idx ?? -1) + by, 0), xs.length - 1);
  made.setCursor({ left: made.valToPos(xs[place], "x"), top: made.over.clientHeight / 2 });
}
