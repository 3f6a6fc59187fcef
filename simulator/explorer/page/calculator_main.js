// Where the memory calculator begins: as a widget of a notebook, or as a page of its own.

import { atAddress } from "./address.js";
import { calculate } from "./calculate.js";
import { kernelSource } from "./sources.js";
import { startCalculator } from "./calculator.js";

/** anywidget calls this for every place in which the widget is shown. */
export function render({ model, el }) {
  const { question, known } = model.get("given");
  return startCalculator(el, question, known.choices, kernelSource(model, (asked) => calculate(asked, known)));
}

/** The standalone page calls this once; known: the choices, models and devices that Python knows; defaults: of a question. */
export function start(el, { question, known, defaults }) {
  const { asked, write } = atAddress(question, defaults);
  return startCalculator(el, asked, known.choices, { atOnce: (changed) => calculate(changed, known) }, write);
}
