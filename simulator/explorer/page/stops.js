// What can be in focus: the actions of a rank and the gaps between them, in order of time.

import { gapsOf } from "./causes.js";

const gapsOfRun = new WeakMap();

/** All gaps of a run, found once. */
export function allGaps(run) {
  if (!gapsOfRun.has(run)) gapsOfRun.set(run, gapsOf(run));
  return gapsOfRun.get(run);
}

const stopsOfRun = new WeakMap();

/** The stops of one rank: {rank, start, end, at} for an action, {rank, start, end, gap} for a gap. */
export function stopsOf(run, rank) {
  if (!stopsOfRun.has(run)) stopsOfRun.set(run, new Map());
  const known = stopsOfRun.get(run);
  if (!known.has(rank)) known.set(rank, findStops(run, rank));
  return known.get(rank);
}

function findStops(run, rank) {
  const stops = allGaps(run).filter((gap) => gap.rank === rank).map((gap) => ({ rank, start: gap.start, end: gap.end, gap }));
  for (let at = run.first[rank]; at < run.first[rank + 1]; at++) {
    stops.push({ rank, start: run.start[at], end: run.end[at], at });
  }
  return stops.sort((a, b) => a.start - b.start || a.end - b.end);
}

/** The stop of a rank at a time; null outside of the step. Of two actions at once, lower says which. */
export function stopAt(run, rank, time, lower = false) {
  const there = stopsOf(run, rank).filter((stop) => stop.start <= time && time < stop.end);
  return there[lower ? there.length - 1 : 0] ?? null;
}

/** The stop that comes some steps after another one on its rank; the first or the last where there is none. */
export function stopBeside(run, stop, steps) {
  const stops = stopsOf(run, stop.rank);
  const here = stops.findIndex((one) => one.at === stop.at && one.start === stop.start && one.end === stop.end);
  return stops[Math.max(0, Math.min(stops.length - 1, here + steps))];
}
