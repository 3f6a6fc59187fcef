// Where answers come from: Python, where a kernel runs, or the page itself. Both give the same numbers.

import { answer } from "./answer.js";

const PATIENCE = 1500; // milliseconds after which the page answers for a kernel that is busy
const ARRAYS = { i: Int32Array, d: Float64Array, B: Uint8Array };

/** The page computes; own: the schedule that a reader has written, or null. */
export const pageSource = (own) => ({ own: own !== null, ask: async (question) => answer(question, own) });

/** One answer that is known already. */
export const fixedSource = (answer) => ({ fixed: true, ask: async () => answer });

/**
 * Python computes: anywidget's model carries the question there and the answer back. instead(question): a function that
 * answers in the page when Python is busy, or null.
 */
export function kernelSource(model, instead = () => null) {
  const open = new Map();
  let count = 0;
  model.on("msg:custom", (reply, buffers) => {
    const settle = open.get(reply.id);
    if (!settle) return;
    open.delete(reply.id);
    if (reply.error) settle.reject(new Error(reply.error));
    else settle.resolve(reply.arrays ? unpack(reply, buffers) : reply.answer);
  });
  const send = (content) => new Promise((resolve, reject) => {
    open.set(++count, { resolve, reject });
    model.send({ id: count, ...content });
  });
  const later = (compute) => new Promise((resolve, reject) => {
    setTimeout(() => {
      try { resolve(compute()); } catch (error) { reject(error); }
    }, PATIENCE);
  });
  return {
    ask(question) {
      const compute = instead(question), asked = send({ question });
      return compute ? Promise.race([asked, later(compute)]) : asked;
    },
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

/** Asks one question at a time; of those that come meanwhile only the newest is asked. */
export function newestFirst(source, onAnswer, onError) {
  let busy = false, next = null;
  const run = async (question) => {
    busy = true;
    try { onAnswer(await source.ask(question), question); } catch (error) { onError(error, question); }
    busy = false;
    if (next) {
      const question = next;
      next = null;
      run(question);
    }
  };
  return (question) => {
    if (busy) next = question;
    else run(question);
  };
}
