// The ring all-reduce, round by round: chunks that gather addends, and then travel once more. As course_lib.runtime.collectives.

import { WIDTH, box, label, path } from "./marks.js";
import { human } from "./scale.js";
import { show } from "./figure.js";

const LETTERS = "abcdefgh";
// By chunk, as in course_lib.observe.show.collectives.
const COLOURS = ["#0b5a8c", "#a63603", "#1b6b48", "#5e3c8f", "#7a5c00", "#4d4d4d", "#8c1d5a", "#00626e"];
const PALE = ["#d3e6f3", "#fbe0d0", "#d5ecdf", "#e6ddf2", "#f5ebc4", "#e4e4e4", "#f6d9e8", "#d0ebee"];

/**
 * Every round: {sends: [{from, to, chunk, addends}], held: rank -> chunk -> the ranks whose addends are in it} after it. The first
 * entry is the beginning. Rank r begins with the chunk before its own, so that it ends with the sum of chunk r.
 */
export function rounds(p) {
  const held = [...Array(p).keys()].map((rank) => Array(p).fill([rank])), found = [{ sends: [], held: held.map((own) => [...own]) }];
  for (let k = 0; k < 2 * (p - 1); k++) {
    const adds = k < p - 1, sends = held.map((own, from) => {
      const chunk = (from - (adds ? 1 + k : k - (p - 1)) + 2 * p) % p;
      return { from, to: (from + 1) % p, chunk, addends: own[chunk] };
    });
    for (const { to, chunk, addends } of sends) held[to][chunk] = adds ? [...addends, ...held[to][chunk]] : addends;
    found.push({ sends, held: held.map((own) => [...own]) });
  }
  return found;
}

/** What the first rank does in a round. */
function sentence(p, step, { sends }, whole) {
  if (!step) return `Each rank has its own tensor of ${human(whole)}, cut into ${p} chunks. Every rank needs the sum of all ${p} tensors.`;
  const { to, chunk } = sends[0], letter = LETTERS[chunk], half = step < p;
  const what = half ? `Rank 0 sends chunk ${letter} to rank ${to}, which adds its own.` : `Rank 0 sends the finished chunk ${letter} to rank ${to}, which keeps it.`;
  const ends = { [p - 1]: " Now every rank has one chunk of the whole sum.", [2 * (p - 1)]: " Now every rank has all of the sum." }[step] ?? "";
  return `Round ${step}, ${half ? "reduce-scatter" : "all-gather"}. ${what} All ranks send at the same time.${ends}`;
}

export function draw({ ranks: p }, step, { bytes }) {
  const all = rounds(p), now = all[step], wide = (WIDTH - 8) / p, cell = Math.min(120, wide - 28), tall = p > 6 ? 20 : 26;
  const left = (rank) => 4 + rank * wide + (wide - cell) / 2, y = (chunk) => 24 + chunk * (tall + 6), bottom = y(p) + 4;
  const marks = [];
  now.held.forEach((own, rank) => {
    marks.push(label(left(rank) + cell / 2, 12, `rank ${rank}`, { anchor: "middle", colour: "ink" }));
    own.forEach((addends, chunk) => {
      const x = left(rank) + 14, size = (cell - 14) / p;
      marks.push(box(left(rank), y(chunk), cell, tall, PALE[chunk]), box(left(rank), y(chunk), 14, tall, PALE[chunk], LETTERS[chunk]));
      for (const addend of addends) marks.push(box(x + addend * size, y(chunk), size - 1, tall, COLOURS[chunk], String(addend)));
    });
  });
  for (const { from, to, chunk } of now.sends) {
    const middle = y(chunk) + tall / 2, arrow = { wide: 2, arrow: true };
    marks.push(box(left(to) - 1, y(chunk) - 1, cell + 2, tall + 2, "none", "", { edge: "ink" }));
    if (to) marks.push(path([left(from) + cell + 1, middle, left(to) - 4, middle], "ink", arrow));
    else marks.push(path([left(from) + cell + 1, middle, WIDTH - 1, middle], "ink", arrow), path([1, middle, left(0) - 4, middle], "ink", arrow));
  }
  const each = (step * bytes) / p, x = (size) => 150 + (size / (2 * bytes)) * (WIDTH - 230);
  marks.push(label(142, bottom + 16, "sent by each rank", { anchor: "end" }), box(x(0), bottom + 4, x(2 * bytes) - x(0), 22, "idle"), box(x(0), bottom + 4, x(each) - x(0), 22, "gradients"));
  marks.push(path([x(bytes), bottom + 2, x(bytes), bottom + 28], "quiet"), path([x(2 * bytes), bottom + 2, x(2 * bytes), bottom + 28], "quiet"));
  marks.push(label(x(bytes), bottom + 38, "one tensor", { anchor: "middle" }), label(x(2 * bytes), bottom + 38, "two tensors", { anchor: "middle" }));
  return {
    marks, height: bottom + 48, says: sentence(p, step, now, bytes),
    numbers: [["sent by each rank", human(each)], [`messages of ${human(bytes / p)}`, String(step)], ["of the tensor", `${Number((step / p).toPrecision(3))} ×`]],
  };
}

const steps = ({ ranks }) => 2 * ranks - 1;
export const render = ({ model, el }) => show(el, model.get("given"), draw, steps);
export const start = (el, given) => show(el, given, draw, steps);
