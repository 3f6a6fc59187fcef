// simulator/pipeline/schedules.py and v_schedules.py once more, for the page that runs without Python.
// tests/simulator/explorer/test_same_as_python.py holds both to the same lists, action by action.
//
// An action is [kind, stage, microbatch]; a schedule holds one list of them for each rank.

// The table of schedules, of simulator/inputs/placement.py.
import { FORMS } from "./forms.js";

export const F = 0, B = 1, W = 2, BW = 3;
export const LETTERS = ["F", "B", "W", "B"];
export const OWN = "your own"; // the schedule that a reader has written, in Python

export const range = (n) => Array.from({ length: n }, (_, i) => i);

/** The schedule of that name; chunks: null for as many as the schedule is made for. */
export function makeSchedule(name, p, m, chunks) {
  const { chunks: usual, placement } = FORMS[name], v = chunks ?? usual;
  const schedule = { name, ranks: p, microbatches: m, chunks: v, placement };
  if (placement === "v") return { ...schedule, ...folded(name, p, m) };
  const rank = {
    "one-at-a-time": (r) => range(m).flatMap((i) => [[F, r, i], [BW, r, i]]),
    "gpipe": (r) => [F, BW].flatMap((kind) => range(m).map((i) => [kind, r, i])),
    "1f1b": (r) => alternate(oneStage(F, r, m), oneStage(BW, r, m), p - 1 - r),
    "interleaved-1f1b": (r) => interleaved(r, p, m, v),
    "zb-h1": (r) => splitBackward(r, m, p - r, r),
    "zb-h2": (r) => splitBackward(r, m, 2 * (p - r) - 1, 2 * r),
  }[name];
  return { ...schedule, actions: range(p).map(rank), overlapped: range(p).map(() => new Set()) };
}

/** The rank that holds a stage: round and round, or down the ranks and back up. */
export function rankOf(schedule, stage) {
  const lap = Math.floor(stage / schedule.ranks), place = stage % schedule.ranks;
  return schedule.placement === "v" && lap % 2 ? schedule.ranks - 1 - place : place;
}

const oneStage = (kind, stage, m) => range(m).map((i) => [kind, stage, i]);

/** Some forwards, then a forward and a backward in turn, then the backwards that are left. */
function alternate(forwards, backwards, warmUp) {
  const first = Math.min(warmUp, forwards.length), paired = forwards.length - first;
  const steady = range(Math.min(paired, backwards.length)).flatMap((k) => [forwards[first + k], backwards[k]]);
  return [...forwards.slice(0, first), ...steady, ...backwards.slice(paired)];
}

/** m microbatches in rounds of p; where p does not divide m, in rounds that are as equal as possible. */
export function interleavedRounds(p, m) {
  const count = Math.max(1, Math.floor(m / p));
  const edges = range(count + 1).map((k) => Math.ceil((m * k) / count));
  return range(count).map((k) => range(edges[k + 1] - edges[k]).map((i) => edges[k] + i));
}

function interleaved(r, p, m, v) {
  const rounds = interleavedRounds(p, m);
  const stages = range(v).map((lap) => lap * p + r), back = [...stages].reverse();
  const all = (kind, order) => rounds.flatMap((round) => order.flatMap((s) => round.map((i) => [kind, s, i])));
  return alternate(all(F, stages), all(BW, back), (v - 1) * rounds[0].length + 2 * (p - 1 - r));
}

/** Some forwards; then B, W and F in turn, where W stays some microbatches behind B. */
function splitBackward(r, m, warmUp, postponed) {
  const actions = range(Math.min(warmUp, m)).map((i) => [F, r, i]);
  let next = actions.length;
  for (let i = 0; i < m; i++) {
    actions.push([B, r, i]);
    if (i >= postponed) actions.push([W, r, i - postponed]);
    if (next < m) actions.push([F, r, next++]);
  }
  for (let i = Math.max(0, m - postponed); i < m; i++) actions.push([W, r, i]);
  return actions;
}

// ---- the V: rank r holds stage r on the way down and 2p - 1 - r on the way up ---------------------------------

/** The list of one rank while it is being written. A step is a kind and a chunk: ["F", 0]. */
class FoldedRank {
  constructor(r, p) {
    this.stages = [r, 2 * p - 1 - r];
    this.next = { F: [0, 0], B: [0, 0], W: [0, 0] };
    this.actions = [];
    this.overlapped = new Set();
  }

  do(kind, chunk, times = 1) {
    for (let k = 0; k < times; k++) {
      const letters = kind === "BW" ? ["B", "W"] : [kind];
      this.actions.push([{ F, B, W, BW }[kind], this.stages[chunk], this.next[letters[0]][chunk]]);
      for (const letter of letters) this.next[letter][chunk]++;
    }
    return this;
  }

  together(forwardChunk, backwardChunk) {
    this.overlapped.add(this.actions.length);
    this.do("F", forwardChunk).do("BW", backwardChunk);
  }

  pending(chunk) {
    return this.next.B[chunk] - this.next.W[chunk];
  }
}

function zbV(rank, r, p, m) {
  const total = Math.max(2 * p - 1, m);
  rank.do("F", 0, 2 * (p - r) - 1);
  for (let k = 0; k < r; k++) rank.do("F", 1).do("F", 0);
  for (let k = 0; k < p - r; k++) rank.do("F", 1).do("B", 1).do("W", 1);
  while (rank.next.F[1] < total) {
    if (rank.next.F[0] < total) rank.do("F", 0);
    rank.do("B", 0).do("W", 0).do("F", 1).do("B", 1).do("W", 1);
  }
  for (let k = 0; k < r; k++) rank.do("B", 0).do("B", 1);
  for (let k = 0; k < p - r; k++) rank.do("B", 0).do("W", 0);
  const owed = [rank.pending(1), rank.pending(0)];
  rank.do("W", 1, owed[0]).do("W", 0, owed[1]);
}

function dualpipeV(rank, r, p, m) {
  const total = Math.max(2 * p, m);
  rank.do("F", 0, 2 * (p - r - 1));
  for (let k = 0; k < r + 1; k++) rank.do("F", 0).do("F", 1);
  for (let k = 0; k < p - r - 1; k++) rank.do("B", 1).do("W", 1).do("F", 1);
  for (let i = 0; i < total - 2 * p + r + 1; i++) {
    if (i === 0 && r === p - 1) rank.do("F", 0).do("BW", 1);
    else rank.together(0, 1);
    rank.together(1, 0);
  }
  for (let k = 0; k < p - r - 1; k++) {
    rank.do("BW", 1);
    rank.together(1, 0);
  }
  for (let i = 0; i < 2 * (r + 1); i++) rank.do(i <= r ? "BW" : "B", 1 - (i % 2));
  const owed = [];
  for (let i = r + 1; i < 2 * (r + 1); i++) owed.push(1 - (i % 2));
  for (let k = 0; k < p - r - 1; k++) {
    rank.do("W", owed.shift()).do("B", 0);
    owed.push(0);
  }
  for (const chunk of owed) rank.do("W", chunk);
}

/** Both are written for as many microbatches as fill the V; those from m on are left out. */
function folded(name, p, m) {
  const actions = [], overlapped = [];
  for (let r = 0; r < p; r++) {
    const rank = new FoldedRank(r, p);
    (name === "zb-v" ? zbV : dualpipeV)(rank, r, p, m);
    const kept = [], pairs = new Set();
    rank.actions.forEach((action, at) => {
      if (action[2] >= m) return;
      if (rank.overlapped.has(at)) pairs.add(kept.length);
      kept.push(action);
    });
    actions.push(kept);
    overlapped.push(pairs);
  }
  return { actions, overlapped };
}
