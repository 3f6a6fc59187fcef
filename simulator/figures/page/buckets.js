// DDP's buckets: when each is full, when it is sent, and what of the messages is left when backward has ended.
// As ddp_timeline of simulator/predict/overlap.py, on ranks of one speed.

import { WIDTH, box, label, legend, path } from "./marks.js";
import { human, scaleOf } from "./scale.js";
import { show } from "./figure.js";

const ms = (seconds) => `${Number((1e3 * seconds).toPrecision(3))} ms`;

/**
 * {backward: [[start, end], …] of the pieces, last piece first, buckets: [{bytes, start, end, pieces}], exposed}, in seconds.
 * given: forward, backward and bytes of each piece of the model; ranks; latency of a message.
 */
export function step({ bucket_bytes: limit, bandwidth }, { forward, backward, bytes, ranks, latency }) {
  const found = { backward: [], buckets: [] };
  let now = forward.reduce((sum, seconds) => sum + seconds, 0), link = 0, held = 0, pieces = 0;
  for (let piece = backward.length - 1; piece >= 0; piece--) {
    found.backward.push([now, (now += backward[piece])]);
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

export function draw(values, _, given) {
  const { backward, buckets, exposed } = step(values, given), first = backward[0][0], computed = backward.at(-1)[1], end = computed + exposed;
  const x = scaleOf([0, end], [84, WIDTH - 70]), marks = legend(8, [["forward", "forward"], ["backward", "backward"], ["weights", "a bucket is sent"]], 84);
  marks.push(label(78, 37, "compute", { anchor: "end" }), label(78, 75, "messages", { anchor: "end" }), box(x(0), 24, x(first) - x(0) - 1, 26, "forward", "forward"));
  backward.forEach(([from, to]) => marks.push(box(x(from), 24, x(to) - x(from) - 1, 26, "backward")));
  let piece = 0;
  buckets.forEach(({ start, end: sent, pieces }, k) => {
    const full = backward[(piece += pieces) - 1][1];
    marks.push(path([x(full), 50, x(full), 62], "quiet"), box(x(start), 62, x(sent) - x(start) - 1, 26, "weights", String(k)));
  });
  marks.push(box(x(computed), 24, x(end) - x(computed), 26, "idle"), path([x(computed), 18, x(computed), 106], "accent", { dash: "3 3" }));
  marks.push(path([x(computed), 98, x(end), 98], "accent", { wide: 3 }), label(x(computed) - 6, 98, `exposed: ${ms(exposed)}`, { anchor: "end", colour: "accent", bold: true }));
  marks.push(label(x(end) + 6, 37, ms(end), { colour: "ink" }), ...curve(values, given));
  const one = step({ ...values, bucket_bytes: Infinity }, given).exposed;
  return {
    marks, height: 276, numbers: [["exposed", ms(exposed)], ["buckets", String(buckets.length)], ["the step", ms(end)]],
    says: buckets.length === 1 ? `The only bucket is full when backward has ended, so nothing overlaps: ${ms(exposed)} of messages are left.` :
      `Bucket 0 is full ${ms(backward[buckets[0].pieces - 1][1] - first)} after backward has begun, and goes out while backward goes on. ` +
      `When backward has ended, ${ms(exposed)} of messages are left. One single bucket would leave ${ms(one)}.`,
  };
}

/** The exposed time over the size of a bucket. */
function curve(values, given) {
  const sizes = given.sliders[0].choices, shown = sizes.map((size) => step({ ...values, bucket_bytes: size }, given).exposed);
  const x = scaleOf([0, sizes.length - 1], [100, WIDTH - 86]), top = Math.max(...shown), y = scaleOf([0, top], [232, 140]), least = shown.indexOf(Math.min(...shown));
  const now = sizes.indexOf(values.bucket_bytes), marks = [path([84, 232, WIDTH - 70, 232], "line"), path(shown.flatMap((seconds, k) => [x(k), y(seconds)]), "ink", { wide: 2 })];
  marks.push(label(78, 232, "0", { anchor: "end" }), label(78, 140, ms(top), { anchor: "end" }), label(84, 122, "exposed time over the size of a bucket"));
  sizes.forEach((size, k) => marks.push(label(x(k), 248, human(size).replace(" MB", ""), { anchor: "middle", bold: k === least })));
  return [...marks, label(WIDTH / 2, 266, "MB a bucket (bold: the least)", { anchor: "middle" }), box(x(now) - 5, y(shown[now]) - 5, 10, 10, "accent")];
}

export const render = ({ model, el }) => show(el, model.get("given"), draw);
export const start = (el, given) => show(el, given, draw);
