// LoRA's change of a matrix: B times A with r columns and rows, and how many numbers are trained.

import { box, label } from "./marks.js";
import { percent, short } from "./scale.js";
import { show } from "./figure.js";

const CELL = 10, LARGE = 4096; // px; rows and columns of a matrix of a 7B model

/** {factor, change: the rows of factor B A, trained: numbers in A and B}. */
export function lora({ r, alpha }, { A, B }) {
  const factor = alpha / r, product = (row) => A[0].map((_, k) => row.slice(0, r).reduce((sum, b, i) => sum + b * A[i][k], 0));
  return { factor, change: B.map((row) => product(row).map((value) => factor * value)), trained: r * (A[0].length + B.length) };
}

/** Each number as a square: its size is the amount, its colour the sign. */
function squares(rows, x, y, most) {
  return rows.flatMap((row, i) => row.map((value, k) => {
    const size = Math.max(1, Math.min(CELL - 1, (CELL - 1) * Math.sqrt(Math.abs(value) / most)));
    return box(x + CELL * k + (CELL - size) / 2, y + CELL * i + (CELL - size) / 2, size, size, value < 0 ? "backward" : "forward");
  }));
}

export function draw(values, _, given) {
  const { r } = values, { A, B } = given, n = B.length, end = n * CELL, { factor, change, trained } = lora(values, given);
  const top = 30, middle = 200, right = 420, frame = (x, w, h) => box(x, top, w, h, "idle"), says = (x, text) => label(x, 12, text, { colour: "ink" });
  const marks = [frame(0, r * CELL, end), ...squares(B.map((row) => row.slice(0, r)), 0, top, 2), frame(middle, end, r * CELL), ...squares(A.slice(0, r), middle, top, 2)];
  marks.push(frame(right, end, end), ...squares(change, right, top, 60), says(0, `B: ${n} × ${r}`), says(middle, `A: ${r} × ${n}`), says(right, `the change, times α / r = ${short(factor)}`));
  for (const [x, sign] of [[180, "×"], [390, "="]]) marks.push(label(x, top + 40, sign, { anchor: "middle", bold: true }));
  const part = (r * 2 * LARGE) / LARGE ** 2;
  return {
    marks, height: top + end + 10, numbers: [["numbers trained", String(trained)], ["in the whole matrix", String(n * n)], ["of a matrix with 4,096 rows", percent(part)]],
    says: `With r = ${r}, each row of the change is a mixture of the same ${r === 1 ? "row" : `${r} rows`} of A. Trained are ${trained} numbers, of ${n * n} in the whole matrix. The factor is α / r = ${short(factor)}.`,
  };
}

export const render = ({ model, el }) => show(el, model.get("given"), draw);
export const start = (el, given) => show(el, given, draw);
