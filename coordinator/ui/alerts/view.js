// The area "alerts": what fires, the rules it comes from, and the targets that are scraped.
import { html } from "../vendor.js";
import { Parts } from "../base/parts.js";
import { Alerts } from "./alerts.js";
import { Rules } from "./rules.js";
import { Targets } from "./targets.js";

const PARTS = {
  alerts: { title: "Alerts", Part: Alerts },
  rules: { title: "Rules", Part: Rules },
  targets: { title: "Targets", Part: Targets },
};

export const View = () => html`<${Parts} title="Alerts" parts=${PARTS} />`;
