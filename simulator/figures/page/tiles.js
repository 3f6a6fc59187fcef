// FlashAttention's forward, tile by tile: the scores of one tile, each query's running m, l and o, the bytes moved.
// As version 2 of simulator/predict/attention_io.py: a block of queries stays, blocks of keys pass by.

import { WIDTH, box, label, legend, path } from "./marks.js";
import { scaleOf } from "./scale.js";
import { show } from "./figure.js";

const CELL = 27, LEFT = 92, TOP = 68; // px
const ON_CHIP = "forward", FLASH = "activations", STANDARD = "parameters"; // as in the chapter's other pictures
const COLUMNS = [["m", 18], ["l", 46], ["o", 90]]; // px right of the scores
const written = (value) => String(Number(value.toFixed(2)));

/**
 * The beginning, then every tile: {i, j, first, last} its blocks and whether it is the first or last of its queries; m, l and o of
 * every query behind it (null: not begun; o: the first number), was: m before it; moved: tensor -> bytes. given: scores, v (of each
 * key the value's first number), size of a head, itemsize, row.
 */
export function tiles({ block_q: rows, block_k: keys }, { scores, v, size, itemsize, row }) {
  const n = scores.length, m = Array(n).fill(null), l = Array(n).fill(null), o = Array(n).fill(null), moved = { Q: 0, K: 0, V: 0, O: 0, L: 0 };
  const found = [{ i: -1, j: -1, m: [...m], l: [...l], o: [...o], was: [...m], moved: { ...moved } }];
  for (let i = 0; i * rows < n; i++) {
    for (let j = 0; j * keys < n; j++) {
      const was = [...m], first = j === 0, last = (j + 1) * keys >= n;
      if (first) moved.Q += itemsize * size * rows;
      for (const name of ["K", "V"]) moved[name] += itemsize * size * keys;
      for (let query = i * rows; query < (i + 1) * rows; query++) {
        const tile = scores[query].slice(j * keys, (j + 1) * keys), largest = Math.max(m[query] ?? -Infinity, ...tile);
        const factor = Math.exp((m[query] ?? largest) - largest), weights = tile.map((score) => Math.exp(score - largest));
        l[query] = (l[query] ?? 0) * factor + weights.reduce((sum, weight) => sum + weight, 0);
        o[query] = (o[query] ?? 0) * factor + weights.reduce((sum, weight, at) => sum + weight * v[j * keys + at], 0);
        m[query] = largest;
      }
      if (last) {
        moved.O += itemsize * size * rows;
        moved.L += row * rows;
      }
      found.push({ i, j, first, last, m: [...m], l: [...l], o: [...o], was, moved: { ...moved } });
    }
  }
  return found;
}

const sum = (moved) => Object.values(moved).reduce((all, bytes) => all + bytes, 0);
const range = (block, size) => (size === 1 ? String(block) : `${block * size} to ${(block + 1) * size - 1}`);

const rises = ({ i, m, was }, query, rows) => Math.floor(query / rows) === i && was[query] !== null && m[query] > was[query];
const risen = (now, rows) => now.m.map((_, query) => query).find((query) => rises(now, query, rows));

/** Three lines: how l and o of the query whose largest score rises come about. */
function rescaled(now, before, query) {
  const { m, was } = now, factor = Math.exp(was[query] - m[query]), line = (name) => {
    const old = before[name][query], fresh = now[name][query] - old * factor;
    return `${name} = ${old.toFixed(2)} × ${factor.toFixed(3)} + ${fresh.toFixed(2)}`;
  };
  return [`old × e^(${was[query]} − ${m[query]}) + new:`, line("l"), line("o")];
}

function sentence({ i, j, first, last, m, was }, { block_q: rows, block_k: keys }) {
  if (i < 0) return "Q, K and V lie in the slow memory. The fast memory has room for a block of queries, a block of keys and values, and one tile of scores.";
  const query = risen({ i, m, was }, rows) ?? i * rows, what = first ? `Queries ${range(i, rows)} are loaded, and keys and values ${range(j, keys)}. ` : `The queries stay, keys and values ${range(j, keys)} are loaded. `;
  const changed = first ? `The largest score of query ${query} is ${m[query]}.` : m[query] === was[query] ? `The largest score of query ${query} stays ${m[query]}, so nothing is rescaled.` :
    `The largest score of query ${query} rises from ${was[query]} to ${m[query]}, so its l and o so far are multiplied by ${Math.exp(was[query] - m[query]).toFixed(3)}.`;
  return `${what}${changed}${last ? " These queries are done: O and one number a query are written." : ""}`;
}

export function draw(values, step, given) {
  const { block_q: rows, block_k: keys } = values, { scores, v, standard } = given, n = scores.length, all = tiles(values, given), now = all[step], end = n * CELL;
  const marks = [label(LEFT + end / 2, 10, "keys and values", { anchor: "middle" }), label(0, TOP + 8, "queries"), ...COLUMNS.map(([name, x]) => label(LEFT + end + x, TOP - 14, name))];
  for (let at = 0; at < n; at++) {
    const [byQuery, byKey] = [Math.floor(at / rows) === now.i, Math.floor(at / keys) === now.j], place = at * CELL, y = TOP + place + CELL / 2, begun = now.m[at] !== null;
    marks.push(box(LEFT - 34, TOP + place, 26, CELL - 2, byQuery ? ON_CHIP : "idle", String(at)), box(LEFT + place, TOP - 42, CELL - 2, 12, byKey ? ON_CHIP : "idle"));
    marks.push(box(LEFT + place, TOP - 28, CELL - 2, 20, byKey ? ON_CHIP : "idle", String(v[at])));
    for (let key = 0; key < n; key++) {
      const here = byQuery && Math.floor(key / keys) === now.j, gone = begun && (!byQuery || Math.floor(key / keys) < now.j);
      marks.push(box(LEFT + key * CELL, TOP + place, CELL - 1, CELL - 1, here ? ON_CHIP : gone ? "paper" : "idle", here ? String(scores[at][key]) : ""));
    }
    const look = rises(now, at, rows) ? { colour: "accent", bold: true } : { colour: byQuery ? "ink" : "quiet" };
    if (begun) marks.push(...COLUMNS.map(([name, x]) => label(LEFT + end + x, y, written(now[name][at]), look)));
  }
  for (let at = 0; at <= n; at += rows) marks.push(path([LEFT - 1, TOP + at * CELL - 0.5, LEFT + end, TOP + at * CELL - 0.5], "quiet"));
  for (let at = 0; at <= n; at += keys) marks.push(path([LEFT + at * CELL - 0.5, TOP - 1, LEFT + at * CELL - 0.5, TOP + end], "quiet"));
  marks.push(label(LEFT - 40, TOP - 36, "K", { anchor: "end" }), label(LEFT - 40, TOP - 18, "V", { anchor: "end" }));
  const right = LEFT + end + 138, whole = Math.max(standard, sum(all.at(-1).moved)), x = scaleOf([0, whole], [right, WIDTH - 10]);
  let y = TOP;
  for (const [words, bytes, colour] of [["FlashAttention, bytes", sum(now.moved), FLASH], ["standard, bytes", standard, STANDARD]]) {
    marks.push(label(right, y + 2, words), box(x(0), y + 12, x(whole) - x(0), 22, "idle"), box(x(0), y + 12, x(bytes) - x(0), 22, colour));
    marks.push(bytes < 0.8 * whole ? label(x(bytes) + 6, y + 23, String(bytes), { colour: "ink" }) : label(WIDTH - 12, y + 3, String(bytes), { anchor: "end", colour: "ink" }));
    y += 58;
  }
  marks.push(...legend(TOP + end - 8, [[ON_CHIP, "in the fast memory"]], right));
  const query = risen(now, rows);
  if (query !== undefined) rescaled(now, all[step - 1], query).forEach((words, line) => marks.push(label(right, TOP + 132 + 22 * line, words, { colour: line ? "accent" : "quiet" })));
  return {
    marks, height: TOP + end + 8, says: sentence(now, values),
    numbers: [["bytes moved so far", String(sum(now.moved))], ["in all", String(sum(all.at(-1).moved))], ["by standard attention", String(standard)]],
  };
}

const steps = (values, given) => tiles(values, given).length;
export const render = ({ model, el }) => show(el, model.get("given"), draw, steps);
export const start = (el, given) => show(el, given, draw, steps);
