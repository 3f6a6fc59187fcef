// Two schedules side by side: one is kept while the controls change the other.

import { CHUNKS } from "./schedules.js";
import { connect } from "./gestures.js";
import { h } from "./dom.js";
import { human, percent, short } from "./scale.js";
import { endOf } from "./measured.js";
import { makeDrawing } from "./drawing.js";
import { summaryOf } from "./summary.js";

/** The place of the kept drawing, and the sentence that compares it with the current one. */
export function makeComparison(current) {
  const said = h("p", { class: "compared", "aria-live": "polite" });
  const title = h("h3", {}), ownTitle = h("h3", { hidden: true }), place = h("div", { class: "kept", hidden: true });
  let kept = null, before = null;
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
      place.hidden = ownTitle.hidden = false;
      kept.show(current.state.run);
      this.update(question);
    },
    drop() {
      kept = before = null;
      place.hidden = ownTitle.hidden = true;
      place.replaceChildren();
      said.textContent = "";
      current.change({ longest: null, most: null, from: 0, to: endOf(current.state) || 1 });
    },
    /** After the current drawing has changed: one scale for both, and what differs. */
    update(question) {
      if (!kept) return;
      ownTitle.textContent = `Now: ${inWords(question)}`;
      const now = current.state.summary, then = kept.state.summary;
      const shared = { longest: Math.max(endOf(current.state), endOf(kept.state)), most: Math.max(now.heaviest.peak, then.heaviest.peak) };
      for (const drawing of [current, kept]) drawing.change(shared);
      together(0, shared.longest || 1);
      said.textContent = compared(now, then, before.schedule);
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

/** Every schedule with the times and bytes of a question: what each would save. It is asked for when it is opened. */
export function makeOverview(source, onChoose) {
  const inside = h("div", { class: "scroll", tabindex: "0", role: "group", "aria-label": "what each of them would save" });
  const element = h("details", { class: "overview" }, h("summary", {}, "All schedules with these times"), inside);
  let question = null, latest = 0;
  const fill = async () => {
    if (!element.open || !question) return;
    const mine = ++latest, rows = [];
    for (const schedule of Object.keys(CHUNKS)) {
      const same = schedule === question.schedule;
      const asked = { ...question, schedule, chunks: same ? question.chunks : null };
      try {
        const run = source.atOnce(asked) ?? await source.ask(asked);
        rows.push([schedule, summaryOf(run), same]);
      } catch (error) {
        rows.push([schedule, null, same]);
      }
      await new Promise((done) => setTimeout(done)); // so that the page can do something else in between
      if (mine !== latest) return; // a newer question has come
    }
    inside.replaceChildren(overviewTable(rows, onChoose));
  };
  element.ontoggle = fill;
  return { element, show(now) { question = now; fill(); } };
}

function overviewTable(rows, onChoose) {
  const shown = rows.find(([, , same]) => same)?.[1]?.makespan;
  const cells = (summary, same) => {
    if (!summary) return ["cannot be drawn", "", "", "", ""];
    const more = shown ? percent((summary.makespan - shown) / shown) : "";
    return [short(summary.makespan), same ? "shown" : more.replace(/^(?!-)/, "+").replace("-", "−"), percent(summary.bubble), percent(summary.internal),
      human(summary.heaviest.peak)];
  };
  const head = ["schedule", "makespan", "against the shown", "bubble", "without fill and drain", "most bytes on a rank"];
  return h("table", {},
    h("thead", {}, h("tr", {}, ...head.map((name) => h("th", { scope: "col" }, name)))),
    h("tbody", {}, ...rows.map(([name, summary, same]) => h("tr", {},
      h("th", { scope: "row" }, h("button", { type: "button", onclick: () => onChoose(name) }, name)),
      ...cells(summary, same).map((cell) => h("td", {}, cell))))));
}
