// FlashAttention's forward, tile by tile: the scores of one tile, the running maximum and sum of each query, the bytes moved.
// As version 2 of simulator/predict/attention_io.py: a block of queries stays, blocks of keys pass by.

import { WIDTH, box, label, legend, path } from "./marks.js";
import { scaleOf } from "./scale.js";
import { show } from "./figure.js";

const CELL = 27, LEFT = 92, TOP = 62; // px
const ON_CHIP = "forward", FLASH = "activations", STANDARD = "parameters"; // as in the chapter's other pictures
const written = (value) => String(Number(value.toFixed(2)));

/**
 * The beginning, then every tile: {i, j, first, last} its blocks and whether it is the first or last of its queries; m and l of
 * every query behind it (null: not begun), was: m before it; moved: tensor -> bytes. given: scores, size of a head, itemsize, row.
 */
export function tiles({ block_q: rows, block_k: keys }, { scores, size, itemsize, row }) {
  const n = scores.length, m = Array(n).fill(null), l = Array(n).fill(null), moved = { Q: 0, K: 0, V: 0, O: 0, L: 0 };
  const found = [{ i: -1, j: -1, m: [...m], l: [...l], was: [...m], moved: { ...moved } }];
  for (let i = 0; i * rows < n; i++) {
    for (let j = 0; j * keys < n; j++) {
      const was = [...m], first = j === 0, last = (j + 1) * keys >= n;
      if (first) moved.Q += itemsize * size * rows;
      for (const name of ["K", "V"]) moved[name] += itemsize * size * keys;
      for (let query = i * rows; query < (i + 1) * rows; query++) {
        const tile = scores[query].slice(j * keys, (j + 1) * keys), largest = Math.max(m[query] ?? -Infinity, ...tile);
        l[query] = (l[query] ?? 0) * Math.exp((m[query] ?? largest) - largest) + tile.reduce((sum, score) => sum + Math.exp(score - largest), 0);
        m[query] = largest;
      }
      if (last) {
        moved.O += itemsize * size * rows;
        moved.L += row * rows;
      }
      found.push({ i, j, first, last, m: [...m], l: [...l], was, moved: { ...moved } });
    }
  }
  return found;
}

const sum = (moved) => Object.values(moved).reduce((all, bytes) => all + bytes, 0);
const range = (block, size) => (size === 1 ? String(block) : `${block * size} to ${(block + 1) * size - 1}`);

const rises = ({ i, m, was }, query, rows) => Math.floor(query / rows) === i && was[query] !== null && m[query] > was[query];
const risen = (now, rows) => now.m.map((_, query) => query).find((query) => rises(now, query, rows));

/** Two lines: how the sum of the query whose largest score rises comes about, in words and in numbers. */
function rescaled({ m, l, was }, before, query) {
  const factor = Math.exp(was[query] - m[query]), old = before.l[query];
  return [`sum × e^(${was[query]} − ${m[query]}) + new:`, `${old.toFixed(2)} × ${factor.toFixed(3)} + ${(l[query] - old * factor).toFixed(2)} = ${l[query].toFixed(2)}`];
}

function sentence({ i, j, first, last, m, was }, { block_q: rows, block_k: keys }) {
  if (i < 0) return "Q, K and V lie in the slow memory. The fast memory has room for a block of queries, a block of keys and values, and one tile of scores.";
  const query = risen({ i, m, was }, rows) ?? i * rows, what = first ? `Queries ${range(i, rows)} are loaded, and keys and values ${range(j, keys)}. ` : `The queries stay, keys and values ${range(j, keys)} are loaded. `;
  const changed = first ? `The largest score of query ${query} is ${m[query]}.` : m[query] === was[query] ? `The largest score of query ${query} stays ${m[query]}, so nothing is rescaled.` :
    `The largest score of query ${query} rises from ${was[query]} to ${m[query]}, so its sum so far is multiplied by ${Math.exp(was[query] - m[query]).toFixed(3)}.`;
  return `${what}${changed}${last ? " These queries are done: O and one number a query are written." : ""}`;
}

export function draw(values, step, given) {
  const { block_q: rows, block_k: keys } = values, { scores, standard } = given, n = scores.length, all = tiles(values, given), now = all[step], end = n * CELL;
  const marks = [label(LEFT + end / 2, 10, "keys and values", { anchor: "middle" }), label(0, TOP + 8, "queries"), label(LEFT + end + 24, TOP - 20, "largest"), label(LEFT + end + 84, TOP - 20, "sum")];
  for (let at = 0; at < n; at++) {
    const [byQuery, byKey] = [Math.floor(at / rows) === now.i, Math.floor(at / keys) === now.j], place = at * CELL, y = TOP + place + CELL / 2, begun = now.m[at] !== null;
    marks.push(box(LEFT - 34, TOP + place, 26, CELL - 2, byQuery ? ON_CHIP : "idle", String(at)), box(LEFT + place, TOP - 36, CELL - 2, 12, byKey ? ON_CHIP : "idle"));
    marks.push(box(LEFT + place, TOP - 22, CELL - 2, 12, byKey ? ON_CHIP : "idle"));
    for (let key = 0; key < n; key++) {
      const here = byQuery && Math.floor(key / keys) === now.j, gone = begun && (!byQuery || Math.floor(key / keys) < now.j);
      marks.push(box(LEFT + key * CELL, TOP + place, CELL - 1, CELL - 1, here ? ON_CHIP : gone ? "paper" : "idle", here ? String(scores[at][key]) : ""));
    }
    const look = rises(now, at, rows) ? { colour: "accent", bold: true } : { colour: byQuery ? "ink" : "quiet" };
    if (begun) marks.push(label(LEFT + end + 24, y, String(now.m[at]), look), label(LEFT + end + 84, y, written(now.l[at]), look));
  }
  for (let at = 0; at <= n; at += rows) marks.push(path([LEFT - 1, TOP + at * CELL - 0.5, LEFT + end, TOP + at * CELL - 0.5], "quiet"));
  for (let at = 0; at <= n; at += keys) marks.push(path([LEFT + at * CELL - 0.5, TOP - 1, LEFT + at * CELL - 0.5, TOP + end], "quiet"));
  marks.push(label(LEFT - 40, TOP - 30, "K", { anchor: "end" }), label(LEFT - 40, TOP - 16, "V", { anchor: "end" }));
  const right = LEFT + end + 138, whole = Math.max(standard, sum(all.at(-1).moved)), x = scaleOf([0, whole], [right, WIDTH - 10]);
  let y = TOP;
  for (const [words, bytes, colour] of [["FlashAttention, bytes so far", sum(now.moved), FLASH], ["standard, bytes", standard, STANDARD]]) {
    marks.push(label(right, y + 2, words), box(x(0), y + 12, x(whole) - x(0), 22, "idle"), box(x(0), y + 12, x(bytes) - x(0), 22, colour));
    marks.push(bytes < 0.8 * whole ? label(x(bytes) + 6, y + 23, String(bytes), { colour: "ink" }) : label(WIDTH - 12, y + 3, String(bytes), { anchor: "end", colour: "ink" }));
    y += 58;
  }
  marks.push(...legend(TOP + end - 8, [[ON_CHIP, "in the fast memory"]], right));
  const query = risen(now, rows);
  if (query !== undefined) rescaled(now, all[step - 1], query).forEach((words, line) => marks.push(label(right, TOP + 138 + 22 * line, words, { colour: line ? "accent" : "quiet" })));
  return {
    marks, height: TOP + end + 8, says: sentence(now, values),
    numbers: [["bytes moved so far", String(sum(now.moved))], ["in all", String(sum(all.at(-1).moved))], ["by standard attention", String(standard)]],
  };
}

const steps = (values, given) => tiles(values, given).length;
export const render = ({ model, el }) => show(el, model.get("given"), draw, steps);
export const start = (el, given) => show(el, given, draw, steps);
