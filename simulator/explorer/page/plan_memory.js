// simulator/predict/memory.py and in_flight.py once more: what every pipeline rank holds, in bytes. The letters are theirs.

import { B, BW, F, W, interleavedRounds, makeSchedule, range } from "./schedules.js";
import { layersByStage, layersOf, parametersOf } from "./plan.js";

const DDP_BUCKET = 25 * 2 ** 20;
const CLOSED = ["1f1b", "interleaved-1f1b"]; // for these a formula says what is in flight
const sum = (values) => values.reduce((total, value) => total + value, 0);

/** Ranks that share one copy of a part, which is sharded from a stage of ZeRO on. */
export const sharers = (plan, from) => (plan.zero >= from ? plan.copies : 1);

/** For every rank the bytes of each part. */
export function planMemory(shape, plan, device) {
  const activations = allActivationBytes(shape, plan);
  return range(plan.pp).map((rank) => {
    const { dense, experts } = parametersOf(plan, shape, rank), all = dense + experts;
    const held = {
      parameters: all * plan.itemsize / sharers(plan, 3),
      gradients: all * plan.gradientItemsize / sharers(plan, 2),
      optimizer_states: all * plan.optimizerBytes / sharers(plan, 1),
      activations: activations[rank],
      buffers: bufferBytes(shape, plan, rank),
    };
    return { ...held, reserved: device.context + device.fragmentation * sum(Object.values(held)) };
  });
}

export const occupied = (held) => sum(Object.values(held));

const tokensOf = (shape, plan) => plan.micro_batch * shape.sequence / plan.cp;
const kvOf = (shape, plan) => Math.max(1, shape.kv_heads / plan.tp) * shape.headSize;
const splitOf = (plan) => (plan.sequence_parallel ? plan.tp : 1);

function attentionCoreBytes(shape, plan) {
  const rows = plan.micro_batch * shape.heads / plan.tp * shape.sequence / plan.cp;
  if (plan.attention === "flash") return 4 * rows;
  return rows * shape.sequence * (shape.dropout ? 2 * plan.itemsize + 1 : plan.itemsize);
}

function layerBytes(shape, plan) {
  const e = plan.itemsize, t = plan.tp, h = shape.hidden, split = splitOf(plan), own = shape.width / t;
  const outside = (4 * e + (shape.dropout ? 2 : 0)) * h / split;
  let inner = e * (shape.activation === "swiglu" ? 3 : 2) * shape.ffn / t;
  if (shape.experts > 1) {
    const k = shape.experts_per_token;
    inner = k * (inner + e * h / split) + 4 * shape.experts / split;
  }
  return tokensOf(shape, plan) * (outside + e * (2 * own + 2 * kvOf(shape, plan)) + inner) + attentionCoreBytes(shape, plan);
}

export function recomputedBytes(shape, plan) {
  if (plan.recompute === "full") return layerBytes(shape, plan);
  return plan.recompute === "selective" && plan.attention !== "flash" ? attentionCoreBytes(shape, plan) : 0;
}

const layerInput = (shape, plan) => plan.itemsize * tokensOf(shape, plan) * shape.hidden / splitOf(plan);

export function keptLayerBytes(shape, plan) {
  return plan.recompute === "full" ? layerInput(shape, plan) : layerBytes(shape, plan) - recomputedBytes(shape, plan);
}

/** What the weights' backward of one layer needs, if it comes later. */
function weightBytes(shape, plan) {
  const { tp, itemsize } = plan, own = shape.width / tp, ends = 2 * shape.hidden / splitOf(plan);
  const inner = shape.experts_per_token * shape.ffn / tp, gates = shape.activation === "swiglu" ? 2 : 1;
  const all = ends + own + inner + own + 2 * kvOf(shape, plan) + ends + gates * inner;
  return Math.min(itemsize * tokensOf(shape, plan) * all, keptLayerBytes(shape, plan));
}

export const embeddingBytes = (shape, plan) => (shape.dropout ? layerInput(shape, plan) / plan.itemsize : 0);

export const headBytes = (shape, plan) => 2 * layerInput(shape, plan) + tokensOf(shape, plan) * 4 * shape.vocab / plan.tp;

function allActivationBytes(shape, plan) {
  if (!CLOSED.includes(plan.schedule)) {
    const m = plan.schedule === "gpipe" ? plan.microbatches : Math.min(plan.microbatches, 4 * plan.pp);
    return peakSaved(makeSchedule(plan.schedule, plan.pp, m, plan.chunks), stageBytes(shape, plan));
  }
  const one = keptLayerBytes(shape, plan);
  const peaks = range(plan.pp).map((rank) => {
    const layers = layersOf(plan, shape, rank), counts = inFlight(plan, rank, layers);
    const ends = rank === 0 ? embeddingBytes(shape, plan) * counts[0] : 0;
    return one * sum(counts.map((count, chunk) => count * layers[chunk])) + ends;
  });
  peaks[plan.pp - 1] += headBytes(shape, plan);
  return peaks;
}

/** Of one microbatch, for every stage: what F saves, and what of it is kept from B until W. */
export function stageBytes(shape, plan) {
  const layers = layersByStage(plan, shape), last = plan.stages - 1;
  const saved = layers.map((n) => n * keptLayerBytes(shape, plan)), kept = layers.map((n) => n * weightBytes(shape, plan));
  saved[0] += embeddingBytes(shape, plan);
  saved[last] += headBytes(shape, plan);
  kept[last] += headBytes(shape, plan);
  return { saved, kept };
}

function peakSaved({ actions }, { saved, kept }) {
  const change = { [F]: (s) => saved[s], [B]: (s) => kept[s] - saved[s], [W]: (s) => -kept[s], [BW]: (s) => -saved[s] };
  return actions.map((done) => {
    let alive = 0, peak = 0;
    for (const [kind, stage] of done) peak = Math.max(peak, alive += change[kind](stage));
    return peak;
  });
}

/** Microbatches of each chunk of a rank that are alive when the most is. weights: the layers of each chunk. */
export function inFlight({ pp: p, microbatches: m, chunks: v, schedule }, rank, weights) {
  if (schedule === "1f1b") return [Math.min(m, p - rank)];
  let rounds = interleavedRounds(p, m);
  const first = rounds[0].length, begun = Math.min(m * v, Math.min(m * v, (v - 1) * first + 2 * (p - 1 - rank)) + 1);
  if (m % first === 0) rounds = rounds.slice(0, 4);
  const forwards = rounds.flatMap((round) => range(v).flatMap((chunk) => round.map(() => chunk)));
  const alive = range(v).map((chunk) => forwards.slice(0, begun).filter((one) => one === chunk).length);
  let most = [...alive], total = sum(alive.map((count, chunk) => count * weights[chunk])), highest = total;
  forwards.slice(begun).forEach((arrives, at) => {
    const done = v - 1 - forwards[at];
    alive[done] -= 1;
    alive[arrives] += 1;
    total += weights[arrives] - weights[done];
    if (total > highest) [most, highest] = [[...alive], total];
  });
  return most;
}

function bufferBytes(shape, plan, rank) {
  const held = recomputedBytes(shape, plan) + placeholderBytes(shape, plan, rank);
  if (plan.copies === 1) return held;
  const { dense, experts, root, layers } = parametersOf(plan, shape, rank), unit = shape.layer(plan.tp);
  if (plan.zero < 2) return held + Math.min(DDP_BUCKET, plan.gradientItemsize * (dense + experts));
  if (plan.zero === 2) return held + plan.gradientItemsize * unit;
  return held + plan.itemsize * (root + unit * Math.min(2, layers)) + plan.gradientItemsize * Math.max(root, unit);
}

export function placeholderBytes(shape, plan, rank) {
  if (plan.gradients === "same" || plan.itemsize === 4 || plan.zero >= 2) return 0;
  const output = rank === plan.lastRank ? Math.ceil(shape.vocab / plan.tp) * shape.hidden : 0;
  return plan.itemsize * (shape.layer(plan.tp, 1) + output);
}
