// Where answers come from: the page itself, at once, and Python, where a kernel runs. Both give the same numbers.
//
// A source is {atOnce, ask}. atOnce(question) answers now, or returns undefined where the page cannot; it throws an
// Error of one sentence where the question is wrong. ask(question) promises Python's answer. One of the two may be absent.

import { answer } from "./answer.js";

const REST = 150; // milliseconds without a newer question, after which Python is asked to confirm what is shown
const ARRAYS = { i: Int32Array, d: Float64Array, B: Uint8Array };

/** The page computes a pipeline; own: the schedule that a reader has written, or null. */
export const pageSource = (own) => ({ own: own !== null, atOnce: (question) => answer(question, own) });

/** Python computes: anywidget's model carries the question there and the answer back. atOnce: as in a source. */
export function kernelSource(model, atOnce = () => undefined) {
  const open = new Map();
  let count = 0;
  model.on("msg:custom", (reply, buffers) => {
    const settle = open.get(reply.id);
    if (!settle) return;
    open.delete(reply.id);
    if (reply.error) settle.reject(new Error(reply.error));
    else settle.resolve(reply.arrays ? unpack(reply, buffers) : reply.answer);
  });
  return {
    atOnce,
    ask: (question) => new Promise((resolve, reject) => {
      open.set(++count, { resolve, reject });
      model.send({ id: count, question });
    }),
  };
}

/** The flat arrays of an answer, from the bytes that Python sent. */
function unpack({ head, arrays }, buffers) {
  const run = { ...head };
  arrays.forEach(([name, type], k) => {
    const { buffer, byteOffset, byteLength } = buffers[k];
    run[name] = new ARRAYS[type](buffer.slice(byteOffset, byteOffset + byteLength));
  });
  return run;
}

/**
 * Shows what the page answers at once, and what Python answers later where that is something else: Python has the last
 * word. One question at a time is asked of Python; of those that come meanwhile only the newest is. Python is asked at
 * once where the page cannot answer, and otherwise when the slider rests, so that it does not compute while the page
 * draws. No answer is shown after the answer to a newer question. onConfirmed(question) is called when Python's answer
 * is what is shown.
 */
export function newestFirst(source, onAnswer, onError, onConfirmed = () => {}, rest = REST) {
  let busy = false, next = null, asked = 0, shown = 0, timer = null;
  const show = ({ number, question }, { value, error }) => {
    shown = number;
    if (error) onError(error, question);
    else onAnswer(value, question);
  };
  const confirm = async (one) => {
    busy = true;
    const found = await source.ask(one.question).then((value) => ({ value }), (error) => ({ error }));
    busy = false;
    if (one.number > shown || (one.number === shown && !same(found, one.first))) show(one, found);
    if (one.number === shown) onConfirmed(one.question);
    if (!next) return;
    const newest = next;
    next = null;
    confirm(newest);
  };
  return (question) => {
    const one = { number: ++asked, question, first: outcomeOf(() => source.atOnce(question)) };
    if (one.first) show(one, one.first);
    if (!source.ask) return;
    const tell = () => {
      if (busy) next = one;
      else confirm(one);
    };
    clearTimeout(timer);
    if (one.first) timer = setTimeout(tell, rest);
    else tell();
  };
}

/** {value} or {error} of a computation; null where it has neither. */
function outcomeOf(compute) {
  try {
    const value = compute();
    return value === undefined ? null : { value };
  } catch (error) { return { error }; }
}

/** Do two outcomes say the same, number by number? */
function same(one, other) {
  if (!other || one.error || other.error) return one.error?.message === other?.error?.message && Boolean(other);
  const equal = (a, b) => (!ArrayBuffer.isView(a) ? JSON.stringify(a) === JSON.stringify(b) :
    a.length === b?.length && a.every((value, k) => value === b[k]));
  return Object.keys(one.value).every((name) => equal(one.value[name], other.value[name]));
}
