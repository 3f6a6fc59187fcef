// LoRA's change of a matrix: B times A with r columns and rows, how many numbers are trained, and what the factor does.

import { WIDTH, box, label, path } from "./marks.js";
import { percent, scaleOf, short } from "./scale.js";
import { show } from "./figure.js";

const CELL = 10, LARGE = 4096; // px; rows and columns of a matrix of a 7B model
const RANKS = [1, 2, 4, 8, 16];

/** {factor, change: the rows of factor B A, trained: numbers in A and B, moves: of the first step, r = 1 and its own factor being 1}. */
export function lora({ r, alpha, stabilised }, { A, B }) {
  const factor = alpha / (stabilised ? Math.sqrt(r) : r), product = (row) => A[0].map((_, k) => row.slice(0, r).reduce((sum, b, i) => sum + b * A[i][k], 0));
  // Adam's first step moves each number of B by the learning rate, so an output moves by the factor times a sum of r terms.
  return { factor, change: B.map((row) => product(row).map((value) => factor * value)), trained: r * (A[0].length + B.length), moves: (factor * r) / alpha };
}

/** Each number as a square: its size is the amount, its colour the sign. */
function squares(rows, x, y, most) {
  return rows.flatMap((row, i) => row.map((value, k) => {
    const size = Math.max(1, Math.min(CELL - 1, (CELL - 1) * Math.sqrt(Math.abs(value) / most)));
    return box(x + CELL * k + (CELL - size) / 2, y + CELL * i + (CELL - size) / 2, size, size, value < 0 ? "backward" : "forward");
  }));
}

export function draw(values, _, given) {
  const { r, alpha, stabilised } = values, { A, B } = given, n = B.length, end = n * CELL, { factor, change, trained, moves } = lora(values, given), top = 30;
  const frame = (x, w, h) => box(x, top, w, h, "idle"), right = 420, middle = 200, words = stabilised ? "α / √r" : "α / r";
  const marks = [frame(0, r * CELL, end), ...squares(B.map((row) => row.slice(0, r)), 0, top, 2), frame(middle, end, r * CELL), ...squares(A.slice(0, r), middle, top, 2)];
  marks.push(frame(right, end, end), ...squares(change, right, top, 60), label(0, 12, `B: ${n} × ${r}`, { colour: "ink" }), label(middle, 12, `A: ${r} × ${n}`, { colour: "ink" }));
  marks.push(label(right, 12, `the change, times ${words} = ${short(factor)}`, { colour: "ink" }), label(180, top + 40, "×", { anchor: "middle", bold: true }), label(390, top + 40, "=", { anchor: "middle", bold: true }));
  const bottom = top + end + 34, x = (rank) => scaleOf([0, RANKS.length - 1], [150, WIDTH - 90])(Math.log2(rank)), y = scaleOf([0, 4], [bottom + 84, bottom + 12]), most = RANKS.at(-1);
  marks.push(label(0, bottom - 8, "how far Adam's first step moves the output, compared with r = 1"), path([150, y(0), WIDTH - 90, y(0)], "line"));
  for (const at of [0, 1, 4]) marks.push(label(142, y(at), `${at} ×`, { anchor: "end" }));
  const lines = [["α / r", () => 1, false], ["α / √r", Math.sqrt, true]];
  for (const [name, of, own] of lines) {
    const mine = own === stabilised;
    marks.push(path(RANKS.flatMap((rank) => [x(rank), y(of(rank))]), mine ? "ink" : "quiet", { wide: mine ? 2 : 1, dash: mine ? "" : "5 4" }), label(x(most) + 10, y(of(most)), name, { colour: mine ? "ink" : "quiet", bold: mine }));
  }
  for (const rank of RANKS) marks.push(label(x(rank), bottom + 98, String(rank), { anchor: "middle" }));
  marks.push(label(142, bottom + 98, "r", { anchor: "end" }), box(x(r) - 5, y(moves) - 5, 10, 10, "accent"));
  const part = (r * 2 * LARGE) / LARGE ** 2, far = moves === 1 ? "as far as with r = 1" : `${short(moves)} times as far as with r = 1`;
  return {
    marks, height: bottom + 108, numbers: [["numbers trained", String(trained)], ["in the whole matrix", String(n * n)], ["of a matrix with 4,096 rows", percent(part)]],
    says: `With r = ${r}, each row of the change is a mixture of the same ${r === 1 ? "row" : `${r} rows`} of A. Trained are ${trained} numbers, of ${n * n} in the whole matrix. ` +
      `The factor is ${words} = ${short(factor)}, so Adam's first step moves the output ${far}.`,
  };
}

export const render = ({ model, el }) => show(el, model.get("given"), draw);
export const start = (el, given) => show(el, given, draw);
