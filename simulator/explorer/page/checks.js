// What a value of a question must be, in the words of simulator/inputs/checks.py.

export function oneOf(name, value, accepted) {
  if (!accepted.includes(value)) {
    throw new Error(`${name} must be one of ${accepted.map(plain).join(", ")}, not ${plain(value)}`);
  }
}

export function atLeastOne(name, value) {
  if (!(Number.isInteger(value) && value >= 1)) refuse(name, "a whole number of at least 1", value);
}

export function notNegative(name, value) {
  if (!(typeof value === "number" && value >= 0 && value < Infinity)) {
    refuse(name, "a number of at least 0", value);
  }
}

export function refuse(name, accepted, value) {
  throw new Error(`${name.replaceAll("_", " ")} must be ${accepted}, not ${asPython(value)}`);
}

/** A value as Python's sentences show it. */
const asPython = (value) => (typeof value === "string" ? `'${value}'` : plain(value));

function plain(value) {
  if (Array.isArray(value)) return `[${value.map(asPython).join(", ")}]`;
  return { null: "None", true: "True", false: "False" }[value] ?? String(value);
}
