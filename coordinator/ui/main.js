// Starts the page.
import { html, render } from "./vendor.js";
import { App } from "./shell/app.js";

const place = document.getElementById("page");
place.replaceChildren();
render(html`<${App} />`, place);
