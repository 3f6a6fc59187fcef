// What a reader can change: one entry for each part of a question, with the words and the range of its control.

import { FORMS } from "./forms.js";
import { OWN } from "./schedules.js";

const TIMES = ["forward", "backward_input", "backward_weight", "transfer", "together"];
const GROUPS = [
  ["Pipeline", ["schedule", "ranks", "microbatches", "chunks"]],
  ["Time of one microbatch on a rank", ["forward", "backward_input", "backward_weight", "transfer", "together", "speeds"]],
  ["Bytes of one microbatch on a rank", ["saved", "kept", "recompute", "checkpoint"]],
];

// kind: choice, count (a whole number), amount, or list (numbers with commas). empty: what an empty field means.
const FIELDS = {
  schedule: { kind: "choice", label: "schedule", options: Object.keys(FORMS) },
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

/** The form of a pipeline that begins with a question; own: is there a schedule of the reader's? unit: of measured times. */
export function pipelineForm(own, question, unit = "") {
  const options = [...FIELDS.schedule.options, ...(own ? [OWN] : [])];
  const fields = { ...FIELDS, schedule: { ...FIELDS.schedule, options } };
  for (const name of TIMES) fields[name] = { ...fields[name], slider: around(question[name], fields[name].slider) };
  // Another schedule has chunks of its own.
  const settle = (question, name) => (name === "schedule" ? { ...question, chunks: null } : question);
  return { title: "What is drawn", groups: GROUPS.map(([legend, names]) => [unit && names.includes(TIMES[0]) ? `${legend}, in ${unit}` : legend, names]), fields, isIdle, settle };
}

/** A slider's range for times of any unit: it goes to twice the first value, where that is far from the usual range. */
function around(value, [from, to, step]) {
  if (!value || (value >= step && value <= to)) return [from, to, step];
  const wide = Number((2 * value).toPrecision(1));
  return [0, wide, wide / 100];
}

/** Fields that change nothing in this question are pale. */
function isIdle(name, question) {
  if (name === "together") return question.schedule !== "dualpipe-v";
  if (name === "chunks") return question.schedule !== "interleaved-1f1b" && question.chunks === null;
  if (name === "checkpoint") return question.recompute === "none";
  return name === "kept" && !["zb-h1", "zb-h2", "zb-v", "dualpipe-v", OWN].includes(question.schedule);
}

/** What a field's text says as a value: a number, a list, null where it is empty, or the text where it is neither. */
export function valueOf({ kind, unit = 1, empty, options }, text) {
  const given = text.trim();
  if (kind === "choice") return options.find((option) => String(option) === given);
  if (given === "" && empty) return null;
  const number = (word) => (word.trim() !== "" && Number.isFinite(Number(word)) ? Number(word) : word.trim());
  if (kind === "list") return given.replace(/^\[|\]$/g, "").split(",").map(number);
  const value = number(given);
  return typeof value === "number" ? value * unit : value;
}

/** A value as its field shows it. */
export function textOf({ kind, unit = 1 }, value) {
  if (kind === "choice") return String(value);
  if (value === null || value === undefined) return "";
  if (Array.isArray(value)) return value.join(", ");
  return typeof value === "number" ? String(Number((value / unit).toPrecision(12))) : value;
}
