// simulator/explorer/calculator.py and formulas.py, and simulator/planner/fitting.py, once more: the answer to a question.

import { caseOf, layersOf, parametersOf, stagesOf } from "./plan.js";
import {
  embeddingBytes, headBytes, inFlight, keptLayerBytes, occupied, placeholderBytes, planMemory, recomputedBytes, sharers, stageBytes,
} from "./plan_memory.js";
import { human, short } from "./scale.js";
import { range } from "./schedules.js";

const MOST_SEQUENCES = 4096; // a microbatch of more is not looked for

/** What the calculator draws; known: the choices, models and devices that Python knows. Throws an Error of one sentence. */
export function calculate(question, known) {
  const { shape, plan, device } = caseOf(question, known), held = planMemory(shape, plan, device);
  const peak = Math.max(...held.map(occupied)), fits = peak <= device.memory;
  const devices = plan.dp * plan.tp * plan.pp * plan.cp;
  return {
    ranks: held.map((parts, rank) => {
      const terms = termsOf(shape, plan, rank, parts, device);
      return Object.fromEntries(Object.entries(parts).map(([name, bytes]) => [name, { bytes, terms: terms[name] }]));
    }),
    names: plan.pp === 1 ? ["each rank"] : range(plan.pp).map((rank) => `stage${plan.chunks > 1 ? "s" : ""} ${stagesOf(plan, rank).join(", ")}`),
    capacity: device.memory,
    about: `${question.model} has ${short(shape.parameters / 1e9)} billion parameters; the plan takes ${devices} device${devices === 1 ? "" : "s"}.`,
    fits,
    verdict: verdictOf(question, known, plan, peak, device),
    changes: fits ? [] : changesThatFit(question, known, plan),
  };
}

function fitsWith(question, known, change) {
  try {
    const { shape, plan, device } = caseOf({ ...question, ...change }, known);
    return Math.max(...planMemory(shape, plan, device).map(occupied)) <= device.memory;
  } catch { return false; } // a change that makes no plan
}

function verdictOf(question, known, plan, peak, device) {
  const needs = `the fullest rank needs ${human(peak)}, and one ${question.gpu} has ${human(device.memory)}.`;
  if (peak > device.memory) return `It does not fit: ${needs}`;
  const fits = (count) => fitsWith(question, known, { microbatches: plan.microbatches, micro_batch: count });
  let low = plan.micro_batch, high = 2 * low;
  while (high <= MOST_SEQUENCES && fits(high)) [low, high] = [high, 2 * high];
  while (high - low > 1) {
    const middle = Math.floor((low + high) / 2);
    [low, high] = fits(middle) ? [middle, high] : [low, middle];
  }
  return `It fits: ${needs} The largest microbatch that fits has ${low} ${low === 1 ? "sequence" : "sequences"}.`;
}

/** Single changes after which it fits, the smallest of each kind. */
function changesThatFit(question, known, plan) {
  const halves = [];
  for (let n = Math.floor(plan.micro_batch / 2); n >= 1; n = Math.floor(n / 2)) halves.push({ micro_batch: n });
  const doubled = (axis) => range(6).map((n) => ({ [axis]: plan[axis] * 2 ** (n + 1) }));
  const tries = [
    plan.copies > 1 ? range(3 - plan.zero).map((n) => ({ zero: plan.zero + 1 + n })) : [],
    ["selective", "full"].filter((way) => way !== plan.recompute).map((recompute) => ({ recompute })),
    halves, doubled("tp"),
    doubled("pp").map((change) => ({ ...change, microbatches: Math.max(plan.microbatches, change.pp) })), // to be filled
    doubled("cp"),
  ];
  const now = { microbatches: plan.microbatches, sequence_parallel: plan.sequence_parallel };
  const first = tries.map((changes) => changes.find((change) => fitsWith(question, known, { ...now, ...change })));
  return first.filter((change) => change && canBeAsked({ ...question, ...change }, known));
}

function canBeAsked(question, known) {
  try {
    return Boolean(caseOf(question, known));
  } catch { return false; }
}

/** For each part the addends that make it up, in words with their values. */
function termsOf(shape, plan, rank, parts, device) {
  const tensors = occupied(parts) - parts.reserved;
  return {
    parameters: stateTerms(shape, plan, rank, plan.itemsize, 3),
    gradients: stateTerms(shape, plan, rank, plan.gradientItemsize, 2),
    optimizer_states: stateTerms(shape, plan, rank, plan.optimizerBytes, 1),
    activations: activationTerms(shape, plan, rank, parts.activations),
    buffers: bufferTerms(shape, plan, rank, parts.buffers),
    reserved: [
      ["context of the device, its libraries and its allocator", device.context],
      [`${Math.round(100 * device.fragmentation)}% of ${human(tensors)}: blocks that the allocator cannot use again`, device.fragmentation * tensors],
    ],
  };
}

function stateTerms(shape, plan, rank, itemsize, from) {
  const { dense, experts } = parametersOf(plan, shape, rank), shard = sharers(plan, from);
  const among = shard > 1 ? ` / ${shard} ranks that share them` : "";
  return [["parameters", dense], ["parameters of experts", experts]].filter(([, count]) => count).map(([what, count]) =>
    [`${short(count / 1e9)} billion ${what} of this rank × ${itemsize} bytes${among}`, count * itemsize / shard]);
}

function activationTerms(shape, plan, rank, total) {
  const one = keptLayerBytes(shape, plan), times = (count) => `${count} microbatch${count === 1 ? "" : "es"}`;
  const layer = `${human(one)} that a layer keeps of ${plan.micro_batch} × ${shape.sequence} tokens`;
  if (!["1f1b", "interleaved-1f1b"].includes(plan.schedule)) {
    const most = human(Math.max(...stageBytes(shape, plan).saved));
    return [[`the most that ${plan.schedule} keeps at once; a forward keeps up to ${most}, with ${layer}`, total]];
  }
  const layers = layersOf(plan, shape, rank), counts = inFlight(plan, rank, layers), mask = embeddingBytes(shape, plan);
  const terms = layers.map((held, k) => [`${held} layers × ${times(counts[k])} in flight × ${layer}`, held * counts[k] * one]);
  if (rank === 0 && mask) terms.push([`the dropout mask of the embedding × ${times(counts[0])}`, mask * counts[0]]);
  if (rank === plan.pp - 1) terms.push(["the final norm and the logits of one microbatch", headBytes(shape, plan)]);
  return terms;
}

function bufferTerms(shape, plan, rank, total) {
  const again = recomputedBytes(shape, plan), placeholder = placeholderBytes(shape, plan, rank);
  const bucket = "the bucket of gradients that is being sent";
  const messages = [bucket, bucket, "the gradients of one layer, before they are scattered",
    "the layers that are gathered just now, and the gradients of the largest"][plan.zero];
  return [
    ["one layer that backward computes again", again],
    ["empty tensors in place of gradients that a kernel adds up in fp32", placeholder],
    [messages, total - again - placeholder],
  ].filter(([, bytes]) => bytes > 1e-6 * Math.max(1, total));
}
