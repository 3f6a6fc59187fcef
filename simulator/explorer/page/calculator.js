// The memory calculator: a bar for each rank against the device's memory, the verdict, and the formula of each part.

import { asSentence, keepTheme } from "./page.js";
import { h, heading } from "./dom.js";
import { human } from "./scale.js";
import { makeControls } from "./controls.js";
import { memoryForm } from "./memory_fields.js";
import { newestFirst } from "./sources.js";

const ROOM = 5 / 3; // with a new scale the longest bar takes three fifths of its track
const wordOf = (name) => name.replaceAll("_", " ");

/**
 * Show a plan's memory and whatever the reader makes of it; onShown is called with each question whose answer is shown.
 * Returns the function that takes the view away.
 */
export function startCalculator(root, question, choices, source, onShown = () => {}) {
  const verdict = h("p", { class: "verdict", "aria-live": "polite" }), changes = h("p", { class: "changes" });
  const bars = h("div", { class: "bars" }), line = h("p", { class: "line" }), parts = h("div", { class: "parts" });
  const title = heading(0, { class: "title" });
  const result = h("div", { class: "result" }, h("div", { class: "picture" }, verdict, changes, title, bars, line),
    heading(0, { class: "title" }, "Parts of one rank"), parts);
  let lastChanged = "model", controls = null, chosen = null, scale = 0;
  const show = (found) => {
    const rank = Math.min(chosen ?? fullest(found.ranks), found.ranks.length - 1);
    verdict.textContent = found.verdict;
    verdict.dataset.fits = found.fits;
    line.textContent = `The dashed line is the memory of one device: ${human(found.capacity)}.`;
    title.textContent = found.ranks.length > 1 ? "Bytes of a rank of every stage" : "Bytes of every rank";
    changes.replaceChildren(...changeButtons(found, controls));
    scale = nextScale(scale, Math.max(...found.ranks.map(totalOf)), found.capacity);
    bars.replaceChildren(...barsOf(found, scale, rank, (which) => {
      chosen = which;
      show(found);
      bars.querySelectorAll("button")[which].focus();
    }));
    const open = [...parts.querySelectorAll("details[open]")].map((part) => part.dataset.part);
    parts.replaceChildren(partsOf(found, rank, open));
  };
  const ask = newestFirst(source,
    (found, asked) => {
      controls.complain();
      result.classList.remove("outdated");
      show(found);
      view.dataset.shown = JSON.stringify(asked);
      onShown(asked);
    },
    (error) => {
      controls.complain(lastChanged, asSentence(error));
      result.classList.add("outdated");
    });
  controls = makeControls(memoryForm(choices), question, (changed, name) => {
    lastChanged = name;
    ask(changed);
  });
  const view = h("div", { class: "explorer" }, h("div", { class: "layout" }, result, controls.element));
  root.append(view);
  const end = keepTheme(root, view, () => {});
  ask(question);
  return () => {
    end();
    view.remove();
  };
}

const totalOf = (rank) => Object.values(rank).reduce((sum, part) => sum + part.bytes, 0);

const fullest = (ranks) => ranks.reduce((best, rank, k) => (totalOf(rank) > totalOf(ranks[best]) ? k : best), 0);

/** A button for each single change that would fit. */
function changeButtons(found, controls) {
  if (found.fits) return [];
  if (!found.changes.length) return ["No single change of the plan makes it fit."];
  const words = (change) => Object.entries(change).filter(([name]) => name !== "microbatches" || !("pp" in change))
    .map(([name, value]) => `${wordOf(name)} ${value}`).join(", ");
  const press = (change) => {
    controls.set(change);
    controls.focus(Object.keys(change)[0]); // the button goes away; the control shows what has changed
  };
  return ["One of these changes makes it fit: ", ...found.changes.map((change) =>
    h("button", { type: "button", onclick: () => press(change) }, words(change)))];
}

/**
 * The bytes of a whole track. They stay while the bars change, so that what keeps its bytes keeps its length: at first
 * there is room for a longer bar. They change only when a bar has no room any more, or when all would be tiny.
 */
function nextScale(scale, longest, capacity) {
  const needed = Math.max(longest, capacity);
  return needed > scale || needed < scale / 4 ? Math.max(longest * ROOM, capacity) : scale;
}

/** For the ranks of each stage a button with their bar; the line is the device's memory. */
function barsOf({ ranks, names, capacity }, scale, rank, choose) {
  const share = (bytes) => `${(100 * bytes) / (1.02 * scale)}%`;
  return ranks.map((parts, k) => {
    const pieces = Object.entries(parts).map(([name, { bytes }]) =>
      h("span", { class: `piece ${name}`, style: `width: ${share(bytes)}`, title: `${wordOf(name)}: ${human(bytes)}` }));
    const line = h("span", { class: "capacity", style: `left: ${share(capacity)}` });
    const total = human(totalOf(parts)), label = `${names[k]}: ${total} of ${human(capacity)}`;
    return h("button", { type: "button", class: "bar", "aria-pressed": String(k === rank), "aria-label": label, onclick: () => choose(k) },
      h("span", { class: "name" }, names[k]), h("span", { class: "track" }, ...pieces, line), h("span", { class: "total" }, total));
  });
}

/** Each part with its bytes; a click opens its formula. */
function partsOf(found, rank, open) {
  const parts = found.ranks[rank];
  const rows = Object.entries(parts).map(([name, { bytes, terms }]) => {
    const formula = terms.length ? terms.map(([words, size]) => h("li", {}, `${words}: `, h("b", {}, human(size)))) : [h("li", {}, "none")];
    return h("details", { class: "part", "data-part": name, open: open.includes(name) },
      h("summary", {}, h("span", { class: `swatch ${name}` }), wordOf(name), h("b", {}, human(bytes))), h("ul", {}, ...formula));
  });
  const who = found.ranks.length > 1 ? `A rank of ${found.names[rank]}` : "Each rank";
  const all = `${found.about} ${who} holds ${human(totalOf(parts))}:`;
  return h("div", {}, h("p", { class: "of" }, all), ...rows);
}
