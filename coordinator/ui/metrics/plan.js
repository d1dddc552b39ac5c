// The plan of a query as `explain=true` answers it, put together with what its nodes took.

const KINDS = {
  Aggregate: "aggregation", Binary: "operator", Call: "function", MatrixSelector: "range selector", NumberLiteral: "number",
  Paren: "brackets", StringLiteral: "text", Subquery: "subquery", Unary: "sign", VectorSelector: "selector",
};

/** The root of the plan, with `leaves`: what was sent, each once, and `size`: its nodes. A node: {id, kind, text, from, to, where, time, children,
 * workers, isLeaf …}; `from`, `to` are places in the text `expr`, as an editor counts them; `time` in seconds, null if
 * it is not known; it is that of the node without its children. */
export function treeOf({ plan, measured = [] }, expr) {
  const byId = new Map(measured.map((one) => [one.id, one]));
  const places = placesIn(expr);
  const leaves = new Map();
  let size = 0;
  function node(told) {
    size += 1;
    const own = byId.get(told.id);
    const children = (told.children ?? []).map(node);
    const isLeaf = told.where === "shards";
    const inner = children.reduce((sum, child) => sum + (child.whole ?? 0), 0);
    const whole = isLeaf ? 0 : (own?.time ?? null); // what the coordinator took with all that is below
    const made = {
      id: told.id,
      kind: kindOf(told),
      text: told.text || told.query || "",
      from: places(told.span[0]),
      to: places(told.span[1]),
      where: isLeaf ? "workers" : "coordinator",
      time: isLeaf ? (own?.time ?? null) : whole === null ? null : Math.max(0, whole - inner),
      whole: whole ?? inner,
      children,
      isLeaf,
      query: told.query,
      merge: told.merge,
      mergeTime: own?.mergeTime ?? 0,
      series: own?.series ?? 0,
      samples: own?.samples ?? 0,
      estimate: own?.estimate ?? null,
      workers: own?.workers ?? [],
      slowestWorker: (own?.workers ?? []).reduce((most, one) => (!most || one.time > most.time ? one : most), null),
    };
    if (isLeaf && own) leaves.set(own.leaf, made);
    return made;
  }
  const root = node(plan);
  root.leaves = [...leaves.values()];
  root.size = size;
  return root;
}

/** "Aggregate" and "sum(…)" as "sum". */
function kindOf({ node, text = "", query = "" }) {
  const name = /^\s*([a-z_0-9]+)\b/i.exec(text || query)?.[1];
  return ["Aggregate", "Call"].includes(node) && name ? name : (KINDS[node] ?? node);
}

/** From a place in characters to one in UTF-16 units, of which some characters have two. */
function placesIn(text) {
  if (!/[\ud800-\udbff]/.test(text)) return (place) => place;
  const characters = [...text];
  return (place) => characters.slice(0, place).join("").length;
}

/** The node that took the longest, null if there is only one or none is known. */
export function slowestOf(root) {
  const nodes = [];
  const walk = (node) => { nodes.push(node); node.children.forEach(walk); };
  walk(root);
  const known = nodes.filter((node) => node.time !== null);
  return known.length > 1 ? known.reduce((most, node) => (node.time > most.time ? node : most)) : null;
}
