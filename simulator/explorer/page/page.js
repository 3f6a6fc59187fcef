// What both views need of the page around them: its theme and its keys.

import { isDark } from "./palette.js";

/**
 * Follow the theme of the page around a view; onChange is called after each change. Returns the function that stops.
 * Outside of a page there is no theme to ask for, and JupyterLab draws a cell that is off screen there, or moves it
 * there: when the view has come (back) into the page, it gets a size.
 */
export function keepTheme(root, view, onChange) {
  const theme = () => {
    const now = isDark(root) ? "dark" : "light";
    if (view.dataset.theme === now) return;
    view.dataset.theme = now;
    onChange();
  };
  const watch = new MutationObserver(theme), system = matchMedia("(prefers-color-scheme: dark)");
  const shown = new ResizeObserver(theme);
  shown.observe(view);
  for (const node of [document.documentElement, document.body]) watch.observe(node, { attributes: true });
  system.addEventListener("change", theme);
  view.addEventListener("focusin", leaveKeys);
  theme();
  return () => {
    watch.disconnect();
    shown.disconnect();
    system.removeEventListener("change", theme);
  };
}

/** JupyterLab leaves the keys to an element with this attribute; otherwise arrows would fold headings, and so on. */
function leaveKeys({ target }) {
  target.setAttribute("data-lm-suppress-shortcuts", "true");
}

/** What an error says, with a capital and a full stop. */
export function asSentence({ message }) {
  return `${message[0].toUpperCase()}${message.slice(1)}.`;
}
