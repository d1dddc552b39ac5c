// The frame of the page: the areas, the state of the cluster, and what belongs to all of them.
import { html, useEffect, useRef, useSignal } from "../vendor.js";
import { asked, authorization } from "../base/access.js";
import { utc } from "../base/format.js";
import { useKeys } from "../base/keys.js";
import { area, AREAS, go, linkTo } from "../base/link.js";
import { Problem } from "../base/remarks.js";
import { Credential } from "./credential.js";
import { Fence } from "./fence.js";
import { Help } from "./help.js";
import { State } from "./state.js";
import { setTheme, theme, THEMES } from "./theme.js";

const TITLES = { metrics: "Metrics", log: "Log", vectors: "Vectors", alerts: "Alerts", cluster: "Cluster" };
const views = {
  metrics: () => import("../metrics/view.js"),
  log: () => import("../log/view.js"),
  vectors: () => import("../vectors/view.js"),
  alerts: () => import("../alerts/view.js"),
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
  const isFirst = useRef(true);
  useEffect(() => {
    document.title = `${TITLES[area.value]} – Triptych`;
    if (!isFirst.current && document.activeElement === document.body) document.getElementById("main").focus();
    isFirst.current = false;
  }, [area.value]);
  return html`
    <a class="skip" href="#main" onClick=${(event) => { event.preventDefault(); document.getElementById("main").focus(); }}>Skip to the content</a>
    <header class="bar">
      <span class="brand">Triptych</span>
      <nav aria-label="Areas">${AREAS.map((name) => html`<a href=${linkTo(name)} aria-current=${area.value === name ? "page" : undefined}
        onClick=${(event) => follow(event, name)}>${TITLES[name]}</a>`)}</nav>
      <span class="space"></span>
      <${Fence}><${State} onAsk=${() => { isAsking.value = true; }} /><//>
      <button class="quiet" title="Times in UTC or of this browser (z)" onClick=${() => { utc.value = !utc.value; }}>${utc.value ? "UTC" : "Local"}</button>
      <button class="quiet" title="Light, dark, or as the system (t)" aria-label=${`Colours: ${theme.value}`} onClick=${nextTheme}>${{ light: "☀", dark: "☾", system: "◐" }[theme.value]}</button>
      <button class="quiet" title="Credential" aria-label="Credential" aria-pressed=${Boolean(authorization.value)} onClick=${() => { isAsking.value = true; }}><${Key} /></button>
      <button class="quiet" title="Keys (?)" aria-label="Keys" onClick=${() => { help.value = true; }}>?</button>
    </header>
    <main id="main" tabindex="-1"><${View} key=${area.value} name=${area.value} /></main>
    ${help.value && html`<${Help} onClose=${() => { help.value = false; }} />`}
    ${(isAsking.value || asked.value) && html`<${Credential} onClose=${() => { isAsking.value = false; }} />`}`;
}

function follow(event, name) {
  if (event.ctrlKey || event.metaKey || event.shiftKey || event.altKey) return; // a new tab or window, or a download
  event.preventDefault();
  if (area.value !== name) go(name);
}

function nextTheme() {
  setTheme(THEMES[(THEMES.indexOf(theme.value) + 1) % THEMES.length]);
}

// A sign that not all fonts have.
const Key = () => html`<svg width="16" height="16" viewBox="0 0 16 16" fill="none" stroke="currentColor" stroke-width="1.6"
  aria-hidden="true"><circle cx="4.5" cy="8" r="2.7" /><path d="M7.2 8H15M12 8v3M14.500 8v2.500" /></svg>`;

/** An area: loaded when it is first shown. A fault in it leaves the rest of the page alone. */
function View({ name }) {
  const view = useSignal(null);
  const problem = useSignal(null);
  useEffect(() => {
    views[name]().then((module) => { view.value = module.View; }, (error) => {
      console.error(error);
      problem.value = new Error("this part of the page could not be loaded: the server may have been upgraded. Reload the page.");
    });
  }, []);
  if (problem.value) return html`<${Problem} error=${problem.value} />`;
  return view.value && html`<${Fence}><${view.value} /><//>`;
}
