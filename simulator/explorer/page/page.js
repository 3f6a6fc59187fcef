// What both views need of the page around them: its theme and its keys.

import { isDark } from "./palette.js";

/** Follow the theme of the page around a view; onChange is called after each change. Returns the function that stops. */
export function keepTheme(root, view, onChange) {
  const theme = () => {
    view.dataset.theme = isDark(root) ? "dark" : "light";
    onChange();
  };
  const watch = new MutationObserver(theme), system = matchMedia("(prefers-color-scheme: dark)");
  for (const node of [document.documentElement, document.body]) watch.observe(node, { attributes: true });
  system.addEventListener("change", theme);
  view.addEventListener("focusin", leaveKeys);
  theme();
  return () => {
    watch.disconnect();
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
