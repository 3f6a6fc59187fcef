// The controls: a select, or a slider with a field in which a number can be typed. What is wrong is said below it.

import { FIELDS, GROUPS, isIdle, textOf, valueOf } from "./fields.js";
import { OWN } from "./schedules.js";
import { h, newId } from "./dom.js";

/** The form of one question; own: is there a schedule of the reader's? onChange(question, name) is called for every change. */
export function makeControls(start, own, onChange) {
  let question = { ...start };
  const parts = {};
  const changed = (name, text) => {
    question = { ...question, [name]: valueOf(name, text) };
    if (name === "schedule") question.chunks = null;
    show();
    onChange(question, name);
  };
  const show = () => {
    for (const [name, part] of Object.entries(parts)) {
      part.show(question[name]);
      part.box.toggleAttribute("data-idle", isIdle(name, question));
    }
  };
  const form = h("form", { class: "controls", "aria-label": "What is drawn", onsubmit: (event) => event.preventDefault() });
  for (const [title, names] of GROUPS) {
    const group = h("fieldset", {}, h("legend", {}, title));
    for (const name of names) {
      parts[name] = makeControl(name, changed, name === "schedule" && own ? [OWN] : []);
      group.append(parts[name].box);
    }
    form.append(group);
  }
  show();
  return {
    element: form,
    get question() { return question; },
    /** As if the reader had written that text into the control of that name. */
    change: changed,
    /** Say what is wrong below the control of that name; without a sentence, nothing is wrong any more. */
    complain(name, sentence = "") {
      for (const part of Object.values(parts)) part.complain("");
      if (sentence) parts[name].complain(sentence);
    },
  };
}

function makeControl(name, changed, moreOptions) {
  const { kind, label, slider, empty, example, options } = FIELDS[name], id = newId(name), errorId = newId("error");
  const error = h("p", { id: errorId, class: "error", role: "alert" });
  const described = { id, name, "aria-describedby": errorId };
  let field;
  if (kind === "choice") {
    field = h("select", { ...described, onchange: () => changed(name, field.value) },
      ...[...options, ...moreOptions].map((option) => h("option", { value: option }, option)));
  } else {
    const hint = [empty && `empty: ${empty}`, example && `for example ${example}`].filter(Boolean).join("; ");
    field = h("input", {
      ...described, type: "text", inputmode: kind === "list" ? "text" : "decimal", autocomplete: "off", spellcheck: "false",
      placeholder: example ?? (empty ? "auto" : ""), title: hint || null, class: kind === "list" ? "wide" : "",
      oninput: () => changed(name, field.value),
    });
  }
  const row = h("span", { class: "row" }, field);
  let range = null;
  if (slider) {
    const [min, max, step] = slider;
    range = h("input", { type: "range", min, max, step, "aria-label": `${label}, slider`, "aria-describedby": errorId });
    range.oninput = () => changed(name, range.value);
    row.prepend(range);
  }
  const box = h("div", { class: `control ${name}` }, h("label", { for: id }, label), row, error);
  return {
    box,
    show(value) {
      const text = textOf(name, value);
      if (field !== document.activeElement && field.getRootNode().activeElement !== field) field.value = text;
      if (range && text !== "") range.value = text;
    },
    complain(sentence) {
      if (error.textContent !== sentence) error.textContent = sentence;
      field.setAttribute("aria-invalid", sentence ? "true" : "false");
    },
  };
}
