// Where the page begins: as a widget of a notebook, or as a page of its own.

import { kernelSource, pageSource } from "./sources.js";
import { startView } from "./view.js";

/** anywidget calls this for every place in which the widget is shown. */
export function render({ model, el }) {
  const still = el.closest(".jp-OutputArea, .output_area, .cell-output-container")?.querySelector(".explorer-still");
  if (still) still.hidden = true;
  const end = startView(el, model.get("question"), kernelSource(model));
  return () => {
    if (still) still.hidden = false;
    end();
  };
}

/** The standalone page calls this once. */
export function start(el, question, own) {
  return startView(el, question, pageSource(own));
}
