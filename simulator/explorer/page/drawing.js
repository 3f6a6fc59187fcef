// One run as the reader sees it: numbers, timeline, bytes, and a sentence about what is in focus.

import { criticalPath, nameOf } from "./causes.js";
import { drawBytes } from "./bytes.js";
import { drawTimeline, pointAt } from "./timeline.js";
import { explainAction, explainGap } from "./sentences.js";
import { h, heading } from "./dom.js";
import { human, inUnit, percent, short } from "./scale.js";
import { paletteOf } from "./palette.js";
import { endOf, explainMeasured, explainMeasuredGap } from "./measured.js";
import { heldAt, summaryOf } from "./summary.js";
import { stopAt } from "./stops.js";
import { W } from "./schedules.js";

const HELP = "Arrow keys go from action to action and from rank to rank. Space runs the play head. " +
  "Plus, minus and 0 zoom; Page up and Page down move. C shows the critical path. Escape ends a choice.";

/** The drawing. It tells of a "look" when the reader has zoomed, so that a second drawing can follow. */
export function makeDrawing() {
  const numbers = h("p", { class: "numbers", "aria-live": "polite", "aria-atomic": "true" });
  const timeline = h("canvas", { class: "timeline", tabindex: "0", role: "application", "aria-roledescription": "timeline", "aria-label": `Timeline. ${HELP}` });
  const bytes = h("canvas", { class: "bytes", role: "img" });
  const said = h("p", { class: "said", "aria-live": "polite" });
  const legend = h("ul", { class: "legend" });
  const picture = h("div", { class: "picture" }, numbers, heading(1, { class: "title" }, "Who does what"), legend, timeline);
  const element = h("div", { class: "drawing" }, picture, said, heading(1, { class: "title" }, "Bytes alive"), bytes);
  const state = { run: null, summary: null, from: 0, to: 1, chosen: null, head: null, path: false, beside: true, capacity: null, longest: null, most: null };
  let frame = null, queued = false, path = null;

  const draw = () => {
    queued = false;
    const { run, summary } = state, width = picture.clientWidth;
    if (!run || !width) return;
    const palette = paletteOf(element), view = { ...state, end: summary.end };
    if (state.path && !path) path = criticalPath(run);
    frame = drawTimeline(timeline, run, palette, width, { ...view, marked: state.path ? path : null, real: measuredIn(state) });
    const below = drawBytes(bytes, run, summary, palette, width, view);
    describe(timeline, frame);
    describe(bytes, below);
    element.dispatchEvent(new CustomEvent("drawn"));
  };
  const redraw = () => {
    if (!queued) queued = requestAnimationFrame(draw) > 0;
  };
  const say = (sentence) => {
    if (said.textContent !== sentence) said.textContent = sentence;
  };
  const sayWhatIsChosen = () => {
    const { run, chosen } = state;
    if (!chosen) return say(state.head === null ? "Point at an action or a gap, or choose one with the arrow keys." : holders(state));
    if (chosen.real) return say(explainMeasuredGap(run, chosen.gap));
    const also = measuredIn(state) && !chosen.gap ? ` ${explainMeasured(run, chosen.at)}` : "";
    say((chosen.gap ? explainGap(run, chosen.gap) : explainAction(run, chosen.at)) + also);
  };

  new ResizeObserver(redraw).observe(picture);
  return {
    element, timeline, bytes, state, redraw,
    /** Draw another run. The part of time that is shown stays whole. */
    show(run) {
      path = null;
      Object.assign(state, { run, summary: summaryOf(run), chosen: null, head: null });
      Object.assign(state, { from: 0, to: endOf(state) || 1 });
      numbers.replaceChildren(...numbersOf(run, state.summary));
      legend.replaceChildren(...legendOf(run));
      bytes.setAttribute("aria-label", bytesInWords(run, state.summary));
      sayWhatIsChosen();
      redraw();
    },
    change(values) {
      Object.assign(state, values);
      if (values.looked) element.dispatchEvent(new CustomEvent("look"));
      sayWhatIsChosen();
      redraw();
    },
    /** While the play head runs, its sentence changes with every frame: then it is not read out, but once at the end. */
    quiet(running) {
      said.setAttribute("aria-live", running ? "off" : "polite");
      if (running) return;
      said.textContent = "";
      sayWhatIsChosen();
    },
    /** What lies below a point of the timeline. */
    stopBelow(event) {
      const box = timeline.getBoundingClientRect(), y = event.clientY - box.top;
      const point = frame && pointAt(frame, event.clientX - box.left, y);
      return point && stopIn(state, point, (y / frame.row) % 1);
    },
    timeAt: (event) => frame.time.invert(event.clientX - timeline.getBoundingClientRect().left),
  };
}

/** The measured run, where there is one and the reader has not hidden it. */
const measuredIn = ({ run, beside }) => (beside && run.measured) || null;

/** What lies at a rank and a time; height: how far down in the rank's row, from 0 to 1. A measured row is the lower half. */
function stopIn(state, { rank, time }, height) {
  const { run } = state, real = measuredIn(state);
  if (!real) return stopAt(run, rank, time, height > 0.5);
  if (height < 0.5) return stopAt(run, rank, time, height > 0.25);
  const stop = stopAt(real, rank, time, height > 0.75);
  if (!stop || stop.gap) return stop && { ...stop, real: true };
  return { rank, start: run.start[stop.at], end: run.end[stop.at], at: stop.at };
}

/** Where things are drawn, for whoever reads the drawing back: tests, and scripts of a page. */
function describe(canvas, { left, right, row, from, to }) {
  Object.assign(canvas.dataset, { left, right, row, from, to });
}

function numbersOf(run, { makespan, bubble, internal, heaviest }) {
  const number = (name, value, title, words = name) => h("span", { class: "number", title }, h("b", { "data-number": name }, value), ` ${words}`);
  return [
    number("makespan", inUnit(makespan, run.measured?.unit), "from the first start to the last end", "makespan (whole step)"),
    number("bubble", percent(bubble), "idle time / total time of all ranks", "bubble (idle)"),
    number("without fill and drain", percent(internal), "every rank timed from its own start to its own end", "idle without fill and drain"),
    number(`most bytes, on rank ${heaviest.rank}`, human(heaviest.peak), "the largest peak of all ranks"),
  ];
}

/** What the colours mean; the number in a box is the microbatch. */
function legendOf(run) {
  const split = run.kind.includes(W);
  const entries = [["forward", "F, forward"], ["backward", "B, backward"]];
  if (split) entries.push(["weights", "W, its part for the weights"]);
  entries.push(["idle", "idle"]);
  const items = entries.map(([name, text]) => h("li", {}, h("span", { class: `swatch ${name}` }), text));
  const more = [run.measured && "upper row of a rank: predicted", run.measured && "lower row: measured", run.chunks > 1 && "paler: a later chunk", run.paired.includes(1) && "half a row each: at once"].filter(Boolean);
  return [...items, ...more.map((text) => h("li", {}, text))];
}

function bytesInWords(run, { ranks, heaviest }) {
  const at = heaviest.peakAt < 0 ? "" : ` at ${nameOf(run, heaviest.peakAt)}`;
  const others = ranks.length > 16 ? "" : ` Peaks of the ranks: ${ranks.map((row) => human(row.peak)).join(", ")}.`;
  return `Bytes alive over time. Rank ${heaviest.rank} holds the most: ${human(heaviest.peak)}${at}.${others}`;
}

/** Who holds what at the play head. */
function holders({ run, head }) {
  const ranks = [...Array(Math.min(run.ranks, 8)).keys()].map((rank) => {
    const { bytes, microbatches } = heldAt(run, rank, head);
    const which = [...new Set(microbatches.map(([, i]) => i))].sort((a, b) => a - b);
    const listed = which.length > 6 ? `${which.length} microbatches` : which.join(", ");
    return `rank ${rank} holds ${which.length ? `${human(bytes)} (${listed})` : human(bytes)}`;
  });
  return `At ${short(head)}: ${ranks.join("; ")}${run.ranks > 8 ? "; …" : ""}.`;
}
