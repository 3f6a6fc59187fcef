// One layer of BERT on a fast and a slow device, split as Galaxy does: heads and columns by what each keeps, tokens by half.
// The pair's time is drawn for the bandwidths between which the reader has dragged, so that the picture tells no break-even
// that is not found; there it gets its number.
// As simulator/planner/layer_split.py and split_timeline.py, for two devices.

import { WIDTH, box, label, legend, path } from "./marks.js";
import { human, scaleOf } from "./scale.js";
import { show } from "./figure.js";

const ORDER = { // block, or message in front of the next block
  forward: ["all-gather", "attention", "reduce-scatter", "connection", "all-gather", "mlp", "reduce-scatter", "connection"],
  backward: ["connection", "all-gather", "mlp", "reduce-scatter", "connection", "all-gather", "attention", "reduce-scatter", "gradients of whole weights"],
};
const NEAR = 0.04; // of a power of ten: as near as this the break-even is found; two positions of the slider lie 0.05 apart
const ms = (seconds) => `${Number((1e3 * seconds).toPrecision(3))} ms`;

/**
 * The spans [device or -1 for both, kind, start, end] of one layer, in seconds. given.table: block -> by heads kept, seconds of
 * forward and of backward on the fast device. given.messages: name -> [bytes, rounds] of each.
 */
export function layer({ slowness, bandwidth, heads }, { table, messages, latency }) {
  const spans = [], free = [0, 0], shares = [heads, table.mlp.length - 1 - heads];
  for (const [way, direction] of ["forward", "backward"].entries()) {
    for (const name of ORDER[direction]) {
      if (table[name]) {
        shares.forEach((own, device) => {
          const seconds = table[name][own][way] * (device ? slowness : 1);
          if (seconds) spans.push([device, direction, free[device], (free[device] += seconds)]);
        });
        continue;
      }
      const [bytes, rounds] = messages[name], start = Math.max(...free);
      free.fill(start + rounds * latency + bytes / bandwidth);
      spans.push([-1, "message", start, free[0]]);
    }
    free.fill(Math.max(...free)); // the layers behind this one run between forward and backward
  }
  return spans;
}

/** Seconds of the pair, of the fast device alone in each direction, and the bandwidth with which both are equal (or infinity). */
export function times(values, given) {
  const end = (bandwidth) => Math.max(...layer({ ...values, bandwidth }, given).map((span) => span[3]));
  const { table: { attention, mlp }, whole } = given, parts = [0, 1].map((way) => attention.at(-1)[way] + mlp.at(-1)[way] + 2 * whole[way]);
  const alone = parts[0] + parts[1], without = end(Infinity), bytes = end(1) - without; // the time falls with 1 / bandwidth
  const even = without < alone ? bytes / (alone - without) : Infinity;
  return { pair: end(values.bandwidth), alone, parts, without, even, met: Math.abs(Math.log10(values.bandwidth / even)) < NEAR };
}

export function draw(values, _, given) {
  const spans = layer(values, given), found = times(values, given), { pair, alone, even, met } = found, all = given.table.mlp.length - 1;
  const x = scaleOf([0, Math.max(pair, alone)], [104, WIDTH - 70]), marks = legend(8, [["forward", "forward"], ["backward", "backward"], ["weights", "messages"], ["idle", "waiting"]], 104);
  const put = (y, kind, from, to) => marks.push(box(x(from), y, x(to) - x(from), 26, { message: "weights" }[kind] ?? kind));
  ["alone", `fast, ${values.heads} heads`, `slow, ${all - values.heads} heads`].forEach((words, row) => {
    const y = 24 + 34 * row, end = row ? pair : alone;
    marks.push(label(98, y + 13, words, { anchor: "end" }), box(x(0), y, x(end) - x(0), 26, "idle"));
    if (row) spans.filter(([device]) => device === row - 1 || device < 0).forEach(([, kind, from, to]) => put(y, kind, from, to));
    else [["forward", 0, found.parts[0]], ["backward", found.parts[0], alone]].forEach((part) => put(y, ...part));
    marks.push(label(x(end) + 6, y + 13, ms(end), { colour: "ink" }));
  });
  marks.push(...curve(values, given, found));
  const waits = pair - spans.reduce((sum, [device, , from, to]) => sum + (device < 1 ? to - from : 0), 0);
  const ends = met ? `Both ways are equally fast at ${human(even)}/s.` : even < Infinity ? `Here the pair is ${pair < alone ? "faster" : "slower"}.` :
    "No link makes this split pay: the slow device computes too long.";
  return {
    marks, height: 304, numbers: [["alone", ms(alone)], ["the pair", ms(pair)], ["break-even", met ? `${human(even)}/s` : even < Infinity ? "not found yet" : "never"]],
    says: `With ${values.heads} of ${all} heads the fast device waits ${ms(waits)} in each layer. The pair needs ${ms(pair)}, ` +
      `and the fast device alone ${ms(alone)}. ${ends}`,
  };
}

/** How long the pair takes here and between the bandwidths seen so far (given.seen), beside the device alone; the break-even. */
function curve(values, given, { alone, without, even, pair, met }) {
  const [least, most] = given.range.map(Math.log10), top = 3 * alone, wide = [104, WIDTH - 70];
  const x = (bandwidth) => scaleOf([least, most], wide)(Math.log10(bandwidth)), y = (seconds) => scaleOf([0, top], [262, 152])(Math.min(seconds, top));
  const here = values.bandwidth, [low, high] = (given.seen = [Math.min(given.seen?.[0] ?? here, here), Math.max(given.seen?.[1] ?? here, here)]);
  const exponents = [...Array(61).keys()].map((k) => Math.log10(low) + (Math.log10(high / low) * k) / 60);
  const at = (bandwidth) => without + (pair - without) * (here / bandwidth);
  const points = exponents.map((e) => 10 ** e).filter((b) => at(b) <= top).flatMap((b) => [x(b), y(at(b))]);
  const marks = [path([wide[0], 262, wide[1], 262], "line"), path([wide[0], y(alone), wide[1], y(alone)], "quiet", { dash: "5 4" })];
  marks.push(label(98, y(alone), "alone", { anchor: "end" }), label(98, 262, "0", { anchor: "end" }), label(98, 152, "3 × alone", { anchor: "end" }));
  for (let e = Math.ceil(least); e <= most; e++) marks.push(label(x(10 ** e), 276, `${human(10 ** e)}/s`, { anchor: "middle" }));
  marks.push(label(wide[0] + (wide[1] - wide[0]) / 2, 294, "bandwidth of the link", { anchor: "middle" }));
  if (points.length && low < high) marks.push(path(points, "ink", { wide: 2 }));
  marks.push(label(x(here) - 9, y(pair) + 14, "the pair", { anchor: "end", colour: "ink" })); // below the falling curve
  if (met) { // sooner, its number would give the answer away
    marks.push(path([x(even), 262, x(even), 146], "accent", { dash: "3 3" }), label(x(even) + 6, 152, `break-even: ${human(even)}/s`, { colour: "accent", bold: true }));
  }
  return [...marks, box(x(values.bandwidth) - 5, y(pair) - 5, 10, 10, "accent")];
}

export const render = ({ model, el }) => show(el, model.get("given"), draw);
export const start = (el, given) => show(el, given, draw);
