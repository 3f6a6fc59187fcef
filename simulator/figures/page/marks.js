// A picture as a list of marks, and its SVG. A figure speaks of colours by name: each theme has its own.

import { inkOn } from "./palette.js";

export const WIDTH = 640; // what JupyterLab leaves an output in a window of 1,100 px
export const NAMES = ["ink", "quiet", "paper", "line", "idle", "accent", "forward", "backward", "weights", "parameters", "gradients",
  "optimizer_states", "activations", "buffers", "reserved"];

/** A box with words in it, where there is room for them; edge: the colour of a border; wide: of the border, in px. */
export function box(x, y, w, h, fill, text = "", { edge = "", wide = 2, dash = "" } = {}) {
  return { box: [x, y, w, h], fill, text, edge, wide, dash };
}

/** Words; anchor: start, middle or end. y is the middle of the line. */
export function label(x, y, text, { anchor = "start", colour = "quiet", bold = false } = {}) {
  return { label: [x, y], text, anchor, colour, bold };
}

/** A line through points [x, y, x, y, …]; arrow: with a head at its end. */
export function path(points, colour = "quiet", { dash = "", wide = 1, arrow = false } = {}) {
  return { path: points, colour, dash, wide, arrow };
}

/** A row of swatches with what each colour means: [[colour, words], …]. */
export function legend(y, entries, x = 0) {
  return entries.flatMap(([colour, words]) => {
    const found = [box(x, y - 6, 12, 12, colour, "", { edge: "line", wide: 1 }), label(x + 17, y, words)];
    x += 34 + 6.6 * words.length;
    return found;
  });
}

const safe = (text) => String(text).replaceAll("&", "&amp;").replaceAll("<", "&lt;");
const round = (value) => Number(value.toFixed(2));

function svgOf(mark, colours) {
  const write = (x, y, text, fill, anchor, more = "") =>
    `<text x="${round(x)}" y="${round(y + 4)}" fill="${fill}" text-anchor="${anchor}"${more}>${safe(text)}</text>`;
  if (mark.box) {
    const [x, y, w, h] = mark.box.map(round), edge = mark.edge && ` stroke="${colours[mark.edge]}" stroke-width="${mark.wide}"`;
    const dash = mark.dash && ` stroke-dasharray="${mark.dash}"`, fits = 7 * String(mark.text).length + 5 < w;
    const inside = mark.text !== "" && fits ? write(x + w / 2, y + h / 2, mark.text, inkOn(colours[mark.fill] ?? mark.fill), "middle") : "";
    return `<rect x="${x}" y="${y}" width="${Math.max(0, w)}" height="${h}" fill="${colours[mark.fill] ?? mark.fill}"${edge}${dash}/>${inside}`;
  }
  if (mark.label) return write(...mark.label, mark.text, colours[mark.colour], mark.anchor, mark.bold ? ' font-weight="600"' : "");
  const points = mark.path.map(round), [a, b, x, y] = points.slice(-4), turn = Math.atan2(y - b, x - a);
  const wing = (side) => `${round(x - 8 * Math.cos(turn + side))},${round(y - 8 * Math.sin(turn + side))}`;
  const head = mark.arrow ? `<polygon points="${x},${y} ${wing(0.45)} ${wing(-0.45)}" fill="${colours[mark.colour]}"/>` : "";
  const dash = mark.dash && ` stroke-dasharray="${mark.dash}"`;
  return `<polyline points="${points.join(" ")}" fill="none" stroke="${colours[mark.colour]}" stroke-width="${mark.wide}"${dash}/>${head}`;
}

/** The SVG of a picture; colours: name -> "#rrggbb". */
export const svgFrom = ({ marks, height }, colours) =>
  `<svg xmlns="http://www.w3.org/2000/svg" width="${WIDTH}" height="${height}" viewBox="0 0 ${WIDTH} ${height}" font-size="13" ` +
  `font-family="system-ui, 'DejaVu Sans', sans-serif">${marks.map((mark) => svgOf(mark, colours)).join("\n")}</svg>`;
