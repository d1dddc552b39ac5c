// The area "cluster": what runs where, what it holds, and what is wrong.
import { html } from "../vendor.js";
import { Parts } from "../base/parts.js";
import { Cardinality } from "./cardinality.js";
import { Memory } from "./memory.js";
import { Queries } from "./queries.js";
import { Settings } from "./settings.js";
import { Shards } from "./shards.js";
import { Slow } from "./slow.js";

const PARTS = {
  shards: { title: "Shards", Part: Shards },
  queries: { title: "Running queries", Part: Queries },
  slow: { title: "Slow queries", Part: Slow },
  cardinality: { title: "Cardinality", Part: Cardinality },
  memory: { title: "Memory", Part: Memory },
  settings: { title: "Settings", Part: Settings },
};

export const View = () => html`<${Parts} title="Cluster" parts=${PARTS} />`;
