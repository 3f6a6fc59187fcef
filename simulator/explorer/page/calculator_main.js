// Where the memory calculator begins: as a widget of a notebook, or as a page of its own.

import { fixedSource, kernelSource } from "./sources.js";
import { startCalculator } from "./calculator.js";

/** anywidget calls this for every place in which the widget is shown. */
export function render({ model, el }) {
  const { question, choices } = model.get("given");
  return startCalculator(el, question, choices, kernelSource(model));
}

/** The standalone page calls this once; answer: what Python has computed. */
export function start(el, { question, choices, answer }) {
  return startCalculator(el, question, choices, fixedSource(answer));
}
