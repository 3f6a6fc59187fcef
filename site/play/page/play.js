// The page: its cells, their buttons and keys, and what stands below a cell after it has run.

import { prepareEditor } from "./editor.js";
import { newPython } from "./python.js";

const state = document.querySelector("#python");
const python = newPython((sentence, wrong = false) => {
  state.textContent = sentence;
  state.classList.toggle("error", wrong);
});
let stopped = false; // "Stop" also ends a run of all cells

for (const chapter of document.querySelectorAll(".chapter")) prepareChapter(chapter);
loadEarly();

function prepareChapter(chapter) {
  const cells = [...chapter.querySelectorAll(".cell")].map((element) => prepareCell(element, chapter.dataset.chapter));
  cells.forEach((cell, i) => {
    cell.next = cells[i + 1];
  });
  chapter.querySelector(".run-all").addEventListener("click", async () => {
    stopped = false;
    for (const cell of cells) if (stopped || !(await cell.run())) break;
  });
  chapter.querySelector(".reset-all").addEventListener("click", () => cells.forEach((cell) => cell.reset()));
}

function prepareCell(element, chapter) {
  const [area, output, said] = ["textarea", ".output", ".state"].map((name) => element.querySelector(name));
  const [runButton, resetButton] = [".run", ".reset"].map((name) => element.querySelector(name));
  const refresh = prepareEditor(area, element.querySelector(".painted"), () => {
    resetButton.disabled = area.value === area.defaultValue;
  });
  const cell = { area, run, reset, next: null };
  let running = false;

  /** Whether the cell ended well. */
  async function run() {
    if (running) return false;
    running = true;
    runButton.textContent = "Stop";
    said.textContent = python.isReady() ? "runs …" : "waits until Python is loaded …";
    python.begin().then(() => { if (running) said.textContent = "runs …"; }, () => {});
    output.replaceChildren();
    const printed = document.createElement("pre");
    const result = await python.run(chapter, area.value, (text) => {
      printed.append(text);
      if (!printed.isConnected) output.prepend(printed);
      output.hidden = false;
    });
    running = false;
    runButton.textContent = "Run";
    show(output, result);
    said.textContent = result.stopped ? "was stopped; variables are gone" : result.error ? "" : `has run, ${duration(result.ms)}`;
    return !result.error && !result.stopped;
  }

  function reset() {
    area.value = area.defaultValue;
    refresh();
    output.replaceChildren();
    output.hidden = true;
    said.textContent = "";
  }

  runButton.addEventListener("click", () => {
    if (running) {
      stopped = true;
      python.stop();
    } else run();
  });
  resetButton.addEventListener("click", () => {
    reset();
    area.focus();
  });
  area.addEventListener("focus", () => python.begin().catch(() => {}));
  area.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || !(event.shiftKey || event.ctrlKey || event.metaKey)) return;
    event.preventDefault();
    run();
    if (event.shiftKey) cell.next?.area.focus();
  });
  return cell;
}

function show(output, { html = "", error = "" }) {
  if (html) {
    const place = document.createElement("div");
    place.className = "value";
    place.innerHTML = html;
    output.append(place);
    place.querySelectorAll("iframe").forEach(fit);
  }
  if (error) {
    const sentence = document.createElement("p");
    sentence.className = "error";
    sentence.setAttribute("role", "alert");
    sentence.textContent = error;
    output.append(sentence);
  }
  output.hidden = !output.hasChildNodes();
}

function duration(ms) {
  return ms < 1000 ? `${Math.max(1, Math.round(ms))} ms` : `${(ms / 1000).toFixed(1)} s`;
}

/** A page inside of this one is as high as what it shows; on a phone it scrolls, so that its picture stays in sight. */
function fit(frame) {
  const measure = () => {
    const body = frame.contentDocument?.body;
    if (!body) return;
    const resize = () => {
      const whole = Math.max(300, body.scrollHeight + 8);
      frame.style.height = `${frame.clientWidth < 600 ? Math.min(whole, 0.85 * innerHeight) : whole}px`;
    };
    new ResizeObserver(resize).observe(body);
    resize();
  };
  frame.addEventListener("load", measure);
  if (frame.contentDocument?.readyState === "complete") measure();
}

/** Python loads when its first cell comes near, so that who only reads does not wait for 14 MB. */
function loadEarly() {
  const near = new IntersectionObserver((entries) => {
    if (!entries.some((entry) => entry.isIntersecting)) return;
    near.disconnect();
    python.begin().catch(() => {});
  });
  document.querySelectorAll(".chapter").forEach((chapter) => near.observe(chapter));
}
