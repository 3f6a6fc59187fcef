// The whole view: controls, drawing, buttons, tables.

import { FREE, makeChallenge } from "./challenge.js";
import { asSentence, keepTheme } from "./page.js";
import { connect } from "./gestures.js";
import { h } from "./dom.js";
import { makeComparison, makeOverview } from "./compare.js";
import { makeControls } from "./controls.js";
import { makeDrawing } from "./drawing.js";
import { makeBeside, withMeasured } from "./measured.js";
import { makeTables } from "./table.js";
import { newestFirst } from "./sources.js";
import { pipelineForm } from "./fields.js";

/**
 * Show a question and whatever the reader makes of it; goal: {makespan, bytes} of a challenge, or null; measured: when
 * each action of a schedule really ran, or null; onShown is called with each question whose answer is drawn. Returns the
 * function that takes the view away.
 */
export function startView(root, question, source, goal = null, measured = null, onShown = () => {}) {
  const drawing = makeDrawing(), tables = makeTables(), comparison = makeComparison(drawing);
  const beside = measured && makeBeside(drawing, measured);
  const overview = makeOverview(source, (schedule) => controls.change("schedule", schedule));
  let lastChanged = "schedule", controls = null, latest = null;
  const ask = newestFirst(source,
    (found, asked) => {
      const run = withMeasured(found, measured);
      controls.complain();
      drawing.element.classList.remove("outdated");
      drawing.show(run);
      beside?.show(drawing.state);
      latest = asked;
      comparison.update(asked);
      tables.show(run, drawing.state.summary);
      overview.show(asked);
      onShown(asked);
    },
    (error) => {
      controls.complain(lastChanged, asSentence(error));
      drawing.element.classList.add("outdated");
    },
    (asked) => (drawing.element.dataset.confirmed = JSON.stringify(asked)));
  controls = makeControls(pipelineForm(source.own, question, measured?.unit), question, (changed, name) => {
    lastChanged = name;
    challenge?.cover();
    ask(changed);
  });
  const buttons = makeButtons(drawing, comparison, () => controls.question);
  if (!goal) buttons.append(overview.button);
  if (beside) buttons.append(beside.button);
  const both = h("div", { class: "both" }, h("div", { class: "now" }, comparison.ownTitle, drawing.element), comparison.place);
  // The kept drawing and its comparison would tell the makespan, too: both are drawn to one scale.
  const challenge = goal && makeChallenge(goal, drawing, [buttons, comparison.said, both]);
  if (challenge) {
    controls.lock(FREE);
    challenge.cover();
  }
  const result = h("div", { class: "result" }, ...(challenge ? [challenge.element] : []), buttons, ...(challenge ? [] : [overview.element]),
    ...(beside ? [beside.said] : []), comparison.said, both, ...(challenge ? [] : [tables.element]));
  const view = h("div", { class: "explorer" }, h("div", { class: "layout" }, result, controls.element));
  root.append(view);
  // What is shown now, for whoever reads the drawing back: tests, and scripts of a page.
  drawing.element.addEventListener("drawn", () => (view.dataset.shown = JSON.stringify(latest)));
  const end = keepTheme(root, view, drawing.redraw);
  ask(controls.question);
  return () => {
    end();
    view.remove();
  };
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
  return h("div", { class: "buttons", role: "group", "aria-label": "Drawing" }, play, path,
    button("+", "zoom in", act.zoomIn), button("−", "zoom out", act.zoomOut), button("whole step", "show the whole step", act.whole), keep);
}
