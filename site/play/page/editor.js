// A textarea that holds Python: colours behind it, its own height, and the indentation of the line above.
// It stays a textarea, so that a screen reader, undo and Tab work as everywhere else.

const WORDS = new Set(
  ("and as assert async await break class continue def del elif else except False finally for from global if import in "
  + "is lambda None nonlocal not or pass raise return True try while with yield").split(" "),
);
const TOKEN = /(#.*)|("""[\s\S]*?"""|'''[\s\S]*?'''|[rbf]*"(?:\\.|[^"\\\n])*"?|[rbf]*'(?:\\.|[^'\\\n])*'?)|\b(\d[\w.]*)|\b([A-Za-z_]\w*)/g;
const KINDS = ["comment", "string", "number", "word"];

/** Keep a cell's textarea painted and as high as its text. onEdit: called after each change. */
export function prepareEditor(area, painted, onEdit) {
  const refresh = () => {
    paint(painted, area.value);
    area.rows = area.value.split("\n").length;
    onEdit();
  };
  area.addEventListener("input", refresh);
  area.addEventListener("scroll", () => { painted.scrollLeft = area.scrollLeft; });
  area.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && !event.shiftKey && !event.ctrlKey && !event.metaKey && !event.altKey) indent(area, event);
  });
  refresh();
  return refresh;
}

/** A new line begins below the first letter of the line above, and one step further in after a colon. */
function indent(area, event) {
  const line = area.value.slice(0, area.selectionStart).split("\n").at(-1);
  const blanks = line.match(/^ */)[0] + (/[:([{]\s*$/.test(line) ? "    " : "");
  if (!blanks) return;
  event.preventDefault();
  // The only way that keeps the browser's own undo.
  document.execCommand("insertText", false, `\n${blanks}`);
}

function paint(place, text) {
  const parts = [];
  let from = 0;
  for (const match of text.matchAll(TOKEN)) {
    const kind = KINDS[match.slice(1).findIndex((part) => part !== undefined)];
    if (kind === "word" && !WORDS.has(match[0])) continue;
    parts.push(text.slice(from, match.index), piece(kind, match[0]));
    from = match.index + match[0].length;
  }
  place.replaceChildren(...parts, text.slice(from), "\n");
}

function piece(kind, text) {
  const span = document.createElement("span");
  span.className = kind;
  span.textContent = text;
  return span;
}
