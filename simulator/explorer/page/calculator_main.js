// Where the memory calculator begins: as a widget of a notebook, or as a page of its own.

import { fixedSource, hostSource, kernelSource } from "./sources.js";
import { startCalculator } from "./calculator.js";

/** anywidget calls this for every place in which the widget is shown. */
export function render({ model, el }) {
  const { question, choices } = model.get("given");
  return startCalculator(el, question, choices, kernelSource(model));
}

/**
 * The standalone page calls this once; answer: what Python has computed. A page that shows this one in an iframe and can
 * run Python sets the iframe's askPython(question), which promises an answer: then other plans are computed, too.
 */
export function start(el, { question, choices, answer }) {
  const host = window.frameElement?.askPython;
  return startCalculator(el, question, choices, host ? hostSource(host, { question, answer }) : fixedSource(answer));
}
