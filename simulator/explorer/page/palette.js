// Colours, read from the style sheet, where both themes define them.

import { B, BW, F, W } from "./schedules.js";

const NAMES = { [F]: "forward", [B]: "backward", [BW]: "backward", [W]: "weights" };

/** Is the page around an element dark? The nearest background that can be seen decides, then the reader's system. */
export function isDark(element) {
  for (let node = element; node; node = node.parentElement ?? node.getRootNode().host) {
    const [r, g, b, alpha = 1] = getComputedStyle(node).backgroundColor.match(/[\d.]+/g)?.map(Number) ?? [0, 0, 0, 0];
    if (alpha > 0.5) return 0.299 * r + 0.587 * g + 0.114 * b < 128;
  }
  return matchMedia("(prefers-color-scheme: dark)").matches;
}

/** The colours of an element's theme; of(run, at) is that of an action. */
export function paletteOf(element) {
  const style = getComputedStyle(element), read = (name) => style.getPropertyValue(`--${name}`).trim();
  const shades = new Map();
  const shade = (kind, chunk, chunks) => {
    const key = 1000 * kind + 100 * Math.min(chunks, 9) + chunk;
    if (!shades.has(key)) shades.set(key, mix(read(NAMES[kind]), read(`${NAMES[kind]}-last`), chunk / Math.max(1, chunks - 1)));
    return shades.get(key);
  };
  return {
    ink: read("ink"), quiet: read("quiet"), paper: read("paper"), idle: read("idle"), bytes: read("bytes"),
    accent: read("accent"), line: read("line"), backward: read("backward"),
    of: (run, at) => shade(run.kind[at], Math.floor(run.stage[at] / run.ranks), run.chunks),
  };
}

const channels = (colour) => [1, 3, 5].map((i) => parseInt(colour.slice(i, i + 2), 16));

function mix(first, last, share) {
  const to = channels(last);
  const mixed = channels(first).map((from, i) => Math.round(from + (to[i] - from) * share));
  return `#${mixed.map((value) => value.toString(16).padStart(2, "0")).join("")}`;
}

/** Black or white: which of them can be read on a colour. */
export function inkOn(colour) {
  const [r, g, b] = channels(colour);
  return 0.299 * r + 0.587 * g + 0.114 * b > 125 ? "#111111" : "#ffffff";
}
