// The place of everything in a drawing of ranks over time: margins, rows and the scale of time, on a sharp canvas.

import { scaleOf, short, ticks } from "./scale.js";

export const LEFT = 58, RIGHT = 76, AXIS = 22;
const FONT = '11px system-ui, "DejaVu Sans", sans-serif';

/** Make a canvas as large as it is shown, in the pixels of the screen, and empty. */
export function prepare(canvas, width, height) {
  const sharp = window.devicePixelRatio || 1;
  if (canvas.width !== Math.round(width * sharp)) canvas.width = Math.round(width * sharp);
  if (canvas.height !== Math.round(height * sharp)) canvas.height = Math.round(height * sharp);
  canvas.style.height = `${height}px`;
  const pen = canvas.getContext("2d");
  pen.setTransform(sharp, 0, 0, sharp, 0, 0);
  pen.clearRect(0, 0, width, height);
  pen.font = FONT;
  pen.textBaseline = "middle";
  return pen;
}

/** Rows of one height for all ranks, as tall as the room allows. */
export function frameOf(ranks, width, { room, least, most }, [from, to]) {
  const row = Math.max(least, Math.min(most, Math.floor(room / ranks)));
  const right = width - RIGHT, bottom = row * ranks;
  const time = scaleOf([from, to], [LEFT, right]);
  return { row, left: LEFT, right, width, bottom, height: bottom + AXIS, time, from, to, ranks };
}

/** Names of the ranks on the left; where rows are low, only of every second, fourth … */
export function writeRanks(pen, frame, palette) {
  let every = 1;
  while (every * frame.row < 12) every *= 2;
  pen.fillStyle = palette.quiet;
  pen.textAlign = "right";
  for (let rank = 0; rank < frame.ranks; rank += every) {
    pen.fillText(`rank ${rank}`, frame.left - 8, Math.max(7, (rank + 0.5) * frame.row)); // the first is not cut
  }
}

/** The axis of time below the rows. */
export function writeTimes(pen, frame, palette, unit = "") {
  pen.fillStyle = palette.quiet;
  pen.strokeStyle = palette.line;
  pen.textAlign = "center";
  for (const time of ticks(frame.from, frame.to, (frame.right - frame.left) / 90)) {
    const x = Math.round(frame.time(time)) + 0.5;
    pen.beginPath();
    pen.moveTo(x, frame.bottom);
    pen.lineTo(x, frame.bottom + 4);
    pen.stroke();
    pen.fillText(short(time), x, frame.bottom + 13);
  }
  pen.textAlign = "left";
  pen.fillText(unit ? `time, ${unit}` : "time", frame.right + 8, frame.bottom + 13);
}

/** The play head: a line through all rows. */
export function drawHead(pen, frame, palette, time) {
  if (time === null || time < frame.from || time > frame.to) return;
  const x = frame.time(time);
  pen.strokeStyle = palette.accent;
  pen.lineWidth = 2;
  pen.beginPath();
  pen.moveTo(x, 0);
  pen.lineTo(x, frame.bottom);
  pen.stroke();
  pen.lineWidth = 1;
}

/** Keep what is drawn between the margins. */
export function clipped(pen, frame, draw) {
  pen.save();
  pen.beginPath();
  pen.rect(frame.left, 0, frame.right - frame.left, frame.bottom);
  pen.clip();
  draw();
  pen.restore();
}

/** The first action of a rank that ends after a time. */
export function firstAfter(run, rank, time) {
  let low = run.first[rank], high = run.first[rank + 1];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (run.end[middle] > time) high = middle;
    else low = middle + 1;
  }
  return low;
}
