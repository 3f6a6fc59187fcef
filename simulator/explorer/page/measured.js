// A measured step beside its prediction: which action began later, which took longer, and how long each rank waited.

import { nameOf, rankAt } from "./causes.js";
import { h } from "./dom.js";
import { inUnit, percent, short } from "./scale.js";
import { summaryOf } from "./summary.js";

const SIZES = ["name", "ranks", "microbatches", "chunks"];

/** A run together with the measured step of the same schedule; the run as it is where the measured one is another. */
export function withMeasured(run, measured) {
  if (!measured || SIZES.some((name) => run[name] !== measured[name])) return run;
  const start = Float64Array.from(measured.start), end = Float64Array.from(measured.end);
  const paired = run.paired.map((pair, at) => (pair && start[at] === start[at + 1] ? 1 : 0));
  const real = { ...run, start, end, paired, sends: new Float64Array(0) };
  return { ...run, measured: { ...real, unit: measured.unit, summary: summaryOf(real) } };
}

/** The time at which a drawing ends: that of its run, and of the measured one. */
export const endOf = ({ run, summary }) => Math.max(summary.end, run.measured?.summary.end ?? 0);

const away = ({ unit }, difference, more, less) => `${inUnit(Math.abs(difference), unit)} ${difference < 0 ? less : more}`;

/** What differs between the step as measured and as predicted. */
export function besideInWords(run, summary) {
  const real = run.measured.summary, longer = real.makespan - summary.makespan, of = mostDelayed(run);
  const busy = mean(real.ranks) - mean(summary.ranks), late = run.measured.start[of] - run.start[of];
  return `The measured step took ${inUnit(real.makespan, run.measured.unit)}. This is ${away(run.measured, longer, "longer", "shorter")} than predicted ` +
    `(${percent(Math.abs(longer) / (summary.makespan || 1))}). On average a rank computed ${away(run.measured, busy, "longer", "shorter")} ` +
    `and waited ${away(run.measured, longer - busy, "longer", "shorter")}. Bubble: ${percent(real.bubble)} measured, ` +
    `${percent(summary.bubble)} predicted. The start that is furthest from its prediction is that of ${nameOf(run, of)} ` +
    `on rank ${rankAt(run, of)}: ${away(run.measured, late, "later", "earlier")}.`;
}

const mean = (ranks) => ranks.reduce((sum, row) => sum + row.busy, 0) / ranks.length;

/** The action, of one rank or of all, whose start is furthest from its prediction. */
function mostDelayed(run, rank = null) {
  const delay = (at) => Math.abs(run.measured.start[at] - run.start[at]);
  let most = rank === null ? 0 : run.first[rank];
  for (let at = most; at < (rank === null ? run.kind.length : run.first[rank + 1]); at++) {
    if (delay(at) > delay(most)) most = at;
  }
  return most;
}

/** When an action really ran. */
export function explainMeasured(run, at) {
  const { start, end, unit } = run.measured, late = start[at] - run.start[at];
  const longer = end[at] - start[at] - (run.end[at] - run.start[at]);
  return `Measured: from ${short(start[at])} to ${inUnit(end[at], unit)}. It started ${away(run.measured, late, "later", "earlier")} and was ` +
    `${away(run.measured, longer, "longer", "shorter")} than predicted.`;
}

/** A time in which a rank really computed nothing. */
export function explainMeasuredGap(run, { rank, start, end, before }) {
  const time = `In the measured step rank ${rank} computed nothing from ${short(start)} to ${inUnit(end, run.measured.unit)}.`;
  if (before < 0) return `${time} It had finished.`;
  const late = run.measured.start[before] - run.start[before];
  return `${time} Then it began ${nameOf(run, before)}, ${away(run.measured, late, "later", "earlier")} than predicted.`;
}

/** Every rank's times, predicted and measured: the head of a table and its rows. */
export function besideRows(run, summary) {
  const real = run.measured.summary;
  const rows = summary.ranks.map((row, rank) => {
    const found = real.ranks[rank], at = mostDelayed(run, rank), late = run.measured.start[at] - run.start[at];
    const times = [row.busy, found.busy, summary.makespan - row.busy, real.makespan - found.busy, row.end, found.end];
    const furthest = row.end > row.start ? `${nameOf(run, at)}: ${away(run.measured, late, "later", "earlier")}` : "none";
    return [`rank ${rank}`, ...times.map(short), furthest];
  });
  const head = ["computes", "waits", "ends"].flatMap((what) => [`${what}, predicted`, `${what}, measured`]);
  return [[run.measured.unit ? `rank (times in ${run.measured.unit})` : "rank", ...head, "furthest start"], rows];
}

/** The sentence about a measured step, and the button that hides or shows it. */
export function makeBeside(drawing, measured) {
  const said = h("p", { class: "beside", "aria-live": "polite" });
  const button = h("button", { type: "button", class: "measured", "aria-pressed": "true", title: "the lower row of each rank: what was measured" }, "Measured");
  button.onclick = () => {
    drawing.change({ beside: !drawing.state.beside });
    button.setAttribute("aria-pressed", String(drawing.state.beside));
  };
  const sizes = `${measured.name} with ${measured.ranks} ranks and ${measured.microbatches} microbatches`;
  return {
    said, button,
    show({ run, summary }) {
      said.textContent = run.measured ? besideInWords(run, summary) : `The measured step is ${sizes}. Choose these to see it again.`;
      button.disabled = !run.measured;
    },
  };
}
