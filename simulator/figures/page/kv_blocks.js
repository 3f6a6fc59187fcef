// Blocks of a KV cache, step by step: requests come, grow, take blocks, share them, and give them back.
// Without sharing as serve_in_blocks of simulator/predict/serving.py.

import { WIDTH, box, label, legend, path } from "./marks.js";
import { show } from "./figure.js";

const PAINT = ["forward", "backward", "weights", "gradients", "reserved"], LETTERS = "ABCDE"; // of requests
const ROW = 16, PITCH = 50; // slots beside each other; px from row to row

/**
 * Every step: {pieces: [{block, tokens, holders}], tokens: request -> in the cache, tables, waiting, events: [[what, request], …]}.
 * given: requests [prompt, new tokens, step]; slots of the cache; the first `family` requests begin with the same `common` tokens.
 */
export function serve({ block_size: size, share }, { requests, slots, family, common }) {
  const free = [...Array(slots / size).keys()].reverse(), users = Array(slots / size).fill(0), tables = new Map(), running = new Map(), found = [];
  const cached = requests.map(([prompt, answer]) => prompt + answer - 1), computed = requests.map(([prompt]) => prompt);
  const waiting = [...requests.keys()].sort((a, b) => requests[a][2] - requests[b][2]), blocks = (tokens) => Math.ceil(tokens / size);
  const take = (number, tokens) => {
    for (const table = tables.get(number); table.length * size < tokens; users[table.at(-1)] = 1) table.push(free.pop());
  };
  const giveBack = (number) => {
    for (const block of tables.get(number)) if ((users[block] -= 1) === 0) free.push(block);
    tables.delete(number);
  };
  const shared = (number) => { // whole blocks of the common beginning, where a request of the family has them
    const other = share && number < family ? [...running.keys()].find((one) => one < family) : undefined;
    return other === undefined ? [] : tables.get(other).slice(0, Math.floor(common / size));
  };
  for (let now = 0, ended = []; waiting.length || running.size; now++) {
    const events = ended.map((number) => ["ends", number]);
    const needed = () => [...running].reduce((sum, [number, tokens]) => sum + blocks(tokens + 1) - tables.get(number).length, 0);
    while (needed() > free.length) { // who was admitted last waits again, before all others
      const last = [...running.keys()].at(-1);
      giveBack(last);
      computed[last] = running.get(last) + 1;
      running.delete(last);
      waiting.unshift(last);
      events.push(["goes back", last]);
    }
    for (const [number, tokens] of running) {
      if (blocks(tokens + 1) > tables.get(number).length) events.push(["grows", number]);
      take(number, tokens + 1);
      running.set(number, tokens + 1);
    }
    while (waiting.length && requests[waiting[0]][2] <= now) {
      const number = waiting[0], own = shared(number);
      if (blocks(computed[number]) - own.length > free.length) break;
      tables.set(number, [...own]);
      own.forEach((block) => (users[block] += 1));
      take(number, computed[number]);
      running.set(waiting.shift(), computed[number]);
      events.push([own.length ? "shares" : "comes", number]);
    }
    const pieces = free.length < users.length ? users.map((_, block) => block).filter((block) => users[block]).map((block) => {
      const holders = [...running.keys()].filter((number) => tables.get(number).includes(block)).sort((a, b) => a - b);
      return { block, holders, tokens: Math.min(size, running.get(holders[0]) - size * tables.get(holders[0]).indexOf(block)) };
    }) : [];
    const queue = waiting.filter((number) => requests[number][2] <= now);
    found.push({ pieces, events, waiting: queue, tokens: Object.fromEntries(running), tables: Object.fromEntries([...tables].map(([number, table]) => [number, [...table]])) });
    ended = [...running].filter(([number, tokens]) => tokens === cached[number]).map(([number]) => number);
    for (const number of ended) {
      giveBack(number);
      running.delete(number);
    }
  }
  return found;
}

function sentence({ events, waiting }, { block_size: size }) {
  const words = { ends: "has ended and gives its blocks back", "goes back": "must give its blocks back and wait again, because none is left", grows: "takes one more block, because its last one is full",
    comes: "comes in and gets blocks for its prompt", shares: "comes in and shares the full blocks of the common beginning" };
  const told = Object.keys(words).map((what) => [what, events.filter(([one]) => one === what).map(([, number]) => LETTERS[number])]).filter(([, who]) => who.length);
  const said = told.map(([what, who]) => who.map((letter) => `${letter} ${words[what]}.`).join(" ")).join(" ") || `Each request writes one token into its last block of ${size} slots.`;
  return said + (waiting.length ? ` ${waiting.map((number) => LETTERS[number]).join(" and ")} must wait for free blocks.` : "");
}

export function draw(values, step, given) {
  const all = serve(values, given), now = all[step], size = values.block_size, slot = WIDTH / ROW, marks = [];
  const at = (place) => [(place % ROW) * slot, 4 + Math.floor(place / ROW) * PITCH];
  for (let place = 0; place < given.slots; place++) marks.push(box(...at(place), slot - 2, 26, "paper", "", { edge: "line", wide: 1, dash: "3 3" }));
  for (const { block, holders, tokens } of now.pieces) {
    for (let k = 0; k < size; k++) {
      const paint = PAINT[holders[0]], name = holders.map((number) => LETTERS[number]).join("");
      marks.push(k < tokens ? box(...at(block * size + k), slot - 2, 26, holders.length > 1 ? "buffers" : paint, name) : box(...at(block * size + k), slot - 2, 26, "line", "", { edge: paint }));
    }
    const [x, y] = at(block * size);
    for (let k = 0; k < size; k += ROW) marks.push(path([x, y + 29, x + Math.min(size, ROW) * slot - 2, y + 29], holders.length > 1 ? "ink" : PAINT[holders[0]], { wide: 3 }));
  }
  for (let block = 0; block * size < given.slots; block++) marks.push(label(at(block * size)[0] + 1, at(block * size)[1] + 39, String(block)));
  const below = 4 + (given.slots / ROW) * PITCH;
  marks.push(...legend(below + 12, [["line", "reserved, empty"], ["paper", "free"], ...(values.share ? [["buffers", "shared"]] : [])]), label(WIDTH, below + 12, `step ${step}`, { anchor: "end", colour: "ink", bold: true }));
  given.requests.forEach(([prompt, answer, comes], number) => {
    const y = below + 38 + 22 * number, tokens = now.tokens[number], table = now.tables[number];
    const state = tokens ? `${tokens} tokens in ${table.length > 1 ? "blocks" : "block"} ${table.join(", ")}` : now.waiting.includes(number) ? "waits" : step < comes ? `comes at step ${comes}` : "has ended";
    marks.push(box(0, y - 8, 18, 16, PAINT[number], LETTERS[number]), label(26, y, `prompt ${prompt}, answer ${answer}`), label(190, y, state, { colour: tokens ? "ink" : "quiet" }));
  });
  const used = now.pieces.reduce((sum, { tokens }) => sum + tokens, 0), empty = now.pieces.length * size - used;
  return {
    marks, height: below + 38 + 22 * given.requests.length, says: sentence(now, values),
    numbers: [["slots with a token", String(used)], ["reserved and empty", String(empty)], ["free", String(given.slots - used - empty)], ["steps in all", String(all.length)]],
  };
}

const steps = (values, given) => serve(values, given).length;
export const render = ({ model, el }) => show(el, model.get("given"), draw, steps);
export const start = (el, given) => show(el, given, draw, steps);
