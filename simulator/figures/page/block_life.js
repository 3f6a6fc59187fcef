// A step of FSDP on one rank, moment by moment: which block is whole, what the rank holds, what it has sent.
// The bytes at each computation are those of simulator/predict/unsharded.py.

import { WIDTH, box, label, legend, path } from "./marks.js";
import { human, scaleOf } from "./scale.js";
import { show } from "./figure.js";

const BLOCKS = 4, WHOLE = 160; // px of a whole block
const AT = { shard: 66, whole: 150, gradient: 332, ownGradient: 514 }; // px of the columns

/**
 * All moments of a step: {what, block, coming, whole, gradients, gathers, scatters, bytes}. coming: the block that is being
 * gathered, or null; gradients: of each block none, whole or shard; bytes of shards, whole blocks and gradients.
 */
export function moments({ prefetch, reshard_after_forward: reshard, ranks }, { bytes: block }) {
  const found = [], whole = new Set(), gradients = Array(BLOCKS).fill("none");
  let gathers = 0, scatters = 0;
  const note = (what, number, coming = null) => {
    const held = gradients.reduce((sum, state) => sum + { none: 0, whole: block, shard: block / ranks }[state], 0);
    const bytes = { parameters: (BLOCKS * block) / ranks, buffers: whole.size * block, gradients: held };
    found.push({ what, block: number, coming, whole: [...whole], gradients: [...gradients], gathers, scatters, bytes });
  };
  const gather = (number) => {
    gathers += 1;
    whole.add(number);
  };
  note("start", null);
  for (const what of ["forward", "backward"]) {
    const order = [...Array(BLOCKS).keys()];
    if (what === "backward") order.reverse();
    order.forEach((number, place) => {
      if (!whole.has(number)) {
        gather(number);
        note("gather", number, number);
      }
      const next = order[place + 1], ahead = prefetch && next !== undefined && !whole.has(next) ? next : null;
      if (ahead !== null) gather(ahead);
      if (what === "backward") gradients[number] = "whole";
      note(what, number, ahead);
      if (what === "forward" && !reshard) return;
      whole.delete(number);
      if (what === "backward") {
        gradients[number] = "shard";
        scatters += 1;
      }
      note(what === "forward" ? "free" : "reduce-scatter", number);
    });
  }
  return found;
}

const sum = ({ parameters, buffers, gradients }) => parameters + buffers + gradients;

function sentence({ what, block, coming, gradients }, again, reshard) {
  const also = coming === null ? "" : ` Meanwhile block ${coming} is gathered, so that message hides behind the computation.`;
  return {
    start: "Before the step the rank holds its shard of each block, and no block is whole.",
    gather: again ? `Backward needs block ${block} again, so all ranks gather it a second time.` : `All-gather: the ranks send each other their shards of block ${block}, until it is whole on each of them.`,
    forward: `Forward of block ${block} needs the whole block.${also}${reshard ? "" : " Afterwards it stays whole."}`,
    free: `Forward of block ${block} is done, so the rank frees the whole block. Its shard stays.`,
    backward: `Backward of block ${block} makes the whole gradient of this block.${also}`,
    "reduce-scatter": `Reduce-scatter: the ranks average the gradient of block ${block}, and each keeps the part for its shard. ` +
      `The whole block and the whole gradient are freed.${gradients.includes("none") ? "" : " The step is over: update the shards."}`,
  }[what];
}

export function draw(values, step, given) {
  const all = moments(values, given), now = all[step], { ranks } = values, backward = all.findIndex(({ what }) => what === "backward");
  const marks = Object.entries({ shard: "shard", whole: "whole block", gradient: "whole gradient", ownGradient: "gradient's shard" }).map(([name, words]) => label(AT[name], 8, words));
  for (let number = 0; number < BLOCKS; number++) {
    const y = 22 + 28 * number, here = now.whole.includes(number), gradient = now.gradients[number], busy = now.block === number;
    const look = now.coming === number ? ["reserved", "being gathered"] : busy && ["forward", "backward"].includes(now.what) ? [now.what, now.what] : ["buffers", "whole"];
    marks.push(label(0, y + 11, `block ${number}`, { colour: busy ? "ink" : "quiet", bold: busy }), box(AT.shard, y, WHOLE / ranks, 22, "parameters"));
    marks.push(here ? box(AT.whole, y, WHOLE, 22, ...look) : box(AT.whole, y, WHOLE, 22, "paper", "", { edge: "line", wide: 1, dash: "3 3" }));
    if (gradient === "whole") marks.push(box(AT.gradient, y, WHOLE, 22, "gradients", "gradient"));
    if (gradient === "shard") marks.push(box(AT.ownGradient, y, WHOLE / ranks, 22, "gradients"));
  }
  const top = 2 * BLOCKS * given.bytes, y = scaleOf([0, top], [276, 160]), x = scaleOf([0, all.length], [AT.shard, WIDTH - 78]), wide = x(1) - x(0) - 3;
  marks.push(...legend(146, [["parameters", "shards"], ["buffers", "whole blocks"], ["gradients", "gradients"]], AT.shard), path([x(0), y(0), x(all.length), y(0)], "line"));
  all.slice(0, step + 1).forEach(({ bytes }, k) => {
    let below = 0;
    for (const [name, size] of Object.entries(bytes)) marks.push(box(x(k), y(below += size), wide, y(0) - y(size), name));
    if (k === step) marks.push(label(x(k + 1) + 3, y(below) + 4, human(below), { colour: "ink", bold: true }));
  });
  marks.push(path([x(0), y(top), x(all.length), y(top)], "quiet", { dash: "5 4" }), label(x(all.length) + 4, y(top), "with DDP"));
  marks.push(label(60, y(0), "0", { anchor: "end" }), label(60, y(top), human(top), { anchor: "end" }));
  marks.push(label((x(1) + x(backward)) / 2, 290, "forward", { anchor: "middle" }), label((x(backward) + x(all.length)) / 2, 290, "backward", { anchor: "middle" }));
  const peak = Math.max(...all.slice(0, step + 1).map(({ bytes }) => sum(bytes))), sent = (now.gathers + now.scatters) * given.bytes * (1 - 1 / ranks);
  return {
    marks, height: 302, says: sentence(now, step >= backward - 1 && now.what === "gather", values.reshard_after_forward),
    numbers: [["held now", human(sum(now.bytes))], ["at most so far", human(peak)], ["sent so far", human(sent)], ["gathers", String(now.gathers)]],
  };
}

const steps = (values, given) => moments(values, given).length;
export const render = ({ model, el }) => show(el, model.get("given"), draw, steps);
export const start = (el, given) => show(el, given, draw, steps);
