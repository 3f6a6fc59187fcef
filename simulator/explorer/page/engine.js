// simulator/pipeline/engine.py once more: a rank does its actions in their order, each as soon as its input is there.
// tests/simulator/explorer/test_same_as_python.py holds both to the same times, event by event.

import { B, BW, F, W, rankOf, range } from "./schedules.js";

/**
 * When each action of a schedule runs.
 *
 * times: forward, backwardInput, backwardWeight (each a list with one number a stage), transfer, speeds (a list with
 * one number a rank) and together (of a forward and a backward that run at once; null: one after the other).
 *
 * Returns flat arrays: the actions of rank r lie from first[r] to first[r + 1].
 */
export function simulate(schedule, times) {
  const { ranks, microbatches: m, actions } = schedule, stages = ranks * schedule.chunks;
  const holder = range(stages).map((stage) => rankOf(schedule, stage));
  const slow = (list) => list.map((time, stage) => time * (1 / times.speeds[holder[stage]]));
  const took = { [F]: slow(times.forward), [B]: slow(times.backwardInput), [W]: slow(times.backwardWeight) };
  took[BW] = took[B].map((time, stage) => time + took[W][stage]);
  const crosses = (stage, next) => next >= 0 && next < stages && holder[stage] !== holder[next];
  const sendsOn = (kind, stage) => kind !== W && crosses(stage, kind === F ? stage + 1 : stage - 1);

  const run = emptyRun(schedule, actions);
  // When each output is where it is needed: first the forwards', then the input gradients'; NaN: not yet.
  const n = stages * m, arrived = new Float64Array(2 * n).fill(NaN), waiting = new Map();
  const clock = new Float64Array(ranks), linkFree = new Float64Array(ranks), done = new Int32Array(ranks);
  const sends = [];

  const need = (place) => { // the output that an action waits for; -1: none
    const kind = run.kind[place], stage = run.stage[place], k = stage * m + run.microbatch[place];
    if (kind === F) return stage ? k - m : -1;
    if (kind === W) return n + k;
    return stage === stages - 1 || Number.isNaN(arrived[k]) ? k : n + k + m;
  };
  const ready = (output) => (output < 0 ? 0 : arrived[output]);

  const runnable = range(ranks);
  while (runnable.length) {
    const rank = runnable.pop(), base = run.first[rank], count = run.first[rank + 1] - base;
    const pairs = times.together === null ? new Set() : schedule.overlapped[rank];
    let now = clock[rank];
    for (; done[rank] < count; done[rank]++) {
      const at = done[rank], kind = run.kind[base + at], stage = run.stage[base + at];
      const k = stage * m + run.microbatch[base + at];
      let output = need(base + at), there = ready(output);
      if (!Number.isNaN(there) && pairs.has(at)) { // the backward of the pair must be able to start, too
        output = need(base + at + 1);
        there = Math.max(there, ready(output)); // NaN stays NaN
      }
      if (Number.isNaN(there)) {
        if (waiting.has(output)) waiting.get(output).push(rank);
        else waiting.set(output, [rank]);
        break;
      }
      if (pairs.has(at - 1)) { // already running, beside the forward
        run.start[base + at] = run.start[base + at - 1];
        run.end[base + at] = run.end[base + at - 1];
        now = Math.max(now, run.end[base + at]);
      } else {
        const start = kind === W || there < now ? now : there;
        now = start + (pairs.has(at) ? times.together : took[kind][stage]);
        run.start[base + at] = start;
        run.end[base + at] = now;
        run.paired[base + at] = pairs.has(at) ? 1 : 0;
      }
      if (kind === W) continue;
      const made = kind === F ? k : n + k;
      arrived[made] = run.end[base + at];
      if (times.transfer && sendsOn(kind, stage)) {
        const sent = Math.max(run.end[base + at], linkFree[rank]);
        arrived[made] = linkFree[rank] = sent + times.transfer;
        sends.push(rank, at, sent, sent + times.transfer);
      }
      if (waiting.has(made)) {
        runnable.push(...waiting.get(made));
        waiting.delete(made);
      }
    }
    clock[rank] = now;
  }
  if (done.some((count, rank) => count < actions[rank].length)) throw new Error(`${schedule.name} never ends`);
  return { ...run, sends: Float64Array.from(sends) };
}

/** The arrays of a run before anything has run, with the actions filled in. */
function emptyRun(schedule, actions) {
  const { name, ranks, microbatches, chunks, placement } = schedule;
  const first = new Int32Array(ranks + 1);
  actions.forEach((list, rank) => (first[rank + 1] = first[rank] + list.length));
  const count = first[ranks];
  const run = {
    name, ranks, microbatches, chunks, placement, first,
    kind: new Uint8Array(count), stage: new Int32Array(count), microbatch: new Int32Array(count),
    start: new Float64Array(count), end: new Float64Array(count), paired: new Uint8Array(count),
  };
  actions.flat().forEach(([kind, stage, i], at) => {
    run.kind[at] = kind;
    run.stage[at] = stage;
    run.microbatch[at] = i;
  });
  return run;
}
