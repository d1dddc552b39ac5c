// Deletion of a key's records.
import { request } from "../base/api.js";

/** `key`: the parameter that names it. Resolves to the answer. */
export async function deleteKey(key) {
  return (await request("DELETE", "api/v1/log/keys", { query: key })).answer;
}
