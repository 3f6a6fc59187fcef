// Bytes over time: for every rank what it keeps alive, all ranks to one scale, with each rank's peak.

import { clipped, drawHead, firstAfter, frameOf, prepare, writeRanks, writeTimes } from "./frame.js";
import { backwardsOf, rankAt } from "./causes.js";
import { heldAt } from "./summary.js";
import { F } from "./schedules.js";
import { human } from "./scale.js";

const ROOM = { room: 300, least: 5, most: 46 };

/**
 * Draw the bytes of a run; beside each row its peak or, where there is a play head, what is alive there. Below the row a bar
 * says for how long the microbatch of the chosen action is kept there.
 */
export function drawBytes(canvas, run, summary, palette, width, { from, to, head, capacity, most, chosen = null }) {
  const frame = frameOf(run.ranks, width, ROOM, [from, to]), pen = prepare(canvas, width, frame.height);
  const top = Math.max(most ?? 0, summary.heaviest.peak, capacity ?? 0) || 1, tall = Math.max(2, frame.row - 4);
  const level = (rank, bytes) => (rank + 1) * frame.row - 1 - (bytes / top) * tall;
  clipped(pen, frame, () => {
    for (let rank = 0; rank < run.ranks; rank++) {
      pen.strokeStyle = palette.line;
      line(pen, frame, (rank + 1) * frame.row - 0.5);
      pen.fillStyle = palette.bytes;
      pen.fill(steps(run, rank, frame, (bytes) => level(rank, bytes)));
      if (capacity) {
        pen.strokeStyle = palette.ink;
        pen.setLineDash([4, 3]);
        line(pen, frame, level(rank, capacity));
        pen.setLineDash([]);
      }
    }
    if (chosen?.at !== undefined) drawKept(pen, run, frame, palette, run.microbatch[chosen.at]);
    drawHead(pen, frame, palette, head);
  });
  writeRanks(pen, frame, palette);
  writeTimes(pen, frame, palette, run.measured?.unit);
  if (frame.row >= 12) {
    pen.fillStyle = palette.ink;
    pen.textAlign = "left";
    for (const { rank, peak } of summary.ranks) {
      const bytes = head === null ? peak : heldAt(run, rank, head).bytes;
      pen.fillText(human(bytes), frame.right + 8, (rank + 0.5) * frame.row);
    }
  }
  return { ...frame, level };
}

/** From its forward to the end of the backward that frees it, on each rank. */
function drawKept(pen, run, frame, palette, microbatch) {
  pen.fillStyle = palette.accent;
  run.microbatch.forEach((one, at) => {
    if (one !== microbatch || run.kind[at] !== F) return;
    const x = frame.time(run.start[at]), until = backwardsOf(run, at).at(-1);
    if (until >= 0) pen.fillRect(x, (rankAt(run, at) + 1) * frame.row - 4, frame.time(run.end[until]) - x, 3);
  });
}

function line(pen, frame, y) {
  pen.beginPath();
  pen.moveTo(frame.left, y);
  pen.lineTo(frame.right, y);
  pen.stroke();
}

/** The area below the steps of one rank. Within one pixel of the screen only the highest step is drawn. */
function steps(run, rank, frame, level) {
  const path = new Path2D(), floor = level(0), begin = firstAfter(run, rank, frame.from);
  let held = begin > run.first[rank] ? run.after[begin - 1] : 0, column = -Infinity, highest = 0;
  path.moveTo(frame.left, floor);
  path.lineTo(frame.left, level(held));
  const step = (time, bytes) => {
    const x = Math.max(frame.left, frame.time(time));
    if (x - column < 0.5) {
      if (bytes > highest) {
        highest = bytes;
        path.lineTo(x, level(bytes));
      }
    } else {
      path.lineTo(x, level(held));
      path.lineTo(x, level(bytes));
      column = x;
      highest = bytes;
    }
    held = bytes;
  };
  for (let at = begin; at < run.first[rank + 1] && run.start[at] < frame.to; at++) {
    if (run.during[at] !== held) step(run.start[at], run.during[at]);
    if (run.after[at] !== held) step(run.end[at], run.after[at]);
  }
  path.lineTo(frame.right, level(held));
  path.lineTo(frame.right, floor);
  path.closePath();
  return path;
}
