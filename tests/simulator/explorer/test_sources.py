"""What the view shows when: the page's own answer at once, and Python's where it is another one."""

import pytest

PROGRAM = """
const { newestFirst } = modules.sources;
const later = () => new Promise((done) => setTimeout(done));
async function play({ steps, page, python }) {
  const said = [], waiting = [];
  const source = {
    atOnce: (q) => {
      if (page[q] instanceof Object) throw new Error(page[q].error);
      return page[q] && { run: page[q] };
    },
    ask: (q) => new Promise((resolve, reject) => {
      said.push(`asked ${q}`);
      waiting.push(() => {
        if (python[q] instanceof Object) reject(new Error(python[q].error));
        else resolve({ run: python[q] });
      });
    }),
  };
  const ask = newestFirst(source,
    ({ run }, q) => said.push(`${q}: ${run}`),
    (error, q) => said.push(`${q}: ${error.message}`),
    (q) => said.push(`confirmed ${q}`), 0);
  for (const step of steps) {
    if (step === "python") waiting.shift()();
    else ask(step);
    await later();
  }
  return said;
}
console.log(JSON.stringify(await Promise.all(questions.map(play))));
"""
WRONG = {"error": "no"}
CASES = {
    "both say the same": (
        dict(steps=["a", "python"], page={"a": "1"}, python={"a": "1"}),
        ["a: 1", "asked a", "confirmed a"],
    ),
    "Python has the last word": (
        dict(steps=["a", "python"], page={"a": "1"}, python={"a": "2"}),
        ["a: 1", "asked a", "a: 2", "confirmed a"],
    ),
    "one question at a time, then the newest": (
        dict(
            steps=["a", "b", "c", "python", "python"],
            page={"a": "1", "b": "2", "c": "3"},
            python={"a": "1", "b": "2", "c": "3"},
        ),
        ["a: 1", "asked a", "b: 2", "c: 3", "asked c", "confirmed c"],
    ),
    "an old answer is not shown after a newer one": (
        dict(steps=["a", "b", "python", "python"], page={"a": "1", "b": "2"}, python={"a": "9", "b": "8"}),
        ["a: 1", "asked a", "b: 2", "asked b", "b: 8", "confirmed b"],
    ),
    "only Python can answer": (
        dict(steps=["a", "b", "python", "python"], page={}, python={"a": "1", "b": "2"}),
        ["asked a", "a: 1", "confirmed a", "asked b", "b: 2", "confirmed b"],
    ),
    "the page answers while Python still thinks about another": (
        dict(steps=["a", "b", "python", "python"], page={"b": "2"}, python={"a": "1", "b": "2"}),
        ["asked a", "b: 2", "asked b", "confirmed b"],
    ),
    "both refuse": (
        dict(steps=["a", "python"], page={"a": WRONG}, python={"a": WRONG}),
        ["a: no", "asked a", "confirmed a"],
    ),
    "Python refuses": (
        dict(steps=["a", "python"], page={"a": "1"}, python={"a": WRONG}),
        ["a: 1", "asked a", "a: no", "confirmed a"],
    ),
    "Python accepts what the page refuses": (
        dict(steps=["a", "python"], page={"a": WRONG}, python={"a": "1"}),
        ["a: no", "asked a", "a: 1", "confirmed a"],
    ),
    "Python is silent": (
        dict(steps=["a", "b"], page={"a": "1", "b": "2"}, python={}),
        ["a: 1", "asked a", "b: 2"],
    ),
}


@pytest.fixture(scope="module")
def played(run_in_node):
    return dict(zip(CASES, run_in_node(PROGRAM, [case for case, _ in CASES.values()]), strict=True))


@pytest.mark.parametrize("name", CASES)
def test_what_is_shown(played, name):
    assert played[name] == CASES[name][1]


def test_arrays_are_compared_number_by_number(run_in_node):
    program = """
const { newestFirst } = modules.sources;
let shown = 0;
const run = (end, sent) => ({ name: "x", end: new Float64Array(end), sends: new Float64Array(sent), saved: [1, 2] });
const tell = async (one, other) => {
  shown = 0;
  const source = { atOnce: () => one, ask: async () => ({ ...other, saved: new Float64Array([1, 2]) }) };
  await new Promise((done) => newestFirst(source, () => (shown += 1), done, done, 0)({}));
  return shown;
};
console.log(JSON.stringify([
  await tell(run([1, 2], []), run([1, 2], [])), await tell(run([1, 2], []), run([1, 3], [])),
  await tell(run([1, 2], []), run([1, 2], [4])), await tell(run([1], []), run([1, 2], [])),
]));
"""
    assert run_in_node(program, []) == [1, 2, 2, 2]
