// Numbers on a page: from values to pixels, round numbers for an axis, and bytes with their unit.

/** A linear scale: domain [a, b] onto pixels [from, to]. */
export function scaleOf([a, b], [from, to]) {
  const size = b > a ? (to - from) / (b - a) : 0;
  const place = (value) => from + (value - a) * size;
  place.invert = (pixel) => (size ? a + (pixel - from) / size : a);
  return place;
}

/** Round numbers (1, 2 or 5 times a power of ten) inside [a, b], about count of them. */
export function ticks(a, b, count) {
  if (!(b > a)) return [a];
  const rough = (b - a) / Math.max(1, count), power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((size) => size >= rough);
  const found = [];
  for (let k = Math.ceil(a / step - 1e-9); k * step <= b + 1e-9 * step; k++) found.push(k * step);
  return found;
}

/** At most four digits, no trailing zeros: 0.25, 1234, 1.235e+6. */
export function short(value) {
  return String(Number(value.toPrecision(4)));
}

/** The same with the unit of measured times behind it, where there is one: "0.03125 s". */
export function inUnit(value, unit = "") {
  return unit ? `${short(value)} ${unit}` : short(value);
}

/** "12.3 GB": three digits, powers of ten. */
export function human(size) {
  const units = [["TB", 1e12], ["GB", 1e9], ["MB", 1e6], ["kB", 1e3]];
  const [unit, one] = units.find(([, smallest]) => Math.abs(size) >= smallest) ?? ["bytes", 1];
  return `${Number((size / one).toPrecision(3))} ${unit}`;
}

export const percent = (share) => `${(100 * share).toFixed(1)} %`;
