// Puts an SVG, as wide as the notebook shows it, alone into the page, and measures its text.
// Returns a list of problems: {kind: "small" | "cut" | "overlap" | "covered", text, detail}.
([page, least]) => {
  document.body.innerHTML = page;
  const SLACK = 1;  // px: antialiasing, and letters that lean over
  const svg = document.querySelector("svg");
  const frame = svg.getBoundingClientRect();
  const pen = document.createElement("canvas").getContext("2d");
  const problems = [];

  const scale = (element) => {
    const m = element.getScreenCTM();
    return Math.sqrt(Math.abs(m.a * m.d - m.b * m.c));
  };
  const leaves = (element) =>  // the elements that hold letters themselves
    [element, ...element.querySelectorAll("tspan")].filter((each) =>
      [...each.childNodes].some((node) => node.nodeType === Node.TEXT_NODE && node.data.trim()));
  const pixels = (leaf) => parseFloat(getComputedStyle(leaf).fontSize) * scale(leaf);
  const shown = (element) => {
    const style = getComputedStyle(element);
    return style.visibility !== "hidden" && style.display !== "none" && parseFloat(style.opacity) > 0;
  };

  // The corners of the ink, on the screen. getBBox is as high as the font's highest and lowest letters.
  const corners = (element) => {
    const box = element.getBBox();
    const style = getComputedStyle(leaves(element)[0]);
    pen.font = `${style.fontStyle} ${style.fontWeight} ${style.fontSize} ${style.fontFamily}`;
    const ink = pen.measureText(element.textContent.trim());
    let [top, bottom] = [box.y, box.y + box.height];
    if (box.height < 1.5 * (ink.fontBoundingBoxAscent + ink.fontBoundingBoxDescent)) {  // one line
      const baseline = box.y + ink.fontBoundingBoxAscent;
      [top, bottom] = [baseline - ink.actualBoundingBoxAscent, baseline + ink.actualBoundingBoxDescent];
    }
    const m = element.getScreenCTM();
    return [[box.x, top], [box.x + box.width, top], [box.x + box.width, bottom], [box.x, bottom]].map(
      ([x, y]) => [m.a * x + m.c * y + m.e, m.b * x + m.d * y + m.f]);
  };

  // How deep two convex shapes reach into each other, along the direction in which they do so least.
  const depth = (one, other) => {
    let least = Infinity;
    for (const shape of [one, other]) {
      for (const [i, [x, y]] of shape.entries()) {
        const [nx, ny] = shape[(i + 1) % shape.length];
        const length = Math.hypot(nx - x, ny - y) || 1;
        const along = ([px, py]) => (-(ny - y) * px + (nx - x) * py) / length;
        const [a, b] = [one.map(along), other.map(along)];
        least = Math.min(least, Math.max(...a) - Math.min(...b), Math.max(...b) - Math.min(...a));
      }
    }
    return least;
  };

  // Whether their sides, along the page's, are apart: so two shapes are that do not touch.
  const apart = (one, other) => [0, 1].some((axis) => {
    const [a, b] = [one, other].map((shape) => shape.map((corner) => corner[axis]));
    return Math.max(...a) <= Math.min(...b) || Math.max(...b) <= Math.min(...a);
  });

  // What is painted over the middle of the text, if anything.
  const cover = (element, [a, b, c, d]) => {
    for (const share of [0.1, 0.3, 0.5, 0.7, 0.9]) {
      const at = (i) => (a[i] + d[i]) / 2 * (1 - share) + (b[i] + c[i]) / 2 * share;
      const [x, y] = [at(0), at(1)];
      if (x < 0 || y < 0 || x >= innerWidth || y >= innerHeight) continue;  // the browser finds nothing there
      if (element.contains(document.elementFromPoint(x, y))) continue;  // as nearly always: all below it need not be found
      for (const top of document.elementsFromPoint(x, y)) {
        if (top === svg || element.contains(top)) break;
        if (top.closest("text") || !svg.contains(top)) continue;
        const after = element.compareDocumentPosition(top) & Node.DOCUMENT_POSITION_FOLLOWING;
        const style = getComputedStyle(top);
        const opaque = style.fill !== "none" && parseFloat(style.fillOpacity) * parseFloat(style.opacity) > 0.5;
        if (after && opaque) return top;
      }
    }
  };

  const words = [...svg.querySelectorAll("text")]
    .filter((element) => leaves(element).length && shown(element))
    .map((element) => ({ element, text: element.textContent.trim().replace(/\s+/g, " "), box: corners(element) }));

  for (const { element, text, box } of words) {
    const size = Math.min(...leaves(element).map(pixels));
    if (size < least - 0.05) problems.push({ kind: "small", text, detail: `${size.toFixed(1)} px` });
    const out = Math.max(...box.flatMap(([x, y]) =>
      [frame.left - x, x - frame.right, frame.top - y, y - frame.bottom]));
    if (out > SLACK) problems.push({ kind: "cut", text, detail: `${out.toFixed(1)} px outside the picture` });
    const over = cover(element, box);
    if (over) problems.push({ kind: "covered", text, detail: `by a <${over.tagName}> that is painted later` });
  }
  for (const [i, one] of words.entries()) {
    for (const other of words.slice(i + 1)) {
      if (apart(one.box, other.box)) continue;
      const deep = depth(one.box, other.box);
      const halo = one.text === other.text && deep > pixels(leaves(one.element)[0]) / 2;  // an outline below it
      if (deep > SLACK && !halo) {
        problems.push({ kind: "overlap", text: one.text, detail: `${deep.toFixed(1)} px over "${other.text}"` });
      }
    }
  }
  return problems;
}
