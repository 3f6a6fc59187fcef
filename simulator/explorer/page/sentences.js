// What an action or a gap is, in sentences.

import { backwardsOf, before, causeOf, nameOf, rankAt } from "./causes.js";
import { human, short } from "./scale.js";
import { B, BW, F, W } from "./schedules.js";

const WORK = { [F]: "forward", [B]: "backward for the input", [W]: "backward for the weights", [BW]: "backward" };

/** What an action is, what it waited for, and what it keeps alive or frees. */
export function explainAction(run, at) {
  const rank = rankAt(run, at), from = short(run.start[at]), to = short(run.end[at]);
  const what = `${nameOf(run, at)} on rank ${rank}: ${WORK[run.kind[at]]} of microbatch ${run.microbatch[at]} ` +
    `in stage ${run.stage[at]}, from ${from} to ${to}.`;
  return [what, whatItWaitedFor(run, at, rank), whatItKeeps(run, at)].filter(Boolean).join(" ");
}

function whatItWaitedFor(run, at, rank) {
  if (at > 0 && run.paired[at - 1]) return `It runs together with ${nameOf(run, at - 1)}.`;
  const node = before(run, { at, message: false, end: 0 });
  if (node === null) return "It needs nothing that another action makes.";
  const name = nameOf(run, node.at), maker = rankAt(run, node.at);
  if (maker === rank) return `It started when ${name}, the action before it on rank ${rank}, had ended.`;
  if (!node.message) return `It waited for ${name} of rank ${maker}, which ended at ${short(node.end)}.`;
  return `It waited for the message with ${name} of rank ${maker}, which arrived at ${short(node.end)}.`;
}

function whatItKeeps(run, at) {
  const kind = run.kind[at], stage = run.stage[at];
  const saved = run.saved[stage], brought = run.brought[stage], kept = run.kept[stage];
  const again = brought && (kind === B || kind === BW) ? `It computes ${human(brought)} again first. ` : "";
  if (kind === F) {
    const [backward, weights] = backwardsOf(run, at);
    const until = (place) => `${nameOf(run, place)} ends at ${short(run.end[place])}`;
    const later = weights === undefined || !kept ? "" :
      `; ${human(kept)} ${brought ? "are kept" : "of them stay"} until ${until(weights)}`;
    return backward < 0 ? "" : `It keeps ${human(saved)} alive until ${until(backward)}${later}.`;
  }
  if (kind === W) return `Its end frees ${human(kept)}.`;
  if (kind === BW) return `${again}Its end frees ${human(saved + brought)}.`;
  return `${again}Its end frees ${human(saved + brought - kept)} and leaves ${human(kept)} for its W.`;
}

/** Why a rank computes nothing for a time. */
export function explainGap(run, gap) {
  const time = `From ${short(gap.start)} to ${short(gap.end)} rank ${gap.rank} computes nothing`;
  if (gap.before < 0) return `${time}: ${causeOf(run, gap)}.`;
  const node = before(run, { at: gap.before, message: false, end: 0 });
  const there = node.message ? "Its message arrives" : "It ends";
  return `${time}: ${causeOf(run, gap)}. ${there} at ${short(node.end)}, and then ${nameOf(run, gap.before)} starts.`;
}
