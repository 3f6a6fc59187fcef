// What a reader can change: one entry for each part of a question, with the words and the range of its control.

import { CHUNKS, OWN } from "./schedules.js";

export const GROUPS = [
  ["Pipeline", ["schedule", "ranks", "microbatches", "chunks"]],
  ["Time of one microbatch on a rank", ["forward", "backward_input", "backward_weight", "transfer", "together", "speeds"]],
  ["Bytes of one microbatch on a rank", ["saved", "kept", "recompute", "checkpoint"]],
];

/** kind: choice, count (a whole number), amount, or list (numbers with commas). empty: what an empty field means. */
export const FIELDS = {
  schedule: { kind: "choice", label: "schedule", options: Object.keys(CHUNKS) },
  ranks: { kind: "count", label: "ranks", slider: [1, 64, 1] },
  microbatches: { kind: "count", label: "microbatches", slider: [1, 64, 1] },
  chunks: { kind: "count", label: "chunks a rank", slider: [1, 8, 1], empty: "as the schedule has" },
  forward: { kind: "amount", label: "F, forward", slider: [0, 4, 0.1] },
  backward_input: { kind: "amount", label: "B, backward for the input", slider: [0, 4, 0.1] },
  backward_weight: { kind: "amount", label: "W, backward for the weights", slider: [0, 4, 0.1] },
  transfer: { kind: "amount", label: "message to the next rank", slider: [0, 2, 0.05] },
  together: {
    kind: "amount", label: "F and B at once (dualpipe-v)", slider: [0, 8, 0.1], empty: "one after the other",
  },
  speeds: { kind: "list", label: "speeds of the ranks", empty: "all 1", example: "1, 1, 0.5, 1" },
  saved: { kind: "amount", label: "saved by F, in GB", slider: [0, 4, 0.1], unit: 1e9 },
  kept: { kind: "amount", label: "part of it that W needs", slider: [0, 1, 0.05] },
  recompute: { kind: "choice", label: "recomputation", options: ["none", "full"] },
  checkpoint: { kind: "amount", label: "part that a stage's input takes", slider: [0, 1, 0.05] },
};

/** Fields that change nothing in this question are switched off. */
export function isIdle(name, question) {
  if (name === "together") return question.schedule !== "dualpipe-v";
  if (name === "chunks") return question.schedule !== "interleaved-1f1b" && question.chunks === null;
  if (name === "checkpoint") return question.recompute === "none";
  return name === "kept" && !["zb-h1", "zb-h2", "zb-v", "dualpipe-v", OWN].includes(question.schedule);
}

/** What a text field says as a value: a number, a list, null where it is empty, or the text where it is neither. */
export function valueOf(name, text) {
  const { kind, unit = 1, empty } = FIELDS[name], given = text.trim();
  if (kind === "choice") return given;
  if (given === "" && empty) return null;
  const number = (word) => (word.trim() !== "" && Number.isFinite(Number(word)) ? Number(word) : word.trim());
  if (kind === "list") return given.replace(/^\[|\]$/g, "").split(",").map(number);
  const value = number(given);
  return typeof value === "number" ? value * unit : value;
}

/** A value as its text field shows it. */
export function textOf(name, value) {
  if (value === null || value === undefined) return "";
  if (Array.isArray(value)) return value.join(", ");
  return typeof value === "number" ? String(Number((value / (FIELDS[name].unit ?? 1)).toPrecision(12))) : value;
}
