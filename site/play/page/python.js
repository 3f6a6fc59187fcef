// The page's side of Python: begin it, give it cells one after the other, end it.

/** Python in a worker. said: called with a sentence whenever its state changes. */
export function newPython(said) {
  let worker = null, number = 0, waiting = new Map(), begun = null, ready = false;

  function begin() {
    if (begun) return begun;
    said("Python is loading …");
    ready = false;
    begun = new Promise((resolve, reject) => {
      worker = new Worker(new URL("worker.js", import.meta.url), { type: "module" });
      const fail = (error) => {
        const why = `Python could not be loaded: ${error}.`;
        said(why, true);
        reject(new Error(why));
      };
      worker.onerror = (event) => fail(event.message ?? "a file is missing");
      worker.onmessage = ({ data }) => {
        if (data.kind === "ready") {
          said(`Python is ready. It loaded in ${data.seconds.toFixed(1)} s.`);
          ready = true;
          resolve(data.seconds);
        } else if (data.kind === "failed") fail(data.error);
        else if (data.kind === "text") waiting.get(data.id)?.onText(data.text);
        else {
          waiting.get(data.id)?.resolve(data);
          waiting.delete(data.id);
        }
      };
    });
    begun.catch(() => {
      worker?.terminate();
      begun = null;
      for (const { resolve } of waiting.values()) resolve({ error: "Python could not be loaded." });
      waiting = new Map();
    });
    return begun;
  }

  /** Run a cell; onText gets what it prints. Resolves with { text, html, error, ms }, also where it was stopped. */
  function run(chapter, source, onText) {
    begin();
    const id = ++number;
    return new Promise((resolve) => {
      waiting.set(id, { resolve, onText });
      worker.postMessage({ id, chapter, source });
    });
  }

  /** Give Python's folder these files, as { name, bytes }; a cell that is run later sees them. */
  function drop(folder, contents) {
    begin();
    worker.postMessage({ dropped: { folder, contents } }, contents.map(({ bytes }) => bytes.buffer));
  }

  /** End Python, whatever it does; the variables of all chapters are gone. */
  function stop() {
    worker?.terminate();
    begun = null;
    const stopped = [...waiting.values()];
    waiting = new Map();
    for (const { resolve } of stopped) resolve({ stopped: true });
    begin();
  }

  return { begin, run, drop, stop, isReady: () => ready };
}
