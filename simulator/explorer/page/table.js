// The same as tables, for those who cannot see the drawing: every rank, and every action of one rank.

import { allGaps, stopsOf } from "./stops.js";
import { causeOf, nameOf } from "./causes.js";
import { besideRows } from "./measured.js";
import { human, percent, short } from "./scale.js";
import { h } from "./dom.js";
import { explainAction, explainGap } from "./sentences.js";

const MOST_ROWS = 2000;

/** A part of the page that opens; what is inside is made when it is open. */
export function makeTables() {
  const inside = h("div", { class: "tables" });
  const element = h("details", {}, h("summary", {}, "As tables"), inside);
  let shown = null, rank = 0;
  const fill = () => {
    if (!element.open || !shown) return;
    const { run, summary } = shown, ranks = summary.ranks.map((row) => row.rank);
    rank = Math.min(rank, run.ranks - 1);
    const select = h("select", { "aria-label": "rank whose actions are listed" },
      ...ranks.map((one) => h("option", { value: String(one), selected: one === rank }, `rank ${one}`)));
    select.onchange = () => {
      rank = Number(select.value);
      fill();
      inside.querySelector("select").focus();
    };
    const beside = run.measured ? [table("Measured beside predicted", ...besideRows(run, summary))] : [];
    inside.replaceChildren(ranksTable(run, summary), ...beside, h("p", {}, "Actions and gaps of ", select), actionsTable(run, rank));
  };
  element.ontoggle = fill;
  return { element, show(run, summary) { shown = { run, summary }; fill(); } };
}

function ranksTable(run, summary) {
  const longest = new Map();
  for (const gap of allGaps(run)) {
    const best = longest.get(gap.rank);
    if (gap.before >= 0 && (!best || gap.end - gap.start > best.end - best.start)) longest.set(gap.rank, gap);
  }
  const rows = summary.ranks.map((row) => {
    const gap = longest.get(row.rank);
    const wait = gap ? `${short(gap.end - gap.start)}: ${causeOf(run, gap)}` : "none";
    const peak = row.peakAt < 0 ? human(0) : `${human(row.peak)} at ${nameOf(run, row.peakAt)}`;
    const idle = summary.makespan ? percent(1 - row.busy / summary.makespan) : "none";
    return [`rank ${row.rank}`, short(row.start), short(row.end), short(row.busy), idle, row.inFlight, peak, wait];
  });
  const head = ["rank", "start", "end", "busy", "idle", "in flight at most", "most bytes", "longest wait"];
  return table("Every rank", head, rows);
}

function actionsTable(run, rank) {
  const stops = stopsOf(run, rank);
  const rows = stops.slice(0, MOST_ROWS).map(({ at, gap, start, end }) => [
    gap ? "gap" : nameOf(run, at), short(start), short(end), gap ? "" : human(run.during[at]),
    gap ? explainGap(run, gap) : explainAction(run, at),
  ]);
  const more = stops.length > MOST_ROWS ? `, the first ${MOST_ROWS} of ${stops.length}` : "";
  return table(`Rank ${rank}${more}`, ["what", "start", "end", "bytes during it", "why"], rows);
}

function table(caption, head, rows) {
  return h("div", { class: "scroll", tabindex: "0", role: "group", "aria-label": caption },
    h("table", {}, h("caption", {}, caption),
      h("thead", {}, h("tr", {}, ...head.map((name) => h("th", { scope: "col" }, name)))),
      h("tbody", {}, ...rows.map(([name, ...cells]) =>
        h("tr", {}, h("th", { scope: "row" }, name), ...cells.map((cell) => h("td", {}, String(cell))))))));
}
