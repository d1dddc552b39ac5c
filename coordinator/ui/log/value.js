// One record: as much of its value as is shown, and all of it as a file.
import { failure, fetched, request } from "../base/api.js";
import { save } from "../base/take.js";
import { bytesOf } from "./octets.js";
import { isBinary, isCut, jsonOf } from "./records.js";
import { keyName } from "./selection.js";

export const MORE_BYTES = 65_536;
export const SHOWN_BYTES_MAX = 1_048_576;

const one = (query, sequence) => ({ ...query, start_seq: sequence, end_seq: sequence + 1, limit: 1 });

/** The record of this number with so many bytes of its value; null if there is none. */
export async function readRecord(query, sequence, valueBytes, signal) {
  const { answer } = await request("GET", "api/v1/log/scan", { query: { ...one(query, sequence), encoding: "text", value_bytes: valueBytes }, signal });
  return answer.records[0] ?? null;
}

/** Save the whole value as a file. */
export async function download(query, record, signal) {
  const response = await fetched("GET", "api/v1/log/scan", {
    query: one(query, record.sequence), headers: { Accept: "application/protobuf" }, signal,
  });
  if (!response.ok) throw await failure(response);
  const page = field(new Uint8Array(await response.arrayBuffer()), PAGES);
  const octets = page && (field(page, VALUES) ?? new Uint8Array());
  if (!octets) throw new Error(`record ${record.sequence} is not there any more`);
  save(fileName(record), octets, "application/octet-stream");
}

function fileName(record) {
  const name = keyName(record).replace(/[^\w.-]+/g, "_").slice(0, 80);
  const isJson = record.contentType?.includes("json") || (isCut(record) ? /^\s*[{[]/.test(record.text ?? "") : jsonOf(record));
  return `${name}-${record.sequence}.${isBinary(record) ? "bin" : isJson ? "json" : "txt"}`;
}

/** The part of the value that is there, as bytes. */
export function octetsOf(record) {
  return isBinary(record) ? bytesOf(record.value) : new TextEncoder().encode(record.text);
}

const PAGES = 2; // of a ScanResponse (proto/log.proto)
const VALUES = 3; // of a Page

/** The first field of this number, of those with a length, in a protobuf message; null without it. */
function field(message, wanted) {
  let at = 0;
  const varint = () => {
    let value = 0;
    for (let shift = 1; ; shift *= 128) {
      const octet = message[at++];
      value += (octet & 127) * shift;
      if (!(octet & 128)) return value;
    }
  };
  while (at < message.length) {
    const tag = varint();
    const kind = tag & 7;
    if (kind === 0) varint();
    else if (kind === 2) {
      const length = varint();
      if (tag >> 3 === wanted) return message.subarray(at, at + length);
      at += length;
    } else at += kind === 1 ? 8 : 4;
  }
  return null;
}
