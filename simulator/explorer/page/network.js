// A network as a tree of modules. Python writes its rows, which fold by themselves; here they get keys and a line of words.

import { h } from "./dom.js";
import { keepTheme } from "./page.js";

const ADVICE = "Point at a module, or move with the arrow keys: all that is known of it stands here.";

/** anywidget calls this for every place in which the widget is shown. */
export const render = ({ model, el }) => start(el, model.get("given"));

/** Show a tree; html: as Python has written it, with its style sheet. Returns the function that takes the view away. */
export function start(root, { html }) {
  const inside = h("div", { class: "inside" }), said = h("p", { class: "said" }, ADVICE);
  inside.innerHTML = html;
  const rows = [...inside.querySelectorAll(".row")];
  rows.forEach(makeTreeItem);
  const say = ({ target }) => {
    const row = target.closest(".row");
    if (row) said.textContent = row.ariaLabel;
  };
  inside.addEventListener("pointerover", say);
  inside.addEventListener("focusin", (event) => {
    say(event);
    for (const row of rows) row.tabIndex = row === event.target ? 0 : -1;
  });
  inside.addEventListener("keydown", (event) => {
    const row = event.target.closest(".row");
    if (!row || event.ctrlKey || event.altKey || event.metaKey) return;
    const to = nextOf(row, event.key, rows);
    if (!to) return;
    event.preventDefault();
    to.focus();
  });
  const button = (text, open) => h("button", { type: "button", onclick: () => {
    for (const fold of inside.querySelectorAll("li li details")) fold.open = open;
  } }, text);
  const buttons = h("div", { class: "buttons" }, button("Open all", true), button("Fold all", false));
  const view = h("div", { class: "explorer" }, buttons, inside, said);
  root.append(view);
  const end = keepTheme(root, view, () => {});
  return () => {
    end();
    view.remove();
  };
}

/** A row as screen readers know it from trees: the sentence about it is its name, and one Tab leads into the whole tree. */
function makeTreeItem(row, k) {
  const list = row.closest("ul"), fold = foldOf(row);
  list.role = list.matches(".tree") ? "tree" : "group";
  row.closest("li").role = "none";
  Object.assign(row, { role: "treeitem", tabIndex: k ? -1 : 0, ariaLabel: row.title, title: "" });
  let level = 0;
  for (let above = list; above; above = above.parentElement.closest("ul")) level++;
  row.ariaLevel = level;
  if (!fold) return;
  row.ariaExpanded = fold.open;
  fold.addEventListener("toggle", () => { row.ariaExpanded = fold.open; });
}

const foldOf = (row) => (row.matches("summary") ? row.parentElement : null);
const aboveOf = (row) => row.closest("ul").closest("details")?.querySelector("summary");
const isShown = (row) => !row.closest("ul").closest("details:not([open])");

/** The row that a key leads to; to open or to close a module leads to its own row. */
function nextOf(row, key, rows) {
  const fold = foldOf(row), shown = rows.filter(isShown), at = shown.indexOf(row);
  if ((key === "ArrowRight" && fold && !fold.open) || (key === "ArrowLeft" && fold?.open)) {
    fold.open = !fold.open;
    return row;
  }
  const after = shown[at + 1], before = shown[at - 1];
  return { ArrowDown: after, ArrowUp: before, ArrowRight: fold && after, ArrowLeft: aboveOf(row), Home: shown[0], End: shown.at(-1) }[key];
}
