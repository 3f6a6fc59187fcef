// DDP's buckets: when each is full, when it is sent, and what of the messages is left when backward has ended.
// As ddp_timeline of simulator/predict/overlap.py, on ranks of one speed.

import { WIDTH, box, label, legend, path } from "./marks.js";
import { scaleOf } from "./scale.js";
import { show } from "./figure.js";

const ms = (seconds) => `${Number((1e3 * seconds).toPrecision(3))} ms`;

/**
 * {backward: [[start, end], …] of the pieces, last piece first, buckets: [{bytes, start, end, pieces}], exposed}, in seconds.
 * given: forward and backward of a token, and bytes, of each piece of the model; ranks; latency of a message.
 */
export function step({ tokens }, { forward, backward, bytes, ranks, latency, bandwidth, bucket_bytes: limit }) {
  const found = { backward: [], buckets: [] };
  let now = tokens * forward.reduce((sum, seconds) => sum + seconds, 0), link = 0, held = 0, pieces = 0;
  for (let piece = backward.length - 1; piece >= 0; piece--) {
    found.backward.push([now, (now += tokens * backward[piece])]);
    held += bytes[piece];
    pieces += 1;
    if (held < limit && piece) continue;
    const start = Math.max(link, now);
    link = start + 2 * (ranks - 1) * (latency + held / ranks / bandwidth);
    found.buckets.push({ bytes: held, start, end: link, pieces });
    held = pieces = 0;
  }
  return { ...found, exposed: link - now };
}

/** The step with the chosen tokens, as long as the picture is wide. */
export function draw(values, _, given) {
  const { hidden, exposed, end } = sum(values, given);
  return {
    marks: [...legend(8, [["forward", "forward"], ["backward", "backward"], ["weights", "a bucket, with its number"]], 84), ...row(values, given, 30)],
    height: 159, numbers: [["hidden", ms(hidden)], ["exposed", ms(exposed)], ["the step", ms(end)]],
    says: `With ${named(values)}, ${ms(exposed)} of ${ms(hidden + exposed)} of messages are exposed.`,
  };
}

const named = ({ tokens }) => `${tokens.toLocaleString("en")} tokens on each GPU`;

/** What step found, with the end of the step and how long messages and computing run side by side. */
function sum(values, given) {
  const found = step(values, given), computed = found.backward.at(-1)[1];
  const sent = found.buckets.reduce((all, { start, end }) => all + end - start, 0);
  return { ...found, computed, end: computed + found.exposed, hidden: sent - found.exposed };
}

/** Two lanes of one step, below its tokens; numbers stand in buckets that are wide enough, else below every second one. */
function row(values, given, top) {
  const { backward, buckets, computed, end, hidden, exposed } = sum(values, given), first = backward[0][0];
  const x = scaleOf([0, end], [84, WIDTH - 70]), gap = x(computed) - x(first) > 120 ? 1 : 0, y = top + 20, marks = [];
  marks.push(label(84, top + 8, named(values), { bold: true }), label(78, y + 13, "compute", { anchor: "end" }), label(78, y + 51, "messages", { anchor: "end" }));
  marks.push(box(x(0), y, x(first) - x(0) - gap, 26, "forward"));
  backward.forEach(([from, to]) => to > from && marks.push(box(x(from), y, Math.max(x(to) - x(from) - gap, 0.5), 26, "backward")));
  buckets.forEach(({ start, end: sent }, k) => {
    const width = Math.max(x(sent) - x(start) - 1, 0.5), fits = width > 20;
    marks.push(box(x(start), y + 38, width, 26, "weights", fits ? String(k) : ""));
    if (!fits && k % 2) marks.push(label(x(start) + width / 2, y + 77, String(k), { anchor: "middle" }));
  });
  marks.push(box(x(computed), y, x(end) - x(computed), 26, "idle"), path([x(computed), y - 4, x(computed), y + 65], "accent", { dash: "3 3" }));
  marks.push(path([x(computed), y + 84, x(end), y + 84], "accent", { wide: 3 }), label(x(end) + 6, y + 13, ms(end), { colour: "ink" }));
  marks.push(label(x(end), y + 97, `exposed: ${ms(exposed)} of ${ms(hidden + exposed)}`, { anchor: "end", colour: "accent", bold: true }));
  return marks;
}

export const render = ({ model, el }) => show(el, model.get("given"), draw);
export const start = (el, given) => show(el, given, draw);
