// The controls: a select, or a slider with a field in which a number can be typed. What is wrong is said below it.

import { h, newId } from "./dom.js";
import { textOf, valueOf } from "./fields.js";

/** The controls of a form, such as pipelineForm makes. onChange(question, name) is called for every change. */
export function makeControls({ title, groups, fields, isIdle, settle }, start, onChange) {
  let question = { ...start };
  const parts = {};
  const changed = (name, text) => {
    question = settle({ ...question, [name]: valueOf(fields[name], text) }, name);
    show();
    onChange(question, name);
  };
  const show = () => {
    for (const [name, part] of Object.entries(parts)) {
      part.show(question[name]);
      part.box.toggleAttribute("data-idle", isIdle(name, question));
    }
  };
  const form = h("form", { class: "controls", "aria-label": title, onsubmit: (event) => event.preventDefault() });
  for (const [legend, names] of groups) {
    const group = h("fieldset", {}, h("legend", {}, legend));
    for (const name of names) {
      parts[name] = makeControl(name, fields[name], changed);
      group.append(parts[name].box);
    }
    form.append(group);
  }
  show();
  return {
    element: form,
    get question() { return question; },
    /** Change several values at once. */
    set(values) {
      question = { ...question, ...values };
      show();
      onChange(question, Object.keys(values)[0]);
    },
    /** Put the keyboard on the control of that name. */
    focus(name) { parts[name].focus(); },
    /** Switch off all controls but those. */
    lock(free) {
      for (const [name, { box }] of Object.entries(parts)) {
        box.querySelectorAll("input, select").forEach((field) => (field.disabled = !free.includes(name)));
      }
    },
    /** As if the reader had written that text into the control of that name. */
    change: changed,
    /** Say what is wrong below the control of that name; without a sentence, nothing is wrong any more. */
    complain(name, sentence = "") {
      for (const part of Object.values(parts)) part.complain("");
      if (sentence) parts[name].complain(sentence);
    },
  };
}

function makeControl(name, entry, changed) {
  const { kind, label, slider, empty, example, options, words = {} } = entry, id = newId(name), errorId = newId("error");
  const error = h("p", { id: errorId, class: "error", role: "alert" });
  const described = { id, name, "aria-describedby": errorId };
  let field;
  if (kind === "choice") {
    field = h("select", { ...described, onchange: () => changed(name, field.value) },
      ...options.map((option) => h("option", { value: String(option) }, words[option] ?? String(option))));
  } else {
    const hint = [empty && `empty: ${empty}`, example && `for example ${example}`].filter(Boolean).join("; ");
    field = h("input", {
      ...described, type: "text", inputmode: kind === "list" ? "text" : "decimal", autocomplete: "off", spellcheck: "false",
      placeholder: example ?? (empty ? "auto" : ""), title: hint || null, class: kind === "list" ? "wide" : "",
      oninput: () => changed(name, field.value),
    });
  }
  let range = null;
  if (slider) {
    const [min, max, step] = slider;
    range = h("input", { type: "range", min, max, step, "aria-label": `${label}, slider`, "aria-describedby": errorId });
    range.oninput = () => changed(name, range.value);
  }
  const box = h("div", { class: `control ${name}` }, h("label", { for: id }, label), field, ...(range ? [range] : []), error);
  return {
    box,
    show(value) {
      const text = textOf(entry, value);
      if (field !== document.activeElement && field.getRootNode().activeElement !== field) field.value = text;
      if (range) range.value = text === "" ? slider[0] : text;
    },
    focus() { field.focus(); },
    complain(sentence) {
      if (error.textContent !== sentence) error.textContent = sentence;
      field.setAttribute("aria-invalid", sentence ? "true" : "false");
    },
  };
}
