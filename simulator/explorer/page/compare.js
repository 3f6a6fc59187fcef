// Two schedules side by side: one is kept while the controls change the other.

import { FORMS } from "./forms.js";
import { connect } from "./gestures.js";
import { h, heading, newId } from "./dom.js";
import { human, percent, short } from "./scale.js";
import { endOf } from "./measured.js";
import { makeDrawing } from "./drawing.js";
import { summaryOf } from "./summary.js";

/** The place of the kept drawing, and the sentence that compares it with the current one. */
export function makeComparison(current) {
  const said = h("p", { class: "compared", "aria-live": "polite" });
  const title = heading(0, { class: "whose" }), ownTitle = heading(0, { class: "whose only-read" }), place = h("div", { class: "kept", hidden: true });
  let kept = null, before = null, now = null;
  const together = (from, to, source) => {
    for (const drawing of [current, kept]) if (drawing && drawing !== source) drawing.change({ from, to });
  };
  const follow = (drawing) => drawing.element.addEventListener("look", () => {
    if (kept) together(drawing.state.from, drawing.state.to, drawing);
  });
  follow(current);
  return {
    said, place, ownTitle,
    get active() { return kept !== null; },
    keep(question) {
      kept = makeDrawing();
      connect(kept);
      follow(kept);
      before = question;
      title.textContent = `Kept: ${inWords(question)}`;
      place.replaceChildren(title, kept.element);
      place.hidden = false;
      ownTitle.classList.remove("only-read");
      kept.show(current.state.run);
      this.update(question);
    },
    drop() {
      kept = before = null;
      place.hidden = true;
      ownTitle.classList.add("only-read");
      ownTitle.textContent = inWords(now);
      place.replaceChildren();
      said.textContent = "";
      current.change({ longest: null, most: null, from: 0, to: endOf(current.state) || 1 });
    },
    /** After the current drawing has changed: one scale for both, and what differs. */
    update(question) {
      now = question;
      ownTitle.textContent = kept ? `Now: ${inWords(question)}` : inWords(question);
      if (!kept) return;
      const own = current.state.summary, then = kept.state.summary;
      const shared = { longest: Math.max(endOf(current.state), endOf(kept.state)), most: Math.max(own.heaviest.peak, then.heaviest.peak) };
      for (const drawing of [current, kept]) drawing.change(shared);
      together(0, shared.longest || 1);
      said.textContent = compared(own, then, before.schedule);
    },
  };
}

const inWords = ({ schedule, ranks, microbatches }) => `${schedule}, ${ranks} ranks, ${microbatches} microbatches`;

/** What differs between two summaries, in sentences. */
export function compared(now, kept, name) {
  const away = now.makespan - kept.makespan, share = percent(Math.abs(away) / (kept.makespan || 1));
  const longer = Math.abs(away) < 1e-9 * kept.makespan ? "as long as" :
    `${short(Math.abs(away))} (${share}) ${away < 0 ? "shorter" : "longer"} than`;
  return `The step is ${longer} the kept one (${name}): ${short(now.makespan)} and ${short(kept.makespan)}. ` +
    `Bubble: ${percent(now.bubble)} now, ${percent(kept.bubble)} kept. ` +
    `Most bytes on a rank: ${human(now.heaviest.peak)} now, ${human(kept.heaviest.peak)} kept.`;
}

/**
 * Every schedule with the times and bytes of a question, and which of them has the smallest bubble under a memory cap
 * that the reader types. Its button opens and closes it. It is computed when it is open.
 */
export function makeOverview(source, onChoose) {
  const inside = h("div", { class: "scroll", tabindex: "0", role: "group", "aria-label": "bubble and bytes of each" });
  const id = newId("cap"), place = newId("all"), field = h("input", { id, type: "text", inputmode: "decimal", autocomplete: "off" });
  const said = h("p", { class: "best", "aria-live": "polite" });
  const element = h("section", { id: place, class: "overview", "aria-label": "Which has the smallest bubble?", hidden: true },
    h("p", {}, h("label", { for: id }, "Memory cap: a rank may keep at most "), field, " GB of activations (empty: no cap)"),
    said, inside, h("p", { class: "line" }, "Press a name: then that schedule is drawn below."));
  const button = h("button", { type: "button", "aria-expanded": "false", "aria-controls": place,
    title: "which schedule has the smallest bubble with the memory that you have" }, "All schedules");
  let question = null, latest = 0, rows = [];
  const draw = () => {
    const cap = field.value.trim() === "" ? Infinity : 1e9 * Number(field.value.replace(",", "."));
    const wrong = !(cap > 0);
    field.setAttribute("aria-invalid", String(wrong));
    const best = wrong ? null : bestUnder(rows, cap);
    said.textContent = wrong ? `The memory cap must be a number of GB above 0, not '${field.value}'.` : bestInWords(best, cap, question);
    const pressed = inside.querySelector("button:focus")?.textContent;
    inside.replaceChildren(overviewTable(rows, best, wrong ? Infinity : cap, onChoose));
    if (pressed) [...inside.querySelectorAll("button")].find((one) => one.textContent === pressed)?.focus(); // the keyboard stays there
  };
  field.oninput = draw;
  const fill = async () => {
    if (element.hidden || !question) return;
    const mine = ++latest, found = [];
    for (const schedule of Object.keys(FORMS)) {
      const same = schedule === question.schedule;
      const asked = { ...question, schedule, chunks: same ? question.chunks : null };
      try {
        const run = source.atOnce(asked) ?? await source.ask(asked);
        found.push([schedule, summaryOf(run), same]);
      } catch (error) {
        found.push([schedule, null, same]);
      }
      await new Promise((done) => setTimeout(done)); // so that the page can do something else in between
      if (mine !== latest) return; // a newer question has come
    }
    rows = found;
    draw();
  };
  button.onclick = () => {
    element.hidden = !element.hidden;
    button.setAttribute("aria-expanded", String(!element.hidden));
    if (element.hidden) return;
    fill();
    field.focus();
    button.parentElement.scrollIntoView({ block: "start" });
  };
  return { element, button, show(now) { question = now; fill(); } };
}

const MORE = 1 + 1e-9; // for sums of bytes and times whose last digits differ

/** The row [schedule, summary, shown] with the smallest bubble within a cap; among equal ones that with fewest bytes. */
export function bestUnder(rows, cap) {
  const within = rows.filter(([, summary]) => summary && summary.heaviest.peak <= cap * MORE);
  return within.reduce((best, row) => {
    const away = best ? row[1].bubble - best[1].bubble : -1;
    const equal = Math.abs(away) < 1e-9;
    return (equal ? row[1].heaviest.peak < best[1].heaviest.peak : away < 0) ? row : best;
  }, null);
}

function bestInWords(best, cap, { recompute }) {
  const under = cap < Infinity ? `With at most ${human(cap)} on every rank` : "With these times";
  if (!best) {
    const less = recompute === "none" ? " With recomputation “full” they keep less and compute longer." : "";
    return `Every schedule keeps more than ${human(cap)} on some rank.${less}`;
  }
  const [name, { bubble, heaviest }] = best;
  return `${under}, ${name} has the smallest bubble: ${percent(bubble)}. It keeps at most ${human(heaviest.peak)} on a rank.`;
}

function overviewTable(rows, best, cap, onChoose) {
  const shown = rows.find(([, , same]) => same)?.[1]?.makespan;
  const cells = (summary, same) => {
    if (!summary) return ["cannot be drawn", "", "", "", ""];
    const more = shown ? percent((summary.makespan - shown) / shown) : "";
    return [short(summary.makespan), same ? "drawn below" : more === percent(0) ? "as long" : more.replace(/^(?!-)/, "+").replace("-", "−"), percent(summary.bubble), percent(summary.internal),
      human(summary.heaviest.peak) + (summary.heaviest.peak > cap * MORE ? ", too much" : "")];
  };
  const head = ["schedule", "makespan", "longer than the one drawn", "bubble", "idle without fill and drain", "most bytes on a rank"];
  return h("table", {},
    h("thead", {}, h("tr", {}, ...head.map((name) => h("th", { scope: "col" }, name)))),
    h("tbody", {}, ...rows.map(([name, summary, same]) => h("tr", { class: name === best?.[0] && "best" },
      h("th", { scope: "row" }, h("button", { type: "button", "aria-current": same && "true", onclick: () => onChoose(name) }, name)),
      ...cells(summary, same).map((cell) => h("td", {}, cell))))));
}
