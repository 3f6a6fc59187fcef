// Why every action starts when it does: the critical path and the cause of every gap, as in
// simulator/pipeline/execution.py. Here a place is the number of an action in a run's flat arrays.

import { B, F, LETTERS, W } from "./schedules.js";

const indexes = new WeakMap();

/** The rank that an action belongs to, where each output is made, and by which message it is sent; made once a run. */
function indexOf(run) {
  if (indexes.has(run)) return indexes.get(run);
  const m = run.microbatches, n = run.ranks * run.chunks * m, count = run.kind.length;
  const rank = new Int32Array(count), made = new Int32Array(2 * n).fill(-1);
  const message = new Int32Array(count).fill(-1), previous = new Int32Array(run.sends.length / 4).fill(-1);
  for (let r = 0; r < run.ranks; r++) rank.fill(r, run.first[r], run.first[r + 1]);
  for (let at = 0; at < count; at++) {
    if (run.kind[at] !== W) made[(run.kind[at] === F ? 0 : n) + run.stage[at] * m + run.microbatch[at]] = at;
  }
  const last = new Int32Array(run.ranks).fill(-1);
  for (let k = 0; k < previous.length; k++) {
    const sender = run.sends[4 * k];
    message[run.first[sender] + run.sends[4 * k + 1]] = k;
    previous[k] = last[sender];
    last[sender] = k;
  }
  const index = { rank, made, message, previous, n };
  indexes.set(run, index);
  return index;
}

export const rankAt = (run, at) => indexOf(run).rank[at];

/** "F3", or with several chunks a rank "F3 stage 5". */
export function nameOf(run, at) {
  const name = LETTERS[run.kind[at]] + run.microbatch[at];
  return run.chunks === 1 ? name : `${name} stage ${run.stage[at]}`;
}

/** The places where an action's inputs are made: its own earlier half first, then what another stage sends. */
function inputsOf(run, at) {
  const { made, n } = indexOf(run), m = run.microbatches, stage = run.stage[at], k = stage * m + run.microbatch[at];
  if (run.kind[at] === F) return stage ? [made[k - m]] : [];
  if (run.kind[at] === W) return [made[n + k]];
  return stage < run.ranks * run.chunks - 1 ? [made[k], made[n + k + m]] : [made[k]];
}

/** A forward that runs together with its backward is both; the second of the two stands for the first. */
const leader = (run, at) => (at > 0 && run.paired[at - 1] ? at - 1 : at);

/**
 * What ended last of all that an action or a message had to wait for; on a tie, what is on its rank. A node is
 * {at, message, end}: an action, or the message that carries its output. Null: it waited for nothing.
 */
export function before(run, node) {
  const { rank, message, previous } = indexOf(run), sent = (k) => run.sends[4 * k + 3];
  const held = [];
  if (node.message) {
    held.push({ at: node.at, message: false, end: run.end[node.at] });
    const earlier = previous[message[node.at]];
    if (earlier >= 0) {
      const at = run.first[run.sends[4 * earlier]] + run.sends[4 * earlier + 1];
      held.push({ at, message: true, end: sent(earlier) });
    }
  } else {
    const at = leader(run, node.at), here = rank[at];
    if (at > run.first[here]) held.push({ at: at - 1, message: false, end: run.end[at - 1] });
    for (const place of run.paired[at] ? [at, at + 1] : [at]) {
      for (const maker of inputsOf(run, place)) {
        if (rank[maker] === here) continue;
        const k = message[maker];
        held.push({ at: maker, message: k >= 0, end: k >= 0 ? sent(k) : run.end[maker] });
      }
    }
  }
  return held.reduce((best, one) => (best === null || one.end > best.end ? one : best), null);
}

/** The chain of actions and messages that decided the makespan, in order of time. */
export function criticalPath(run) {
  let node = null;
  run.end.forEach((end, at) => {
    if (node === null || end > node.end) node = { at, message: false, end };
  });
  const path = [];
  for (; node !== null; node = before(run, node)) {
    path.push(node.message ? node : { ...node, at: leader(run, node.at) });
  }
  return path.reverse();
}

/** Every time in which a rank computed nothing: {rank, start, end, before: the action behind it, or -1 at the end}. */
export function gapsOf(run) {
  const gaps = [], ranks = [...Array(run.ranks).keys()].filter((r) => run.first[r + 1] > run.first[r]);
  const begin = Math.min(...ranks.map((r) => run.start[run.first[r]]));
  const finish = Math.max(...ranks.map((r) => run.end[run.first[r + 1] - 1]));
  for (let rank = 0; rank < run.ranks; rank++) {
    let free = begin;
    for (let at = run.first[rank]; at < run.first[rank + 1]; at++) {
      if (run.start[at] > free) gaps.push({ rank, start: free, end: run.start[at], before: at });
      free = run.end[at];
    }
    if (finish > free) gaps.push({ rank, start: free, end: finish, before: -1 });
  }
  return gaps;
}

/** "rank 2 waits for B3 of rank 3": why a gap exists. */
export function causeOf(run, gap) {
  if (gap.before < 0) return `rank ${gap.rank} has finished`;
  const { at } = before(run, { at: gap.before, message: false, end: 0 });
  return `rank ${gap.rank} waits for ${nameOf(run, at)} of rank ${rankAt(run, at)}`;
}

/** The action that frees what a forward saved: its backward, and the weights' backward that comes later. */
export function backwardsOf(run, at) {
  const { made, n, rank } = indexOf(run);
  const backward = made[n + run.stage[at] * run.microbatches + run.microbatch[at]];
  if (backward < 0 || run.kind[backward] !== B) return [backward];
  for (let later = backward + 1; later < run.first[rank[at] + 1]; later++) {
    const same = run.stage[later] === run.stage[at] && run.microbatch[later] === run.microbatch[at];
    if (run.kind[later] === W && same) return [backward, later];
  }
  return [backward];
}
