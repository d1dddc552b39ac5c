// The frame of the page: the areas, the state of the cluster, and what belongs to all of them.
import { html, useEffect, useErrorBoundary, useSignal } from "../vendor.js";
import { asked, authorization } from "../base/access.js";
import { read } from "../base/api.js";
import { utc } from "../base/format.js";
import { useKeys } from "../base/keys.js";
import { area, AREAS, go, linkTo } from "../base/link.js";
import { usePoll } from "../base/poll.js";
import { Problem } from "../base/remarks.js";
import { Credential } from "./credential.js";
import { Help } from "./help.js";
import { setTheme, theme, THEMES } from "./theme.js";

const STATE_EVERY_MS = 5000;
const TITLES = { metrics: "Metrics", log: "Log", vectors: "Vectors", cluster: "Cluster" };
const views = {
  metrics: () => import("../metrics/view.js"),
  log: () => import("../log/view.js"),
  vectors: () => import("../vectors/view.js"),
  cluster: () => import("../cluster/view.js"),
};

export function App() {
  const help = useSignal(false);
  const isAsking = useSignal(false);
  useKeys([
    ...AREAS.map((name) => ({ keys: `g ${name[0]}`, label: `Go to ${TITLES[name]}`, run: () => go(name) })),
    { keys: "?", label: "This list", run: () => { help.value = true; } },
    { keys: "t", label: "Light, dark, or as the system", run: nextTheme },
    { keys: "z", label: "Times in UTC or of this browser", run: () => { utc.value = !utc.value; } },
  ]);
  useEffect(() => { document.title = `${TITLES[area.value]} – Triptych`; }, [area.value]);
  return html`
    <a class="skip" href="#main" onClick=${(event) => { event.preventDefault(); document.getElementById("main").focus(); }}>Skip to the content</a>
    <header class="bar">
      <span class="brand">Triptych</span>
      <nav aria-label="Areas">${AREAS.map((name) => html`<a href=${linkTo(name)} aria-current=${area.value === name ? "page" : undefined}
        onClick=${(event) => { if (!event.ctrlKey && !event.metaKey && !event.shiftKey) { event.preventDefault(); if (area.value !== name) go(name); } }}>${TITLES[name]}</a>`)}</nav>
      <span class="space"></span>
      <${State} />
      <button class="quiet" title="Times in UTC or of this browser (z)" onClick=${() => { utc.value = !utc.value; }}>${utc.value ? "UTC" : "Local"}</button>
      <button class="quiet" title="Light, dark, or as the system (t)" aria-label=${`Colours: ${theme.value}`} onClick=${nextTheme}>${{ light: "☀", dark: "☾", system: "◐" }[theme.value]}</button>
      <button class="quiet" title="Credential" aria-label="Credential" aria-pressed=${Boolean(authorization.value)} onClick=${() => { isAsking.value = true; }}>⚿</button>
      <button class="quiet" title="Keys (?)" aria-label="Keys" onClick=${() => { help.value = true; }}>?</button>
    </header>
    <main id="main" tabindex="-1"><${View} key=${area.value} name=${area.value} /></main>
    ${help.value && html`<${Help} onClose=${() => { help.value = false; }} />`}
    ${(isAsking.value || asked.value) && html`<${Credential} onClose=${() => { isAsking.value = false; }} />`}`;
}

function nextTheme() {
  setTheme(THEMES[(THEMES.indexOf(theme.value) + 1) % THEMES.length]);
}

/** An area: loaded when it is first shown. A fault in it leaves the rest of the page alone. */
function View({ name }) {
  const view = useSignal(null);
  const problem = useSignal(null);
  const [fault, forget] = useErrorBoundary((error) => console.error(error));
  useEffect(() => {
    views[name]().then((module) => { view.value = module.View; }, () => {
      problem.value = new Error("this part of the page could not be loaded: the server may have been upgraded. Reload the page.");
    });
  }, []);
  if (fault) return html`<${Problem} error=${new Error(`this part of the page failed: ${fault.message}`)} onRetry=${forget} />`;
  if (problem.value) return html`<${Problem} error=${problem.value} />`;
  return view.value && html`<${view.value} />`;
}

/** Whether all shards are there. */
function State() {
  const { value, error } = usePoll((signal) => read("api/v1/cluster", {}, { signal }), STATE_EVERY_MS);
  const state = value.value;
  if (error.value) {
    const text = error.value.kind === "unreachable" ? "no answer" : `${error.value.status || "error"}`;
    return html`<span role="status"><a class="state bad" href=${linkTo("cluster")} title=${error.value.message}>● ${text}</a></span>`;
  }
  if (!state) return html`<span class="state" role="status">…</span>`;
  const total = state.shards.length;
  const text = state.ready ? `${total} shards ready` : `${state.shardsReady} of ${total} shards ready`;
  return html`<span role="status"><a class="state ${state.ready ? "good" : "bad"}" href=${linkTo("cluster")}>● ${text}</a></span>`;
}
