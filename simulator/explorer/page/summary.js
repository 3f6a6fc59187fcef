// The numbers beside the drawing: how long, how much of it idle, how many bytes. As in simulator/ledgers/timeline.py.

import { B, BW, F, W } from "./schedules.js";

/** Makespan, bubble (idle / total), the internal bubble of arXiv:2401.10241, and of every rank what it holds at most. */
export function summaryOf(run) {
  let start = Infinity, end = -Infinity, longest = 0, busy = 0;
  const ranks = [];
  for (let rank = 0; rank < run.ranks; rank++) {
    const from = run.first[rank], to = run.first[rank + 1], row = { rank, busy: 0, peak: 0, peakAt: -1, inFlight: 0 };
    let alive = 0, last = -Infinity;
    for (let at = from; at < to; at++) {
      if (!(at > from && run.paired[at - 1])) row.busy += run.end[at] - run.start[at];
      if (run.during[at] > row.peak) {
        row.peak = run.during[at];
        row.peakAt = at;
      }
      if (run.kind[at] === F) alive += 1;
      else if (run.kind[at] === B || run.kind[at] === BW) alive -= 1;
      row.inFlight = Math.max(row.inFlight, alive);
      last = Math.max(last, run.end[at]);
    }
    row.start = to > from ? run.start[from] : 0;
    row.end = to > from ? last : 0;
    start = Math.min(start, row.start);
    end = Math.max(end, row.end);
    longest = Math.max(longest, row.end - row.start);
    busy += row.busy;
    ranks.push(row);
  }
  for (let k = 3; k < run.sends.length; k += 4) end = Math.max(end, run.sends[k]);
  const share = (total) => (total ? (total - busy / run.ranks) / total : 0);
  const heaviest = ranks.reduce((best, row) => (row.peak > best.peak ? row : best));
  return { start, end, makespan: end - start, bubble: share(end - start), internal: share(longest), ranks, heaviest };
}

/** What a rank holds at a time: bytes, and the microbatches whose forward has begun and whose backward has not ended. */
export function heldAt(run, rank, time) {
  let held = 0;
  const microbatches = new Set(), key = (at) => `${run.stage[at]} ${run.microbatch[at]}`;
  for (let at = run.first[rank]; at < run.first[rank + 1] && run.start[at] <= time; at++) {
    const ended = run.end[at] <= time;
    held = ended ? run.after[at] : run.during[at];
    if (run.kind[at] === F) microbatches.add(key(at));
    else if (ended && run.kind[at] !== W) microbatches.delete(key(at));
  }
  return { bytes: held, microbatches: [...microbatches].map((one) => one.split(" ").map(Number)) };
}
