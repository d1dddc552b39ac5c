// Whether all shards are there, and whether this page is still the one that the server has.
import { html, useEffect, useSignal } from "../vendor.js";
import { fetched, read } from "../base/api.js";
import { linkTo } from "../base/link.js";
import { usePoll } from "../base/poll.js";

const EVERY_MS = 5000;
const DEADLINE_MS = 10_000; // it is answered at once, or something is wrong
const VERSION = new URL("..", import.meta.url).pathname.split("/").at(-2); // the page names its files under it

/** `onAsk`: called when the person wants to give a credential. */
export function State({ onAsk }) {
  const { value, error } = usePoll((signal) => read("api/v1/cluster", {}, { signal, deadline: DEADLINE_MS }), EVERY_MS);
  const isOld = useIsOld(value.value?.startedAt);
  return html`
    ${isOld && html`<button type="button" class="main" onClick=${() => location.reload()}>The server was upgraded: reload</button>`}
    <span role="status">${said(value.value, error.value, onAsk)}</span>`;
}

function said(state, error, onAsk) {
  if (error?.status === 401) return html`<button type="button" class="link state bad" onClick=${onAsk}>● no credential</button>`;
  if (error) {
    const text = error.status ? `error ${error.status}` : "no answer";
    return html`<a class="state bad" href=${linkTo("cluster")} title=${error.message}>● ${text}</a>`;
  }
  if (!state) return html`<span class="state">…</span>`;
  const total = state.shards.length;
  const shards = total === 1 ? "shard" : "shards";
  const text = state.ready ? `${total} ${shards} ready` : `${state.shardsReady} of ${total} ${shards} ready`;
  return html`<a class="state ${state.ready ? "good" : "bad"}" href=${linkTo("cluster")}>● ${text}</a>`;
}

/** Whether the server has another version of the page. That is looked up when it has been started anew. */
function useIsOld(startedAt) {
  const isOld = useSignal(false);
  useEffect(() => {
    if (startedAt === undefined) return undefined;
    const controller = new AbortController();
    look(controller.signal).then((answer) => { isOld.value = answer; }, () => {});
    return () => controller.abort();
  }, [startedAt]);
  return isOld.value;
}

async function look(signal) {
  const response = await fetched("GET", "", { signal, deadline: DEADLINE_MS });
  const page = response.ok ? await response.text() : "";
  return page.includes("/main.js") && !page.includes(VERSION);
}
