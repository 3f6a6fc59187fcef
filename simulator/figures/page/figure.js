// The frame of all small figures: a picture that is drawn anew for every value and every step, with buttons, keys and words.
//
// A figure is draw(values, step, given) -> {marks, height, says, numbers}: marks as marks.js makes them, a sentence, and a few
// numbers [[words, value], …]. Where it has steps, steps(values, given) says how many. Python names the sliders (figure.py).

import { h, newId } from "./dom.js";
import { keepTheme } from "./page.js";
import { NAMES, svgFrom } from "./marks.js";
import { human, short } from "./scale.js";

const PACE = 900; // milliseconds a step, while the figure plays by itself

/** Show a figure. Returns the function that takes it away. */
export function show(root, given, draw, steps = () => 1) {
  const values = { ...given.values }, first = given.sliders[0], last = () => steps(values, given) - 1, walks = last() > 0;
  const keys = `${walks ? "Left and right arrows go from step to step, Space plays. " : ""}` +
    `${walks ? "Up and down arrows" : "Arrow keys"} change: ${first.label}.`;
  const stage = h("div", { class: "stage", tabindex: "0", role: "application", "aria-roledescription": "figure", "aria-label": `${given.title}. ${keys}`, title: keys });
  const numbers = h("p", { class: "numbers" }), said = h("p", { class: "said", "aria-live": "polite" });
  let step = 0, playing = 0;

  const redraw = () => {
    step = Math.max(0, Math.min(step, last()));
    const found = draw(values, step, given), style = getComputedStyle(view);
    stage.innerHTML = svgFrom(found, Object.fromEntries(NAMES.map((name) => [name, style.getPropertyValue(`--${name}`).trim()])));
    stage.firstChild.setAttribute("aria-hidden", "true"); // the words below say it
    stage.setAttribute("aria-description", found.says);
    said.textContent = found.says;
    numbers.replaceChildren(...found.numbers.map(([words, value]) => h("span", { class: "number" }, h("b", {}, value), ` ${words}`)));
    count.textContent = walks ? `step ${step} of ${last()}` : "";
    Object.assign(view.dataset, { step, values: JSON.stringify(values) });
  };
  const pause = () => {
    clearInterval(playing);
    playing = 0;
    play.textContent = "Play";
    said.setAttribute("aria-live", "polite");
  };
  const go = (to) => {
    pause();
    step = to;
    redraw();
  };
  const toggle = () => {
    if (playing) return pause();
    if (step >= last()) step = -1;
    said.setAttribute("aria-live", "off"); // not every step is read out
    play.textContent = "Pause";
    const next = () => {
      step += 1;
      redraw();
      if (step >= last()) pause();
    };
    playing = setInterval(next, PACE);
    next();
  };
  const controls = given.sliders.map((slider) => makeSlider(slider, values, () => go(step)));
  const button = (text, name, onclick) => h("button", { type: "button", "aria-label": name, title: name, onclick }, text);
  const play = button("Play", null, toggle), count = h("span", { class: "count" });
  const buttons = h("div", { class: "buttons", role: "group", "aria-label": "Steps" },
    button("◀", "one step back", () => go(step - 1)), button("▶", "one step on", () => go(step + 1)), play, count);
  const act = {
    ...(walks && { ArrowLeft: () => go(step - 1), ArrowRight: () => go(step + 1), Home: () => go(0), End: () => go(last()), " ": toggle }),
    ...(!walks && { ArrowLeft: () => controls[0].move(-1), ArrowRight: () => controls[0].move(1) }),
    ArrowDown: () => controls[0].move(-1), ArrowUp: () => controls[0].move(1),
  };
  stage.addEventListener("keydown", (event) => {
    if (!act[event.key] || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    event.stopPropagation(); // a notebook has meanings of its own for most keys
    act[event.key]();
  });
  const view = h("div", { class: "explorer figure" }, stage, ...(walks ? [buttons] : []), numbers, said,
    h("form", { class: "controls", "aria-label": given.title, onsubmit: (event) => event.preventDefault() }, ...controls.map((one) => one.element)));
  root.append(view);
  const end = keepTheme(root, view, redraw), shown = new ResizeObserver(redraw); // a view off the page has no colours yet
  shown.observe(view);
  redraw();
  return () => {
    pause();
    end();
    shown.disconnect();
    view.remove();
  };
}

/** A slider over a list of values, or a box to tick. */
function makeSlider({ name, label, choices, unit }, values, onChange) {
  const id = newId(name), tick = typeof choices[0] === "boolean", shown = h("output", { for: id });
  const field = h("input", { id, name, ...(tick ? { type: "checkbox" } : { type: "range", min: 0, max: choices.length - 1, step: 1 }) });
  const put = () => {
    const at = choices.indexOf(values[name]);
    if (tick) field.checked = values[name];
    else field.value = at;
    shown.textContent = tick ? "" : inWords(values[name], unit);
    if (!tick) field.setAttribute("aria-valuetext", shown.textContent);
  };
  const change = (to) => {
    values[name] = choices[Math.max(0, Math.min(choices.length - 1, to))];
    put();
    onChange();
  };
  field.oninput = () => change(tick ? Number(field.checked) : Number(field.value));
  put();
  return { element: h("div", { class: "control" }, h("label", { for: id }, label), tick ? field : shown, ...(tick ? [] : [field])), move: (by) => change(choices.indexOf(values[name]) + by) };
}

/** Seconds in words: 45 s, 20 min, 3.5 h. */
export function duration(seconds) {
  const [size, unit] = [[3600, "h"], [60, "min"]].find(([size]) => seconds >= 2 * size) ?? [1, "s"];
  return `${Number((seconds / size).toPrecision(3))} ${unit}`;
}

/** A value with its unit: bytes in MB, GB …, seconds in minutes or hours where they are many, anything else as it is. */
const inWords = (value, unit) => (unit.startsWith("B") ? `${human(value)}${unit.slice(1)}` : unit === "s" ? duration(value) : `${short(value)} ${unit}`.trim());
