// Bytes: base64, hexadecimal, and text in pieces that a browser lays out only when they are in sight.
import { html } from "../vendor.js";

const LINE_BYTES = 16;
const PIECE_CHARACTERS = 8192;
const PIECE_LINES = 200;

/** Uint8Array of base64. */
export function bytesOf(base64) {
  const text = atob(base64);
  const octets = new Uint8Array(text.length);
  for (let at = 0; at < text.length; at += 1) octets[at] = text.charCodeAt(at);
  return octets;
}

const hex = Array.from({ length: 256 }, (_, octet) => octet.toString(16).padStart(2, "0"));

function hexLine(octets, at) {
  const part = octets.subarray(at, at + LINE_BYTES);
  const codes = Array.from(part, (octet) => hex[octet]);
  const ascii = Array.from(part, (octet) => (octet >= 32 && octet < 127 ? String.fromCharCode(octet) : ".")).join("");
  return `${at.toString(16).padStart(8, "0")}  ${codes.slice(0, 8).join(" ").padEnd(23)}  ${codes.slice(8).join(" ").padEnd(23)}  ${ascii}`;
}

/** Offsets, bytes and ASCII. */
export function Hex({ octets }) {
  const pieces = [];
  for (let low = 0; low < octets.length; low += PIECE_LINES * LINE_BYTES) {
    const lines = [];
    for (let at = low; at < Math.min(octets.length, low + PIECE_LINES * LINE_BYTES); at += LINE_BYTES) lines.push(hexLine(octets, at));
    pieces.push(html`<div class="log-piece" style=${{ containIntrinsicHeight: `${lines.length * 1.45}em` }}>${lines.join("\n")}</div>`);
  }
  return html`<pre class="log-value log-hex" tabindex="0" role="region" aria-label="Value as hexadecimal">${pieces}</pre>`;
}

/** A text that may be long. `marked(text)`: a piece of it as it is shown. */
export function LongText({ text, marked = (piece) => piece }) {
  return html`<pre class="log-value" tabindex="0" role="region" aria-label="Value as text">${piecesOf(text).map((piece) => html`<div class="log-piece">${marked(piece)}</div>`)}</pre>`;
}

/** The text in pieces that end with a line where there is one soon. */
function piecesOf(text) {
  const pieces = [];
  for (let low = 0; low < text.length;) {
    const line = text.lastIndexOf("\n", low + PIECE_CHARACTERS);
    const isLine = line > low && low + PIECE_CHARACTERS < text.length;
    const end = isLine ? line : low + PIECE_CHARACTERS;
    pieces.push(text.slice(low, end));
    low = isLine ? line + 1 : end; // a piece is a block: it ends the line
  }
  return pieces;
}
