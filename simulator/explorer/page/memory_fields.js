// What a reader can change in the memory calculator.

const COUNT = (label, slider = [1, 64, 1]) => ({ kind: "count", label, slider });

/** The form of the calculator; choices: the values that Python accepts, by name. */
export function memoryForm(choices) {
  const choice = (name, label, words = {}) => ({ kind: "choice", label, options: choices[name], words });
  return {
    title: "Model, plan and device",
    groups: [
      ["Model and device", ["model", "gpu", "sequence", "micro_batch"]],
      ["Plan", ["dp", "tp", "pp", "cp", "zero", "microbatches", "schedule"]],
      ["What is kept, and how", ["precision", "gradients", "optimizer", "recompute", "attention", "sequence_parallel"]],
    ],
    fields: {
      model: choice("model", "model"),
      gpu: choice("gpu", "device"),
      sequence: { kind: "count", label: "tokens of a sequence", slider: [128, 8192, 128], empty: "as the model was trained" },
      micro_batch: COUNT("sequences in a microbatch", [1, 32, 1]),
      dp: COUNT("data-parallel ranks (dp)"),
      tp: COUNT("tensor-parallel ranks (tp)", [1, 16, 1]),
      pp: COUNT("pipeline ranks (pp)", [1, 32, 1]),
      cp: COUNT("context-parallel ranks (cp)", [1, 16, 1]),
      zero: choice("zero", "ZeRO stage"),
      microbatches: { kind: "count", label: "microbatches", empty: "as many as fill the pipeline" },
      schedule: choice("schedule", "schedule"),
      precision: choice("precision", "precision"),
      gradients: choice("gradients", "gradients", { same: "as the parameters" }),
      optimizer: choice("optimizer", "optimizer"),
      recompute: choice("recompute", "recomputation"),
      attention: choice("attention", "attention", { null: "as the device does" }),
      sequence_parallel: choice("sequence_parallel", "sequence parallelism", { true: "yes", false: "no" }),
    },
    isIdle: (name, question) => (name === "sequence_parallel" && question.tp === 1) ||
      (["schedule", "microbatches"].includes(name) && question.pp === 1),
    settle: (question) => question,
  };
}
