// The whole view: controls, drawing, buttons, tables.

import { connect } from "./gestures.js";
import { h } from "./dom.js";
import { isDark } from "./palette.js";
import { makeComparison, makeOverview } from "./compare.js";
import { makeControls } from "./controls.js";
import { makeDrawing } from "./drawing.js";
import { makeTables } from "./table.js";
import { newestFirst } from "./sources.js";

/** Show a question and whatever the reader makes of it. Returns the function that takes the view away. */
export function startView(root, question, source) {
  const drawing = makeDrawing(), tables = makeTables(), comparison = makeComparison(drawing);
  const overview = makeOverview(source, (schedule) => controls.change("schedule", schedule));
  let lastChanged = "schedule", controls = null, latest = null;
  const ask = newestFirst(source,
    (run, asked) => {
      controls.complain();
      drawing.element.classList.remove("outdated");
      drawing.show(run);
      latest = asked;
      comparison.update(asked);
      tables.show(run, drawing.state.summary);
      overview.show(asked);
    },
    (error) => {
      controls.complain(lastChanged, sentence(error));
      drawing.element.classList.add("outdated");
    });
  controls = makeControls(question, source.own, (changed, name) => {
    lastChanged = name;
    ask(changed);
  });
  const buttons = makeButtons(drawing, comparison, () => controls.question);
  const both = h("div", { class: "both" }, h("div", {}, comparison.ownTitle, drawing.element), comparison.place);
  const result = h("div", { class: "result" }, buttons, comparison.said, both, overview.element, tables.element);
  const view = h("div", { class: "explorer" }, h("div", { class: "layout" }, controls.element, result));
  view.addEventListener("focusin", leaveKeys);
  root.append(view);
  // What is shown now, for whoever reads the drawing back: tests, and scripts of a page.
  drawing.element.addEventListener("drawn", () => (view.dataset.shown = JSON.stringify(latest)));
  const theme = () => {
    view.dataset.theme = isDark(root) ? "dark" : "light";
    drawing.redraw();
  };
  const watch = new MutationObserver(theme), system = matchMedia("(prefers-color-scheme: dark)");
  for (const node of [document.documentElement, document.body]) watch.observe(node, { attributes: true });
  system.addEventListener("change", theme);
  theme();
  ask(controls.question);
  return () => {
    watch.disconnect();
    system.removeEventListener("change", theme);
    view.remove();
  };
}

/** JupyterLab leaves the keys to an element with this attribute; otherwise arrows would fold headings, and so on. */
export function leaveKeys({ target }) {
  target.setAttribute("data-lm-suppress-shortcuts", "true");
}

/** The sentence of an error, with a capital and a full stop. */
function sentence({ message }) {
  return `${message[0].toUpperCase()}${message.slice(1)}.`;
}

function makeButtons(drawing, comparison, question) {
  const play = h("button", { type: "button", class: "play" }, "Play");
  const act = connect(drawing, (playing) => (play.textContent = playing ? "Pause" : "Play"));
  const path = h("button", { type: "button", "aria-pressed": "false", title: "the chain of actions that decides the makespan (key C)" }, "Critical path");
  drawing.element.addEventListener("drawn", () => path.setAttribute("aria-pressed", String(drawing.state.path)));
  play.onclick = act.play;
  path.onclick = act.critical;
  const keep = h("button", { type: "button", class: "keep", title: "keep this drawing beside those that follow" }, "Keep to compare");
  keep.onclick = () => {
    if (comparison.active) comparison.drop();
    else comparison.keep(question());
    keep.textContent = comparison.active ? "Drop the kept one" : "Keep to compare";
  };
  const button = (text, name, onclick) => h("button", { type: "button", "aria-label": name, title: name, onclick }, text);
  return h("div", { class: "buttons", role: "toolbar", "aria-label": "Drawing" }, play, path,
    button("+", "zoom in", act.zoomIn), button("−", "zoom out", act.zoomOut), button("whole step", "show the whole step", act.whole), keep);
}
