// Where the page begins: as a widget of a notebook, or as a page of its own.

import { atAddress } from "./address.js";
import { kernelSource, pageSource } from "./sources.js";
import { answer } from "./answer.js";
import { OWN } from "./schedules.js";
import { startView } from "./view.js";

/** anywidget calls this for every place in which the widget is shown. */
export function render({ model, el }) {
  const { question, own, challenge, measured } = model.get("given");
  // The page draws at once what it can compute, and Python confirms it; only Python can run the reader's own code.
  const atOnce = (asked) => (asked.schedule === OWN ? undefined : answer(asked));
  return startView(el, question, { ...kernelSource(model, atOnce), own }, challenge, measured);
}

/**
 * The standalone page calls this once; own: the schedule that a reader has written, or null; challenge: a task; measured: a
 * step; defaults: of a question.
 */
export function start(el, { question, own, challenge, measured, defaults }) {
  const { asked, more, write } = atAddress(question, defaults, ["challenge"]);
  return startView(el, asked, pageSource(own), more.challenge?.makespan > 0 && more.challenge.bytes > 0 ? more.challenge : challenge, measured, write);
}
