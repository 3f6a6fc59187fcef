"""Two answers to an exercise, compared by what its check observes of them."""


def facts_that_differ(given, answer, other, case):
    """The facts, targets aside, by which they differ in this case; a text that is left out says nothing."""
    got, want = given.observe(answer, case), given.observe(other, case)
    facts = {key: fact for key, fact in given.facts.items() if key in got or key in want}
    wrong = {
        key: fact.wrong(got.get(key, ""), want.get(key, ""))
        for key, fact in facts.items()
        if fact.most is None
    }
    return {key: lines for key, lines in wrong.items() if lines}
