// Light or dark. The choice outlives the tab.
import { signal } from "../vendor.js";

export const THEMES = ["system", "light", "dark"];
const KEY = "triptych.theme";

function kept() {
  try {
    return THEMES.includes(localStorage.getItem(KEY)) ? localStorage.getItem(KEY) : THEMES[0];
  } catch {
    return THEMES[0]; // storage is switched off
  }
}

export const theme = signal(kept());
/** Changes when the colours do, also with the system's: what draws on a canvas draws again. */
export const colours = signal(0);

export function setTheme(name) {
  theme.value = name;
  try {
    localStorage.setItem(KEY, name);
  } catch {
    // then it lasts as long as the tab
  }
  apply();
}

function apply() {
  if (theme.value === "system") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme.value;
  colours.value += 1;
}

/** The value of a colour of styles/colours.css, such as "--text", as it is now. */
export const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

matchMedia("(prefers-color-scheme: dark)").addEventListener("change", apply);
apply();
