// The game in a page: a field or buttons, and the answer, which opens when something was said. anywidget calls `render`
// for each place of a notebook; a page without a kernel calls `play` once.

/** h("button", {type: "button", onclick}, "text"): an element with attributes, handlers and children. */
function h(tag, attributes, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") element[name] = value;
    else if (value !== null && value !== undefined) element.setAttribute(name, value);
  }
  element.append(...children);
  return element;
}

const round = (value) => Number(value.toPrecision(6));

/** Ask for a number or a choice; say(value) is called with each commitment. Returns a function that shows what was said. */
function ask(root, { name, unit, choices, low, high, note = "Your bet stands." }, say) {
  const status = h("span", { role: "status" });
  // JupyterLab, which has meanings of its own for most keys, leaves those alone that are pressed in such an element.
  const own = (tag, attributes, ...children) => h(tag, { "data-lm-suppress-shortcuts": "true", ...attributes }, ...children);
  if (choices) {
    const buttons = choices.map((choice) => own("button", { type: "button", "aria-pressed": "false", onclick: () => say(choice) }, choice));
    root.append(h("fieldset", { class: "course-game" }, h("legend", {}, name), ...buttons, status));
    return (said) => {
      buttons.forEach((button, k) => button.setAttribute("aria-pressed", String(choices[k] === said)));
      status.textContent = said === null ? "" : note;
    };
  }
  const field = own("input", { type: "number", step: "any", required: "", "aria-label": `${name}${unit && ", in "}${unit}`, autocomplete: "off" });
  const parts = [h("span", {}, name), h("span", {}, field, ` ${unit}`), own("button", {}, "Guess"), status];
  let slider = null;
  if (low !== null) {
    const step = 10 ** Math.floor(Math.log10((high - low) / 50)), whole = Number.isInteger(low + high) && high - low > 5;
    slider = own("input", { type: "range", min: low, max: high, step: whole ? Math.max(1, step) : step, "aria-label": `${name}, slider` });
    slider.oninput = () => { field.value = round(slider.valueAsNumber); };
    Object.assign(field, { min: low, max: high }); // the browser says so of what is outside
    field.oninput = () => { slider.value = field.value; };
    parts.splice(1, 0, slider);
  }
  const form = h("form", { class: "course-game" }, ...parts);
  form.onsubmit = (event) => {
    event.preventDefault();
    say(field.valueAsNumber);
  };
  // JupyterLab keeps a field's Enter from the form.
  field.onkeydown = (event) => {
    if (event.key !== "Enter") return;
    event.preventDefault();
    form.requestSubmit();
  };
  root.append(form);
  return (said) => {
    if (said === null) return;
    field.value = said;
    if (slider) slider.value = said;
    status.textContent = `You say ${said.toLocaleString("en-US", { maximumSignificantDigits: 6 })} ${unit}`.trim();
  };
}

/** A place of a notebook: `given` is what is asked; without it the place shows an answer, which the kernel writes. */
function render({ model, el }) {
  const given = model.get("given");
  if (given.name === undefined) {
    const answer = h("div", { class: "jp-RenderedHTMLCommon", "aria-live": "polite" });
    const show = () => { answer.innerHTML = model.get("html"); };
    el.append(answer);
    model.on("change:html", show);
    return show();
  }
  const show = ask(el, given, (said) => {
    model.set("said", said);
    model.save_changes();
  });
  model.on("change:said", () => show(model.get("said")));
  show(model.get("said"));
}

export default { render };

export const decoded = (text) => JSON.parse(new TextDecoder().decode(Uint8Array.from(atob(text), (one) => one.charCodeAt(0))));

/** Play all that a page asks: no answer is in sight, or found by a search in the page, before something was said. */
export function play(page = document) {
  const waiting = [...page.querySelectorAll("[data-answer]")].map((place) => ({ place, facts: decoded(place.dataset.answer) }));
  for (const place of page.querySelectorAll("[data-ask]")) {
    const given = decoded(place.dataset.ask);
    const answers = waiting.filter(({ facts }) => facts.name === given.name);
    for (const answer of answers) {
      const inside = [...answer.place.childNodes].slice(1); // without the fold's summary
      const closed = h("p", {}, answer.place.querySelector("summary").textContent);
      const open = h("div", { "aria-live": "polite" }, closed);
      answer.place.replaceWith(open);
      answer.open = (said) => {
        open.replaceChildren(...inside);
        open.querySelector(".said").innerHTML = verdict(answer.facts, said, given.unit);
      };
    }
    place.replaceChildren();
    const show = ask(place, given, (said) => {
      show(said);
      for (const answer of answers) answer.open(said);
    });
  }
}

/** What is said to a bet or a guess, as HTML; the same as `Answer.said` in Python says. */
export function verdict({ value, mistakes, factor, percent, axis, ends }, said, unit) {
  const plain = (text) => h("p", {}, text).innerHTML;
  if (factor === undefined) return said === value ? "Right." : plain(`You said “${said}”. ${mistakes[said] ?? ""}`);
  const guess = said * factor, text = `${round(said).toLocaleString("en-US", { maximumSignificantDigits: 6 })} ${unit}`.trim();
  const likely = mistakes.find(([wrong]) => Math.abs(guess - wrong) <= 0.02 * Math.abs(wrong))?.[1] ?? "";
  const part = (guess - ends[0]) / (ends[1] - ends[0]);
  const drawn = axis.replaceAll("{x}", (100 * Math.min(1, Math.max(0, part))).toFixed(1))
    .replaceAll("{said}", plain(part < 0 ? `← ${text}` : part > 1 ? `${text} →` : text));
  const far = howFar(guess, value, percent);
  return `${plain(`You said ${text}: ${far}. ${far === "right" ? "" : likely}`.trim())}${drawn}`;
}

function howFar(guess, value, percent) {
  const off = Math.abs(guess - value), side = guess < value ? "too low" : "too high";
  if (off <= 0.005 * (percent && Math.abs(value) >= 0.1 ? 1 : Math.abs(value))) return "right";
  if (percent) return `${side}, by ${Number((100 * off).toPrecision(3))} percentage points`;
  if (off <= 0.1 * Math.abs(value)) return `${side}, but by only ${Math.round(100 * off / Math.abs(value))} %`;
  if (guess * value <= 0) return side;
  const factor = Math.max(guess / value, value / guess);
  return `${side}, by a factor of ${factor >= 10 ? Math.round(factor).toLocaleString("en-US") : Number(factor.toPrecision(2))}`;
}
