// The series of a graph as text: it can be selected, copied and searched, and says the values under the cursor.
import { html, useComputed } from "../vendor.js";
import { short, time } from "../base/format.js";
import { isShown } from "./graph_data.js";
import { lineColour } from "./graph_plot.js";

const shortOr = (value) => (value === null || value === undefined ? "–" : short(value));

/** `hover`: a signal {place, line: the nearest one or null}. */
export function Legend({ lines, query, hover, onToggle, onIsolate }) {
  return html`<div class="legend" role="region" tabindex="0" aria-label=${`Series of query ${query.index + 1}`}>
    <table aria-label="Legend"><thead><tr><th scope="col"><span class="seen-not">Drawn</span></th><th scope="col">Series</th>
      ${["At cursor", "Last", "Min", "Max", "Mean"].map((title) => html`<th scope="col" class="number">${title}</th>`)}</tr></thead>
    <tbody>${lines.map((line) => html`<${Line} key=${line.hash} line=${line} isOn=${isShown(query, line)} hover=${hover}
      onToggle=${onToggle} onIsolate=${onIsolate} />`)}</tbody></table>
  </div>`;
}

function Line({ line, isOn, hover, onToggle, onIsolate }) {
  const value = useComputed(() => (hover.value.place === null ? "" : shortOr(line.values[hover.value.place])));
  const kind = useComputed(() => (hover.value.line === line ? "nearest" : ""));
  const click = (event) => {
    if (event.detail < 2 && String(getSelection())) return; // a text was selected
    if (event.ctrlKey || event.metaKey) onIsolate(line);
    else onToggle(line);
  };
  const isolate = () => {
    getSelection().removeAllRanges();
    onIsolate(line);
  };
  return html`<tr class=${kind} data-off=${isOn ? undefined : ""} onClick=${click} onDblClick=${isolate}>
    <td><button class="swatch" aria-pressed=${isOn} aria-label=${`Draw ${line.text}`} title="Click: show or hide; Ctrl+click or double click: this one alone"
      style=${{ background: isOn ? lineColour(line.index, "var(--series-lightness)") : "transparent" }}></button></td>
    <td class="mono">${line.text}</td>
    <td class="number">${value}</td>
    ${[line.last, line.min, line.max, line.mean].map((one) => html`<td class="number">${shortOr(one)}</td>`)}
  </tr>`;
}

/** The time under the cursor, and the series nearest to it with all its labels. It stays when the mouse leaves the graph. */
export function Hovered({ hover, xs }) {
  const { place, line } = hover.value;
  if (place === null || place >= xs.length) return html`<p class="hovered hint">Move over the graph for values; a click holds them. Drag to zoom, double click to zoom out.</p>`;
  const value = line?.values[place];
  return html`<p class="hovered"><strong class="number">${time(xs[place] * 1000)}</strong>
    ${line && html` <span class="mono">${line.text}</span> <strong>${value === null || value === undefined ? "no sample" : String(value)}</strong>`}</p>`;
}
