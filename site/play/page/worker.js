// Python, in a thread of its own: the page stays alive while a cell computes, and can end it.

import { loadPyodide } from "./pyodide/pyodide.mjs";

const FOLDER = "/course";
const chapters = new Map();
let newChapter, files;

const ready = start();
ready.then(
  (seconds) => postMessage({ kind: "ready", seconds }),
  (error) => postMessage({ kind: "failed", error: String(error.message ?? error) }),
);

async function start() {
  const begun = performance.now();
  const archive = fetch(new URL("course.zip", import.meta.url)).then((response) => {
    if (!response.ok) throw new Error(`course.zip is missing: ${response.status}`);
    return response.arrayBuffer();
  });
  const pyodide = await loadPyodide({ indexURL: new URL("pyodide/", import.meta.url).href });
  pyodide.unpackArchive(await archive, "zip", { extractDir: FOLDER });
  files = pyodide.FS;
  newChapter = pyodide.runPython(`
import sys
sys.path.insert(0, "${FOLDER}")
from play.browser.kernel import Chapter
from play.browser.pictures import install
install()
Chapter
`);
  return (performance.now() - begun) / 1000;
}

onmessage = async ({ data: { id, chapter, source, dropped } }) => {
  await ready;
  if (dropped) return write(dropped);
  if (!chapters.has(chapter)) chapters.set(chapter, newChapter());
  const begun = performance.now();
  const found = chapters.get(chapter).run(source, (text) => postMessage({ kind: "text", id, text }));
  const result = found.toJs({ dict_converter: Object.fromEntries });
  found.destroy();
  postMessage({ kind: "done", id, ...result, ms: performance.now() - begun });
};

/** The folder that the page of traces reads holds these files, and no others. */
async function write({ folder, contents }) {
  files.mkdirTree(folder);
  for (const name of files.readdir(folder)) if (!name.startsWith(".")) files.unlink(`${folder}/${name}`);
  for (const { name, bytes } of contents) files.writeFile(`${folder}/${name}`, bytes);
}
