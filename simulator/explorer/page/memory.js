// simulator/predict/memory_over_time.py once more: the bytes that each rank keeps alive, from action to action.

import { B, BW, F, W } from "./schedules.js";

/**
 * Adds to a run what is alive while each action runs (during) and after it (after), in bytes.
 *
 * saved: what a forward keeps of one microbatch, for each stage; brought: what its backward computes again;
 * kept: of both together, what the weights' backward needs.
 */
export function addBytes(run, saved, brought, kept) {
  const during = new Float64Array(run.kind.length), after = new Float64Array(run.kind.length);
  for (let rank = 0; rank < run.ranks; rank++) {
    let alive = 0;
    for (let at = run.first[rank]; at < run.first[rank + 1]; at++) {
      const stage = run.stage[at], kind = run.kind[at];
      if (kind === F) alive += saved[stage];
      if (kind === B || kind === BW) alive += brought[stage];
      during[at] = alive;
      if (kind === B) alive -= saved[stage] + brought[stage] - kept[stage];
      if (kind === W) alive -= kept[stage];
      if (kind === BW) alive -= saved[stage] + brought[stage];
      after[at] = alive;
    }
  }
  return { ...run, during, after, saved, brought, kept };
}
