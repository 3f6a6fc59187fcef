// Bars of several parts that sliders change. Python has computed them for all choices.

import { WIDTH, box, label, legend } from "./marks.js";
import { inUnit, scaleOf } from "./scale.js";
import { show } from "./figure.js";

const LEFT = 100, total = (amounts) => amounts.reduce((sum, amount) => sum + amount, 0);

export function draw(values, _, { table, parts, unit, sliders }) {
  // The scale stays while the first slider moves.
  const rows = table.filter(([chosen]) => sliders.every(({ name }, i) => i === 0 || chosen[i] === values[name]));
  const [, bars, says] = rows.find(([chosen]) => chosen[0] === values[sliders[0].name]);
  const most = Math.max(...rows.flatMap((one) => one[1].map(([, amounts]) => total(amounts))));
  const x = scaleOf([0, most], [LEFT, WIDTH - 90]), marks = legend(8, parts.map(([words, colour]) => [colour, words]), LEFT);
  bars.forEach(([words, amounts], row) => {
    const y = 26 + 34 * row;
    let end = 0;
    marks.push(label(LEFT - 6, y + 13, words, { anchor: "end" }));
    for (const [k, amount] of amounts.entries()) {
      marks.push(box(x(end), y, x(end + amount) - x(end), 26, parts[k][1]));
      end += amount;
    }
    marks.push(label(x(end) + 6, y + 13, inUnit(Number(end.toPrecision(3)), unit), { colour: "ink" }));
  });
  return { marks, height: 26 + 34 * bars.length, numbers: [], says };
}

export const render = ({ model, el }) => show(el, model.get("given"), draw);
export const start = (el, given) => show(el, given, draw);
