// The whole view: controls, drawing, buttons, tables.

import { connect } from "./gestures.js";
import { h } from "./dom.js";
import { isDark } from "./palette.js";
import { makeControls } from "./controls.js";
import { makeDrawing } from "./drawing.js";
import { makeTables } from "./table.js";
import { newestFirst } from "./sources.js";

/** Show a question and whatever the reader makes of it. Returns the function that takes the view away. */
export function startView(root, question, source) {
  const drawing = makeDrawing(), tables = makeTables();
  let lastChanged = "schedule", controls = null;
  const ask = newestFirst(source,
    (run) => {
      controls.complain();
      drawing.element.classList.remove("outdated");
      drawing.show(run);
      tables.show(run, drawing.state.summary);
    },
    (error) => {
      controls.complain(lastChanged, sentence(error));
      drawing.element.classList.add("outdated");
    });
  controls = makeControls(question, (changed, name) => {
    lastChanged = name;
    ask(changed);
  });
  const buttons = makeButtons(drawing);
  const result = h("div", { class: "result" }, buttons, drawing.element, tables.element);
  const view = h("div", { class: "explorer" }, h("div", { class: "layout" }, controls.element, result));
  root.append(view);
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

/** The sentence of an error, with a capital and a full stop. */
function sentence({ message }) {
  return `${message[0].toUpperCase()}${message.slice(1)}.`;
}

function makeButtons(drawing) {
  const play = h("button", { type: "button", class: "play" }, "Play");
  const act = connect(drawing, (playing) => (play.textContent = playing ? "Pause" : "Play"));
  const path = h("button", { type: "button", "aria-pressed": "false", title: "the chain of actions that decides the makespan (key C)" }, "Critical path");
  drawing.element.addEventListener("drawn", () => path.setAttribute("aria-pressed", String(drawing.state.path)));
  play.onclick = act.play;
  path.onclick = act.critical;
  const button = (text, name, onclick) => h("button", { type: "button", "aria-label": name, title: name, onclick }, text);
  return h("div", { class: "buttons", role: "toolbar", "aria-label": "Drawing" }, play, path,
    button("+", "zoom in", act.zoomIn), button("−", "zoom out", act.zoomOut), button("whole step", "show the whole step", act.whole));
}
