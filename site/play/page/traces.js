// The page of traces: the reader's files, a form for the plan that ran, and what Python says of them.

import { newPython } from "./python.js";

const [form, step, python] = ["form", "#step", "#python"].map((name) => document.querySelector(name));
const [state, stop, config] = [".state", ".stop", ".config"].map((name) => form.querySelector(name));
const { model, files } = form.elements;
const [own, none] = [[...model.options].at(-2).value, [...model.options].at(-1).value];
const runner = newPython((sentence, wrong = false) => {
  python.textContent = sentence;
  python.classList.toggle("error", wrong);
});

showAsked();
model.addEventListener("change", showAsked);
stop.addEventListener("click", () => runner.stop());
form.addEventListener("submit", async (event) => {
  event.preventDefault();
  step.hidden = true;
  stop.hidden = false;
  state.textContent = runner.isReady() ? "reading …" : "waits until Python is loaded …";
  const contents = await Promise.all([...files.files].map(async (file) => ({ name: file.name, bytes: new Uint8Array(await file.arrayBuffer()) })));
  runner.drop("/traces", contents);
  const asked = Object.fromEntries(["model", "gpu", "plan", "config"].map((name) => [name, form.elements[name].value]));
  const source = `from play.browser.traces import compared\ncompared(${JSON.stringify(JSON.stringify(asked))})`;
  const result = await runner.run("traces", source, () => {});
  stop.hidden = true;
  state.textContent = result.stopped ? "was stopped" : result.error ?? "";
  step.innerHTML = result.html ?? "";
  step.hidden = !result.html;
});

function showAsked() {
  for (const label of form.querySelectorAll(".asked")) label.hidden = model.value === none;
  config.hidden = model.value !== own;
}
