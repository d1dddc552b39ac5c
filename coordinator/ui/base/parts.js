// An area of several parts, of which one is shown: the parameter `show` of the link says which.
import { html } from "../vendor.js";
import { useKeys } from "./keys.js";
import { area, change, linkTo, params } from "./link.js";

/** Show a part with these parameters and no others. */
function show(name, first) {
  const others = Object.fromEntries([...params.value.keys()].map((key) => [key, null]));
  change({ ...others, show: name === first ? null : name });
}

/** `title`: of the area. `parts`: {name: {title, Part}}; the first is shown if the link names none. */
export function Parts({ title, parts }) {
  const names = Object.keys(parts);
  const wanted = params.value.get("show");
  const name = names.includes(wanted) ? wanted : names[0];
  const { title: shown, Part } = parts[name];
  useKeys(names.map((one, index) => ({ keys: `${index + 1}`, label: `${title}: ${parts[one].title}`, run: () => show(one, names[0]) })));
  const chosen = (event, one) => {
    if (event.ctrlKey || event.metaKey || event.shiftKey) return;
    event.preventDefault();
    show(one, names[0]);
  };
  return html`<div class="cluster stack">
    <div class="row"><h1>${title}</h1>
      <nav class="parts" aria-label=${`Parts of ${title}`}>${names.map((one) => html`<a
        href=${linkTo(area.value, one === names[0] ? {} : { show: one })} aria-current=${one === name ? "page" : undefined}
        onClick=${(event) => chosen(event, one)}>${parts[one].title}</a>`)}</nav></div>
    <section class="stack" aria-label=${shown}><${Part} key=${name} /></section>
  </div>`;
}
