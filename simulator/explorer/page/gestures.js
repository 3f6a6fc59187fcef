// Keys, pointer and play head of a drawing.

import { endOf } from "./measured.js";
import { stopBeside, stopsOf } from "./stops.js";

const WHOLE_STEP = 12000; // milliseconds in which the play head crosses the step

/** Connects a drawing with the keyboard and the pointer; returns what the buttons call. */
export function connect(drawing, onPlaying = () => {}) {
  const { state, timeline } = drawing;
  let playing = 0, dragged = null;

  const longest = () => state.longest || endOf(state) || 1;
  const look = (from, to) => {
    const end = longest(), size = Math.min(end, Math.max(to - from, end / 5000));
    const start = Math.max(0, Math.min(from, end - size));
    drawing.change({ from: start, to: start + size, looked: true });
  };
  const zoom = (factor, around = state.chosen?.start ?? state.head ?? (state.from + state.to) / 2) => {
    const middle = Math.max(state.from, Math.min(state.to, around));
    look(middle - (middle - state.from) * factor, middle + (state.to - middle) * factor);
  };
  const pan = (share) => look(state.from + share * (state.to - state.from), state.to + share * (state.to - state.from));
  const whole = () => look(0, longest());
  const choose = (stop) => {
    if (!stop) return;
    if (stop.start < state.from || stop.end > state.to) look(stop.start - (state.to - state.from) / 2, stop.start + (state.to - state.from) / 2);
    drawing.change({ chosen: stop, head: stop.start });
  };
  const stop = () => {
    cancelAnimationFrame(playing);
    playing = 0;
    drawing.quiet(false);
    onPlaying(false);
  };
  const play = () => {
    if (playing) return stop();
    const end = state.summary.end, run = state.run;
    let last = performance.now();
    if (state.head === null || state.head >= end) state.head = 0;
    const step = (now) => {
      if (state.run !== run) return stop();
      const head = state.head + ((now - last) / WHOLE_STEP) * end;
      last = now;
      drawing.change({ chosen: null, head: Math.min(head, end) });
      if (head < end) playing = requestAnimationFrame(step);
      else stop();
    };
    playing = requestAnimationFrame(step);
    drawing.quiet(true);
    onPlaying(true);
  };
  const critical = () => drawing.change({ path: !state.path });
  const clear = () => drawing.change({ chosen: null, head: null });

  const move = (steps) => choose(state.chosen ? stopBeside(state.run, state.chosen, steps) : stopsOf(state.run, 0)[0]);
  const changeRank = (steps) => {
    const { chosen, run } = state, rank = Math.max(0, Math.min(run.ranks - 1, (chosen?.rank ?? -1) + steps));
    const time = chosen?.start ?? 0, stops = stopsOf(run, rank);
    choose(stops.find((one) => one.end > time) ?? stops[stops.length - 1]);
  };
  const edge = (last) => {
    const stops = stopsOf(state.run, state.chosen?.rank ?? 0);
    choose(stops[last ? stops.length - 1 : 0]);
  };
  const keys = {
    ArrowRight: () => move(1), ArrowLeft: () => move(-1), ArrowDown: () => changeRank(1), ArrowUp: () => changeRank(-1),
    Home: () => edge(false), End: () => edge(true), " ": play, "+": () => zoom(0.5), "=": () => zoom(0.5), "-": () => zoom(2),
    0: whole, PageDown: () => pan(0.5), PageUp: () => pan(-0.5), c: critical, Escape: clear,
  };
  timeline.addEventListener("keydown", (event) => {
    const act = keys[event.key];
    if (!act || !state.run || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    event.stopPropagation(); // a notebook has meanings of its own for most keys
    if (playing && event.key !== " ") stop();
    act();
  });
  timeline.addEventListener("pointerdown", (event) => {
    dragged = { x: event.clientX, from: state.from, to: state.to, moved: false };
    timeline.setPointerCapture(event.pointerId);
  });
  timeline.addEventListener("pointermove", (event) => {
    if (!state.run) return;
    if (!dragged) {
      if (!playing) drawing.change({ chosen: drawing.stopBelow(event) });
      return;
    }
    const { left, right } = timeline.dataset, away = event.clientX - dragged.x;
    const time = (away / (right - left)) * (dragged.to - dragged.from);
    if (Math.abs(away) > 3) dragged.moved = true;
    if (dragged.moved) look(dragged.from - time, dragged.to - time);
  });
  timeline.addEventListener("pointerup", (event) => {
    if (dragged && !dragged.moved && state.run) drawing.change({ head: drawing.timeAt(event), chosen: null });
    dragged = null;
  });
  timeline.addEventListener("pointerleave", () => {
    if (!dragged && !playing && document.activeElement !== timeline) drawing.change({ chosen: null });
  });
  timeline.addEventListener("wheel", (event) => {
    if (!state.run || !(event.ctrlKey || event.metaKey)) return; // a bare wheel scrolls the page
    event.preventDefault();
    zoom(event.deltaY < 0 ? 0.8 : 1.25, drawing.timeAt(event));
  }, { passive: false });
  return { play, zoomIn: () => zoom(0.5), zoomOut: () => zoom(2), whole, critical, clear };
}
