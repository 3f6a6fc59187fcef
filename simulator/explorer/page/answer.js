// What is drawn, computed in the page: simulator/explorer/question.py and answer.py once more, without Python.

import { simulate } from "./engine.js";
import { addBytes } from "./memory.js";
import { FORMS } from "./forms.js";
import { OWN, makeSchedule, range } from "./schedules.js";
import { atLeastOne, notNegative, oneOf, refuse } from "./checks.js";

const MOST_FORWARDS = 70000;
const RECOMPUTE = ["none", "full"];

/**
 * The actions of a question's schedule with their times and bytes; own: the schedule that a reader has written, or
 * null. Throws an Error of one sentence.
 */
export function answer(question, own = null) {
  check(question);
  const { schedule: name, ranks, microbatches, chunks } = question;
  const schedule = name === OWN ? checkedOwn(own, question) : makeSchedule(name, ranks, microbatches, chunks);
  const v = schedule.chunks, full = question.recompute === "full", stages = range(schedule.ranks * v);
  const each = (value) => stages.map(() => value);
  const run = simulate(schedule, {
    forward: each(question.forward / v),
    backwardInput: each((question.backward_input + (full ? question.forward : 0)) / v),
    backwardWeight: each(question.backward_weight / v),
    transfer: question.transfer,
    together: question.together === null ? null : question.together / v,
    speeds: question.speeds ?? range(schedule.ranks).map(() => 1),
  });
  const whole = question.saved / v, saved = full ? whole * question.checkpoint : whole;
  return addBytes(run, each(saved), each(whole - saved), each(whole * question.kept));
}

/** Refuses what cannot be drawn, in the words of question.py. */
function check(question) {
  oneOf("schedule", question.schedule, [...Object.keys(FORMS), OWN]);
  for (const name of ["ranks", "microbatches"]) atLeastOne(name, question[name]);
  const chunks = checkedChunks(question.schedule, question.chunks);
  const forwards = question.ranks * question.microbatches * chunks;
  if (forwards > MOST_FORWARDS) {
    throw new Error(`ranks x microbatches x chunks must be at most ${MOST_FORWARDS} here, not ${forwards}`);
  }
  for (const name of ["forward", "backward_input", "backward_weight", "transfer", "saved"]) {
    notNegative(name, question[name]);
  }
  if (question.forward + question.backward_input + question.backward_weight === 0) {
    throw new Error("forward, backward input and backward weight must not all be 0");
  }
  if (question.together !== null) notNegative("together", question.together);
  checkSpeeds(question.speeds, question.ranks);
  oneOf("recompute", question.recompute, RECOMPUTE);
  for (const name of ["kept", "checkpoint"]) {
    notNegative(name, question[name]);
    if (question[name] > 1) refuse(name, "between 0 and 1", question[name]);
  }
}

function checkedOwn(own, { ranks, microbatches }) {
  if (own.ranks !== ranks || own.microbatches !== microbatches) {
    const written = `${own.ranks} ranks and ${own.microbatches} microbatches`;
    throw new Error(`your schedule is written for ${written}, not for ${ranks} and ${microbatches}`);
  }
  return { ...own, overlapped: own.overlapped.map((pairs) => new Set(pairs)) };
}

function checkedChunks(name, v) {
  if (v !== null) atLeastOne("chunks", v);
  if (name === OWN) return v ?? 1;
  const only = FORMS[name].chunks;
  if (v === null || v === only) return only;
  if (name === "interleaved-1f1b") return v;
  if (only === 2) throw new Error(`${name} takes exactly 2 chunks a rank, one for each side of the V, not ${v}`);
  const others = "for more take interleaved-1f1b, zb-v or dualpipe-v";
  throw new Error(`${name} has ${only} chunk a rank, not ${v}: ${others}`);
}

function checkSpeeds(speeds, ranks) {
  const good = (speed) => typeof speed === "number" && speed > 0 && speed < Infinity;
  if (speeds === null || (Array.isArray(speeds) && speeds.length === ranks && speeds.every(good))) return;
  refuse("speeds", `${ranks} positive numbers, one a rank`, speeds);
}
