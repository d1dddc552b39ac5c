// A native histogram as a bar for each of its buckets.
import { html, useMemo } from "../vendor.js";
import { short } from "../base/format.js";
import { Table } from "../base/table.js";
import { interval, number } from "./results.js";

const WIDE = 1000; // units of the drawing
const HIGH = 100;

/** The outline of all bars, as the `d` of an SVG path. Every bucket is equally wide, whatever it covers. */
function outline(buckets) {
  const counts = buckets.map((bucket) => Math.max(0, number(bucket[3])) || 0);
  const most = counts.reduce((a, b) => Math.max(a, Number.isFinite(b) ? b : 0), 0) || 1;
  const width = WIDE / counts.length;
  return counts.map((count, index) => {
    const height = Math.min(1, count / most) * HIGH;
    const left = (index * width).toFixed(1);
    return `M${left} ${HIGH}v${(-height).toFixed(1)}h${(width * 0.9).toFixed(1)}V${HIGH}z`;
  }).join("");
}

/** As high as a line of text. */
export function SmallHistogram({ histogram }) {
  const path = useMemo(() => outline(histogram.buckets ?? []), [histogram]);
  return html`<span class="histogram-small"><svg viewBox="0 0 ${WIDE} ${HIGH}" preserveAspectRatio="none" aria-hidden="true"><path d=${path} /></svg>
    count ${histogram.count}, sum ${histogram.sum}</span>`;
}

/** With its buckets in a fold. `title`: whose histogram it is. */
export function HistogramPanel({ histogram, title }) {
  const buckets = histogram.buckets ?? [];
  const path = useMemo(() => outline(buckets), [histogram]);
  const rows = useMemo(() => withShares(buckets), [histogram]);
  const first = buckets[0];
  const last = buckets[buckets.length - 1];
  return html`<figure class="histogram panel">
    <figcaption><span class="mono">${title}</span> <span class="hint">count ${histogram.count}, sum ${histogram.sum}</span></figcaption>
    ${!buckets.length ? html`<p class="hint">No observations.</p>` : html`
      <svg viewBox="0 0 ${WIDE} ${HIGH}" preserveAspectRatio="none" role="img" aria-label=${`${buckets.length} buckets from ${first[1]} to ${last[2]}`}><path d=${path} /></svg>
      <div class="histogram-ends"><span>${short(number(first[1]))}</span><span>${short(number(last[2]))}</span></div>
      <details><summary>${buckets.length === 1 ? "1 bucket" : `${buckets.length} buckets`}</summary>
        <${Table} label="Buckets" columns=${BUCKET_COLUMNS} rows=${rows} filter=${false} />
      </details>`}
  </figure>`;
}

const percent = (share) => (Number.isFinite(share) ? `${(share * 100).toFixed(2)} %` : "–");

const BUCKET_COLUMNS = [
  { title: "Bucket", value: (row) => row.left, render: (row) => row.text },
  { title: "Count", align: "end", value: (row) => row.count, render: (row) => row.countText },
  { title: "Share", align: "end", value: (row) => row.share, render: (row) => percent(row.share) },
  { title: "Up to here", align: "end", value: (row) => row.below, render: (row) => percent(row.below) },
];

function withShares(buckets) {
  const total = buckets.reduce((sum, bucket) => sum + number(bucket[3]), 0);
  let below = 0;
  return buckets.map((bucket) => {
    const count = number(bucket[3]);
    below += count;
    return {
      text: interval(bucket), left: number(bucket[1]), countText: bucket[3], count, share: count / total, below: below / total,
    };
  });
}
