// How often to save: the useful time over the interval; Young's is marked once it is found. As simulator/predict/checkpoint_interval.py.

import { WIDTH, box, label, legend, path } from "./marks.js";
import { percent, scaleOf } from "./scale.js";
import { duration, show } from "./figure.js";

const DAY = 86400, FROM = 10, LONGEST = 600; // seconds; seconds; beyond it no stretch ends without a failure

/** For an interval: {useful, saving, again, restarting}, which share the time, and Young's interval. A failure in a restart begins it
 *  anew, so restarting are the moments with a failure in the last `restart` seconds; a save that a failure cut short counts as done again. */
export function shares({ interval, failures, cost, restart }) {
  const mtbf = DAY / failures, stretch = (interval + cost) / mtbf, late = restart / mtbf;
  const useful = stretch + late > LONGEST ? 0 : interval / (mtbf * Math.exp(late) * Math.expm1(stretch));
  const saving = (useful * cost) / interval, restarting = -Math.expm1(-late), again = Math.max(0, 1 - useful - saving - restarting);
  return { useful, saving, again, restarting, young: Math.sqrt(2 * cost * mtbf) };
}

export function draw(values) {
  const now = shares(values), { interval, cost } = values, rarely = interval > 1.25 * now.young, often = interval < 0.8 * now.young;
  const x = (seconds) => scaleOf([Math.log(FROM), Math.log(DAY)], [70, WIDTH - 20])(Math.log(seconds)), y = scaleOf([0, 1], [176, 20]), marks = [];
  for (const share of [0, 0.5, 1]) marks.push(path([70, y(share), WIDTH - 20, y(share)], "line"), label(62, y(share), `${100 * share} %`, { anchor: "end" }));
  for (const [seconds, words] of [[10, "10 s"], [60, "1 min"], [600, "10 min"], [3600, "1 h"], [21600, "6 h"], [DAY, "24 h"]]) marks.push(label(x(seconds), 192, words, { anchor: "middle" }));
  marks.push(label(0, 6, "useful time"), label(WIDTH / 2, 210, "time between two saves", { anchor: "middle" }));
  const points = [...Array(121).keys()].map((k) => FROM * (DAY / FROM) ** (k / 120));
  marks.push(path(points.flatMap((seconds) => [x(seconds), y(shares({ ...values, interval: seconds }).useful)]), "ink", { wide: 2 }));
  if (!rarely && !often) { // the mark would give the answer away
    const right = now.young < 3600;
    marks.push(path([x(now.young), 176, x(now.young), 2], "accent", { dash: "3 3" }));
    marks.push(label(x(now.young) + (right ? 6 : -6), 6, `Young: ${duration(now.young)}`, { colour: "accent", bold: true, anchor: right ? "start" : "end" }));
  }
  marks.push(box(x(interval) - 5, y(now.useful) - 5, 10, 10, "accent"));
  const wide = scaleOf([0, 1], [0, WIDTH - 90]), lost = [["saving", "weights"], ["again", "backward"], ["restarting", "gradients"]];
  let from = 0;
  marks.push(label(62, 246, "lost", { anchor: "end" }), box(70, 234, WIDTH - 90, 24, "idle"));
  for (const [name, colour] of lost) {
    const size = Math.min(now[name], 1 - from);
    marks.push(box(70 + wide(from), 234, wide(size), 24, colour, size > 0.005 ? percent(size) : ""));
    from += size;
  }
  marks.push(...legend(276, [["weights", "saving"], ["backward", "work done again"], ["gradients", "restarting"]], 70));
  const side = rarely ? "You save too rarely: more is lost to work done again than to saving." : often ? "You save too often: more is lost to saving than to work done again." :
    `Saving and work done again cost about the same, and that is the best. With a save of ${duration(cost)} Young's interval is ${duration(now.young)}.`;
  return {
    marks, height: 288, numbers: [["useful", percent(now.useful)], ["between two failures", duration(DAY / values.failures)]],
    says: `Saved every ${duration(interval)}, ${percent(now.useful)} of the time is useful. ${side}`,
  };
}

export const render = ({ model, el }) => show(el, model.get("given"), draw);
export const start = (el, given) => show(el, given, draw);
