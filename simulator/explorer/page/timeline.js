// The timeline: a row a rank, a box an action, idle time pale grey. By hand on a canvas: 64 ranks with 512 microbatches
// are 100,000 boxes, too many for elements of a page.

import { clipped, drawHead, firstAfter, frameOf, prepare, writeRanks, writeTimes } from "./frame.js";
import { inkOn } from "./palette.js";
import { rankAt } from "./causes.js";

const ROOM = { room: 420, least: 5, most: 28 };
const ROOM_FOR_TWO = { room: 620, least: 10, most: 46 };

/**
 * Draw a run into a canvas of that width, for the times from..to. real: the measured run, which gets the lower half of
 * each row, or null; end: of the run; marked: places on the critical path, in order; chosen: {rank, start, end} of the
 * action or gap in focus; head: the time of the play head. Returns the frame.
 */
export function drawTimeline(canvas, run, palette, width, { from, to, marked, chosen, head, end, real = null }) {
  const room = real ? ROOM_FOR_TWO : ROOM, frame = frameOf(run.ranks, width, room, [from, to]);
  const pen = prepare(canvas, width, frame.height);
  const tall = real ? Math.floor(frame.row / 2) - 2 : Math.max(1, frame.row - 2);
  const band = { ...frame, top: 1, tall }, lower = { ...frame, top: tall + 2, tall };
  clipped(pen, frame, () => {
    drawIdle(pen, band, palette, end);
    drawBoxes(pen, run, band, palette);
    if (real) {
      drawIdle(pen, lower, palette, real.summary.end);
      drawBoxes(pen, real, lower, palette);
    }
    if (marked) drawPath(pen, run, band, palette, marked);
    if (chosen?.at !== undefined) drawSame(pen, run, band, palette, run.microbatch[chosen.at]);
    if (chosen) outline(pen, chosen.real ? lower : band, palette.accent, chosen.rank, chosen.start, chosen.end, 3);
    if (chosen && real && chosen.at !== undefined) {
      outline(pen, lower, palette.accent, chosen.rank, real.start[chosen.at], real.end[chosen.at], 3);
    }
    drawHead(pen, frame, palette, head);
  });
  writeRanks(pen, frame, palette);
  writeTimes(pen, frame, palette, run.measured?.unit);
  return frame;
}

/** The ground of the rows: what stays of it is idle time. */
function drawIdle(pen, frame, palette, end) {
  const x = frame.time(0);
  pen.fillStyle = palette.idle;
  for (let rank = 0; rank < frame.ranks; rank++) {
    pen.fillRect(x, rank * frame.row + frame.top, frame.time(end) - x, frame.tall);
  }
}

/** The boxes, colour by colour: changing the colour of a pen costs more than a box. */
function drawBoxes(pen, run, frame, palette) {
  const boxes = new Map(), gap = frame.row >= 10 ? 1 : 0;
  for (let rank = 0; rank < run.ranks; rank++) {
    for (let at = firstAfter(run, rank, frame.from); at < run.first[rank + 1] && run.start[at] < frame.to; at++) {
      const colour = palette.of(run, at);
      if (!boxes.has(colour)) boxes.set(colour, []);
      boxes.get(colour).push(at);
    }
  }
  const numbers = frame.tall >= 11;
  for (const [colour, places] of boxes) {
    pen.fillStyle = colour;
    for (const at of places) {
      const { x, y, w, tall } = boxOf(run, at, frame);
      pen.fillRect(x, y, w > 4 ? w - gap : w, tall);
    }
    if (!numbers) continue;
    pen.fillStyle = inkOn(colour);
    pen.textAlign = "center";
    for (const at of places) {
      const { x, y, w, tall } = boxOf(run, at, frame), text = String(run.microbatch[at]);
      if (tall >= 11 && w > 7 * text.length + 3) pen.fillText(text, x + w / 2, y + tall / 2 + 0.5);
    }
  }
}

/** Two actions that run together share their row: the forward above, the backward below. */
function boxOf(run, at, frame) {
  const x = frame.time(run.start[at]), w = frame.time(run.end[at]) - x;
  const top = rankAt(run, at) * frame.row + frame.top, tall = frame.tall;
  if (run.paired[at]) return { x, y: top, w, tall: tall / 2 };
  if (at > 0 && run.paired[at - 1]) return { x, y: top + tall / 2, w, tall: tall / 2 };
  return { x, y: top, w, tall };
}

function drawPath(pen, run, frame, palette, marked) {
  marked.forEach((node, k) => {
    const rank = rankAt(run, node.at);
    if (!node.message) outline(pen, frame, palette.ink, rank, run.start[node.at], run.end[node.at], 2);
    const next = marked[k + 1];
    if (!next || rankAt(run, next.at) === rank) return;
    pen.strokeStyle = palette.ink;
    pen.lineWidth = 2;
    pen.beginPath();
    const middle = frame.top + frame.tall / 2;
    pen.moveTo(frame.time(run.end[node.at]), rank * frame.row + middle);
    pen.lineTo(frame.time(run.start[next.at]), rankAt(run, next.at) * frame.row + middle);
    pen.stroke();
    pen.lineWidth = 1;
  });
}

/** A thin frame around all actions of one microbatch, on every rank. */
function drawSame(pen, run, frame, palette, microbatch) {
  pen.strokeStyle = palette.accent;
  pen.lineWidth = frame.row < 10 ? 1 : 2;
  run.microbatch.forEach((one, at) => {
    if (one !== microbatch || run.end[at] < frame.from || run.start[at] > frame.to) return;
    const { x, y, w, tall } = boxOf(run, at, frame);
    pen.strokeRect(x + 1, y + 1, w - 3, tall - 2);
  });
  pen.lineWidth = 1;
}

function outline(pen, frame, colour, rank, start, end, line) {
  const x = frame.time(start);
  pen.strokeStyle = colour;
  pen.lineWidth = frame.row < 10 ? 1 : line;
  pen.strokeRect(x, rank * frame.row + frame.top, frame.time(end) - x, frame.tall);
  pen.lineWidth = 1;
}

/** The rank and the time below a point of the canvas; null outside of the rows. */
export function pointAt(frame, x, y) {
  const rank = Math.floor(y / frame.row);
  if (x < frame.left || x > frame.right || rank < 0 || rank >= frame.ranks) return null;
  return { rank, time: frame.time.invert(x) };
}
