// simulator/inputs/plan.py and shape.py once more, as far as the memory calculator asks: a model and a plan, checked.
// tests/simulator/explorer/test_same_calculator.py holds plan.js, plan_memory.js and calculate.js to Python.

import { FORMS } from "./forms.js";
import { range } from "./schedules.js";
import { atLeastOne, oneOf } from "./checks.js";

const PRECISIONS = { mixed: 2, bf16: 2, fp32: 4, fp8: 2 }; // bytes of a parameter as the layers compute with it
const OPTIMIZERS = { adam: 2, momentum: 1, sgd: 0 }; // states as large as the parameters

/** {shape, plan, device} of a question; known: {choices, models, gpus}. Throws an Error of one sentence. */
export function caseOf(question, { choices, models, gpus }) {
  for (const [name, accepted] of Object.entries(choices)) oneOf(name, question[name], accepted);
  const device = gpus[question.gpu], plan = planOf(question, device);
  if (question.sequence !== null) atLeastOne("sequence", question.sequence);
  const shape = shapeOf(models[question.model], question.sequence);
  check(plan, shape);
  return { shape, plan, device };
}

function planOf(question, device) {
  for (const name of ["dp", "tp", "pp", "cp"]) atLeastOne(name, question[name]);
  const chunks = FORMS[question.schedule]?.chunks;
  const microbatches = question.microbatches ?? question.pp * (chunks > 1 ? 2 : 1);
  atLeastOne("micro_batch", question.micro_batch);
  atLeastOne("microbatches", microbatches);
  if (question.precision === "fp8" && !device.fp8_flops) {
    throw new Error(`${device.name} has no 8-bit arithmetic: precision must not be fp8 there`);
  }
  const { precision, pp } = question, itemsize = PRECISIONS[precision], copies = question.dp * question.cp;
  return {
    ...question, chunks, microbatches, itemsize, copies,
    attention: question.attention ?? device.attention,
    sequence_parallel: question.sequence_parallel && question.tp > 1,
    gradientItemsize: question.gradients === "fp32" ? 4 : itemsize,
    optimizerBytes: OPTIMIZERS[question.optimizer] * (precision === "bf16" ? 2 : 4) + (["mixed", "fp8"].includes(precision) ? 4 : 0),
    stages: pp * chunks,
    lastRank: chunks === 2 && question.schedule !== "interleaved-1f1b" ? 0 : pp - 1, // in a V the first rank has both ends
  };
}

function check({ stages, tp, cp, sequence_parallel }, { layers, heads, kv_heads, ffn, sequence, experts }) {
  const fail = (sentence) => { throw new Error(sentence); };
  if (stages > layers) fail(`${stages} pipeline stages need as many layers; the model has ${layers}`);
  if (heads % tp) fail(`tp must divide the ${heads} heads, not ${tp}`);
  if (kv_heads % tp && tp % kv_heads) fail(`tp must divide the ${kv_heads} kv heads or be a multiple, not ${tp}`);
  if (experts > 1 && tp > 1 && !sequence_parallel) {
    fail(`sequence parallel must be True with tp ${tp} for a model with experts, not False`);
  }
  if (experts === 1 && ffn % tp) fail(`tp must divide the MLP's width of ${ffn}, not ${tp}`);
  const pieces = cp * (sequence_parallel ? tp : 1);
  if (sequence % pieces) fail(`the sequence of ${sequence} cannot be split into ${pieces} equal pieces`);
}

/** A model's numbers, and what one tensor-parallel rank holds of its parts. */
function shapeOf(given, sequence) {
  const shape = { ...given, sequence: sequence ?? given.sequence }, { hidden, biases, experts } = shape;
  const headSize = shape.head_dim ?? Math.floor(hidden / shape.heads), norm = (biases ? 2 : 1) * hidden;
  const attention = (tp) => {
    const heads = Math.floor(shape.heads / tp), kvHeads = Math.max(1, Math.floor(shape.kv_heads / tp));
    const columns = (heads + 2 * kvHeads) * headSize;
    return hidden * columns + heads * headSize * hidden + (biases ? columns + hidden : 0);
  };
  const expert = (tp) => {
    const width = Math.floor(shape.ffn / tp), matrices = shape.activation === "swiglu" ? 3 : 2;
    return matrices * hidden * width + (biases ? (matrices - 1) * width + hidden : 0);
  };
  const mlp = (tp, each) => (experts > 1 ? expert(1) * each + hidden * experts : expert(tp)); // experts are not cut
  const layer = (tp, each = experts) => attention(tp) + mlp(tp, each) + 2 * norm;
  const vocabulary = (tp) => Math.ceil(shape.vocab / tp) * hidden;
  const embedding = (tp) => vocabulary(tp) + (shape.learned_positions ? shape.sequence * hidden : 0);
  const head = (tp, ownCopy) => norm + (shape.tied && !ownCopy ? 0 : vocabulary(tp)) + shape.other_parameters;
  return {
    ...shape, headSize, width: shape.heads * headSize, expert, layer, embedding, head,
    parameters: shape.layers * layer(1) + embedding(1) + head(1, false),
  };
}

/** The stages that a rank holds, in the model's order. */
export function stagesOf({ pp, chunks, lastRank }, rank) {
  const back = chunks > 1 && lastRank === 0 && pp > 1 ? pp - 1 - rank : rank;
  return range(chunks).map((lap) => lap * pp + (lap % 2 ? back : rank));
}

/** Layers of every stage: as even as possible, the longer ones first. */
export function layersByStage(plan, shape) {
  const short = Math.floor(shape.layers / plan.stages), longer = shape.layers % plan.stages;
  return range(plan.stages).map((stage) => short + (stage < longer ? 1 : 0));
}

/** Layers of every chunk of a rank. */
export function layersOf(plan, shape, rank) {
  const layers = layersByStage(plan, shape);
  return stagesOf(plan, rank).map((stage) => layers[stage]);
}

/** Parameters of a rank before any sharding over data: those that every rank has, those of experts, those of no layer. */
export function parametersOf(plan, shape, rank) {
  const layers = layersOf(plan, shape, rank).reduce((sum, count) => sum + count, 0), { tp, lastRank } = plan;
  const root = (rank === 0 ? shape.embedding(tp) : 0) + (rank === lastRank ? shape.head(tp, lastRank !== 0) : 0);
  const all = layers * shape.layer(tp) + root, experts = shape.experts > 1 ? layers * shape.experts * shape.expert(1) : 0;
  return { dense: all - experts, experts, root, layers };
}
