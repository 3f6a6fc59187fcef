// The challenge: reach a makespan under a cap of bytes. The reader says what will come out before it is shown.

import { h, newId } from "./dom.js";
import { human, percent, short } from "./scale.js";

export const FREE = ["schedule", "chunks", "recompute"]; // all else belongs to the task

/**
 * The box of a challenge {makespan, bytes}; cover() hides the drawing until the reader has guessed, and with it the
 * elements that would give the answer away.
 */
export function makeChallenge({ makespan, bytes }, drawing, elements) {
  const id = newId("guess"), said = h("p", { class: "challenge-said", role: "status" });
  const guess = h("input", { id, type: "text", inputmode: "decimal", autocomplete: "off" });
  const reveal = () => {
    const value = Number(guess.value.replace(",", "."));
    if (guess.value.trim() === "" || !(value > 0) || !Number.isFinite(value)) {
      said.textContent = `Your guess must be a number more than 0, not '${guess.value}'.`;
      return;
    }
    for (const element of elements) element.classList.remove("covered");
    said.textContent = `${judged(value, drawing.state.summary)} ${reached(drawing.state.summary, makespan, bytes)}`;
  };
  const form = h("form", { class: "guess" }, h("label", { for: id }, "Your guess of the makespan: "), guess, " ",
    h("button", { type: "submit" }, "Reveal"));
  form.onsubmit = (event) => {
    event.preventDefault();
    reveal();
  };
  const task = `Reach a makespan of at most ${short(makespan)}, with at most ${human(bytes)} on every rank. ` +
    "You can change the schedule, its chunks and the recomputation. Guess first; then the drawing appears.";
  return {
    element: h("section", { class: "challenge", "aria-label": "Challenge" }, h("p", {}, h("b", {}, "Challenge. "), task), form, said),
    cover() {
      for (const element of elements) element.classList.add("covered");
      drawing.change({ capacity: bytes });
      guess.value = said.textContent = "";
    },
  };
}

function judged(guess, { makespan }) {
  const away = Math.abs(guess - makespan) / (makespan || 1);
  const how = away < 0.005 ? "you were right" : `your ${short(guess)} is too ${guess < makespan ? "low" : "high"} by ${percent(away)}`;
  return `The makespan is ${short(makespan)}; ${how}.`;
}

/** Whether the task is done, and what is missing. */
export function reached(summary, makespan, bytes) {
  const missing = [];
  if (summary.makespan > makespan * (1 + 1e-9)) missing.push(`the makespan must be at most ${short(makespan)}`);
  if (summary.heaviest.peak > bytes * (1 + 1e-9)) {
    missing.push(`rank ${summary.heaviest.rank} holds ${human(summary.heaviest.peak)}, more than ${human(bytes)}`);
  }
  return missing.length ? `Not reached yet: ${missing.join(", and ")}.` : "Reached: the step is short enough, and every rank has room.";
}
