// Filters as the API takes them, and how clicks change them.

/** The filter that a text (JSON, from the link or an editor) is: {filter, error}. An empty text is none: null. */
export function parsed(text) {
  if (!text?.trim()) return { filter: null, error: "" };
  try {
    const filter = JSON.parse(text);
    if (filter === null || typeof filter !== "object" || Array.isArray(filter)) {
      return { filter: null, error: `a filter is an object such as {"eq": {"field": "colour", "value": "red"}}, not ${text.trim().slice(0, 40)}` };
    }
    return { filter: Object.keys(filter).length ? filter : null, error: "" };
  } catch (error) {
    return { filter: null, error: `the filter is not valid JSON: ${error.message}` };
  }
}

/** The text of a filter for the link: "" for none. */
export const written = (filter) => (filter ? JSON.stringify(filter) : "");

/** The conditions that all must hold. A filter that is no `and` is one condition. */
export function conditions(filter) {
  if (!filter) return [];
  const children = Array.isArray(filter.and) ? filter.and : filter.and?.filters;
  return Array.isArray(children) && Object.keys(filter).length === 1 ? children : [filter];
}

/** The filter of which all these conditions must hold. */
const allOf = (list) => (list.length > 1 ? { and: list } : (list[0] ?? null));

/** The filter without a condition. */
export const without = (filter, condition) => allOf(conditions(filter).filter((one) => one !== condition));

/** The filter with one condition more, unless it is there. */
export function also(filter, condition) {
  const text = JSON.stringify(condition);
  const list = conditions(filter);
  return list.some((one) => JSON.stringify(one) === text) ? filter : allOf([...list, condition]);
}

const isOfValues = (condition, field) => (condition.eq ?? condition.in)?.field === field;
const valuesOf = (condition) => (condition.eq ? [condition.eq.value] : condition.in.values);

/** The values of a field that are chosen: the field must have one of them. None: any will do. */
export const chosen = (filter, field) => conditions(filter).filter((one) => isOfValues(one, field)).flatMap(valuesOf);

/** The filter without the values chosen of a field: what the other conditions leave to choose from. */
export const butValues = (filter, field) => allOf(conditions(filter).filter((one) => !isOfValues(one, field)));

/** The filter with a value of the field chosen as well, or no more if it was. */
export function toggled(filter, field, value) {
  const before = chosen(filter, field);
  const values = before.includes(value) ? before.filter((one) => one !== value) : [...before, value];
  const rest = butValues(filter, field);
  if (!values.length) return rest;
  return allOf([...conditions(rest), values.length === 1 ? { eq: { field, value: values[0] } } : { in: { field, values } }]);
}

const SIGNS = { eq: "=", neq: "≠", lt: "<", lte: "≤", gt: ">", gte: "≥", contains: "contains", in: "in", containsAny: "contains one of", containsAll: "contains all of" };

/** A condition as a person reads it. */
export function described(condition) {
  const [[op, content] = []] = Object.entries(condition);
  const field = content?.field;
  if (op === "exists") return `has ${field ?? content}`;
  if (op === "not" && content?.exists) return `has no ${content.exists.field ?? content.exists}`;
  if (op === "not") return `not (${described(content)})`;
  if (op === "or" && Array.isArray(content)) return content.map((one) => `(${described(one)})`).join(" or ");
  if (SIGNS[op] && field !== undefined) {
    const value = content.values ? content.values.map((one) => JSON.stringify(one)).join(", ") : JSON.stringify(content.value);
    return `${field} ${SIGNS[op]} ${value}`;
  }
  return JSON.stringify(condition);
}
