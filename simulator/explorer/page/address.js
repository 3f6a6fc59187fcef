// The state of a page of its own stands in its address, behind the #: prose can link to just what it speaks of.
//
// A value is a bare word or JSON: #schedule=zb-v&ranks=8&speeds=[1,1,0.5,1]. What is not named has its default.

/**
 * {asked, more, write}: what the address asks for, else the question given; the values of its further names; write(question)
 * puts a question there.
 */
export function atAddress(question, defaults, further = []) {
  const [first] = Object.keys(defaults), given = [...new URLSearchParams(location.hash.slice(1))];
  const named = (names) => Object.fromEntries(given.filter(([name]) => names.includes(name)).map(([name, text]) => [name, valueIn(text)]));
  const known = named(Object.keys(defaults)), more = named(further);
  addEventListener("hashchange", () => location.reload()); // a link, or the reader, and never write()
  const write = (asked) => {
    if (location.protocol === "about:") return; // inside of another page
    const changed = Object.keys(defaults).filter((name) => name === first || textOf(asked[name]) !== textOf(defaults[name]));
    const all = [...changed.map((name) => [name, asked[name]]), ...Object.entries(more)];
    history.replaceState(null, "", `#${new URLSearchParams(all.map(([name, value]) => [name, textOf(value)]))}`);
  };
  return { asked: Object.keys(known).length ? { ...defaults, ...known } : question, more, write };
}

const textOf = (value) => (typeof value === "string" ? value : JSON.stringify(value));

function valueIn(text) {
  try {
    return JSON.parse(text);
  } catch { return text; }
}
