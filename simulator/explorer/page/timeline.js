// The timeline: a row a rank, a box an action, idle time pale grey. By hand on a canvas: 64 ranks with 512 microbatches
// are 100,000 boxes, too many for elements of a page.

import { clipped, drawHead, firstAfter, frameOf, prepare, writeRanks, writeTimes } from "./frame.js";
import { inkOn } from "./palette.js";
import { rankAt } from "./causes.js";

const ROOM = { room: 420, least: 5, most: 28 };

/**
 * Draw a run into a canvas of that width, for the times from..to. marked: places on the critical path, in order;
 * chosen: {rank, start, end} of the action or gap in focus; head: the time of the play head. Returns the frame.
 */
export function drawTimeline(canvas, run, palette, width, { from, to, marked, chosen, head, end }) {
  const frame = frameOf(run.ranks, width, ROOM, [from, to]), pen = prepare(canvas, width, frame.height);
  clipped(pen, frame, () => {
    pen.fillStyle = palette.idle;
    for (let rank = 0; rank < run.ranks; rank++) {
      const x = frame.time(0);
      pen.fillRect(x, rank * frame.row + 1, frame.time(end) - x, Math.max(1, frame.row - 2));
    }
    drawBoxes(pen, run, frame, palette);
    if (marked) drawPath(pen, run, frame, palette, marked);
    if (chosen) outline(pen, frame, palette.accent, chosen.rank, chosen.start, chosen.end, 3);
    drawHead(pen, frame, palette, head);
  });
  writeRanks(pen, frame, palette);
  writeTimes(pen, frame, palette);
  return frame;
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
  const numbers = frame.row >= 13;
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
  const top = rankAt(run, at) * frame.row + 1, tall = Math.max(1, frame.row - 2);
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
    pen.moveTo(frame.time(run.end[node.at]), (rank + 0.5) * frame.row);
    pen.lineTo(frame.time(run.start[next.at]), (rankAt(run, next.at) + 0.5) * frame.row);
    pen.stroke();
    pen.lineWidth = 1;
  });
}

function outline(pen, frame, colour, rank, start, end, line) {
  const x = frame.time(start);
  pen.strokeStyle = colour;
  pen.lineWidth = frame.row < 10 ? 1 : line;
  pen.strokeRect(x, rank * frame.row + 1, frame.time(end) - x, Math.max(1, frame.row - 2));
  pen.lineWidth = 1;
}

/** The rank and the time below a point of the canvas; null outside of the rows. */
export function pointAt(frame, x, y) {
  const rank = Math.floor(y / frame.row);
  if (x < frame.left || x > frame.right || rank < 0 || rank >= frame.ranks) return null;
  return { rank, time: frame.time.invert(x) };
}
