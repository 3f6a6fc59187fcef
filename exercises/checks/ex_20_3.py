"""20.3: a sampler that goes on where another number of ranks stopped."""

import json
import random

from course_lib.grading.judge import Fact, record

SAME = "The samples of a step, of all ranks together, are the same with any number of ranks, and whether or…"
FACTS = {
    "json": Fact("what json.dumps writes", "`state()` returns what `json.dumps` can write."),
    "alike": Fact("the state", "The state of every rank is the same, and any rank of the next run can load…"),
    "steps": Fact("the samples of every step", SAME),
    "uneven": Fact("parts", "The numbers of samples of two ranks differ by at most 1 at each step."),
    "characters": Fact("characters of the state", "The state is at most 64 characters of JSON.", most=64),
    "drawn": Fact("orders drawn beyond those needed", "After `load`, `shuffle` is called once for…", most=0),
}

# Stretches of a run: so many steps on so many ranks; in between one rank's state is saved, and all load it
Case = record("name length batch stretches", saver=0)


def cases(seed: int) -> list[Case]:
    draw = random.Random(seed)
    return [
        Case("4 ranks, one epoch that divides evenly", 24, 8, [(3, 4)]),
        Case("2 ranks, two epochs with a short last step", 10, 4, [(6, 2)]),
        Case("from 4 ranks to 3 in the middle of an epoch", 48, 12, [(2, 4), (2, 3)]),
        Case("from 4 ranks to 3, saved by rank 3", 60, 12, [(2, 4), (3, 3)], saver=3),
        Case("from 3 ranks to 4, 7 samples a step", 30, 7, [(2, 3), (4, 4)], saver=1),
        Case("saved at the end of an epoch", 20, 5, [(4, 2), (4, 3)]),
        Case("saved in the second epoch", 16, 6, [(5, 2), (3, 3)]),
        Case("saved twice without a step in between", 20, 6, [(2, 4), (0, 3), (3, 2)]),
        Case("saved three times over three epochs", 14, 4, [(3, 4), (4, 3), (3, 1), (2, 5)], saver=0),
        Case("more ranks than samples at the last step", 9, 8, [(1, 4), (2, 5)]),
        Case("one sample, one rank", 1, 1, [(1, 1), (2, 1)]),
        Case("a batch of the whole epoch", 6, 6, [(1, 3), (2, 2)]),
        Case("a batch larger than the epoch", 5, 8, [(1, 2), (2, 3)]),
        Case("a drawn length, five stretches", draw.randint(40, 70), draw.randint(5, 13),
             [(draw.randint(0, 6), draw.randint(1, 5)) for _ in range(5)]),
    ]  # fmt: skip


def observe(sampler, case: Case) -> dict:
    """Run all stretches of a case, on one sampler for each rank."""
    steps, uneven, text, characters, drawn, per_epoch = [], "", None, 0, 0, -(-case.length // case.batch)
    for count, ranks in case.stretches:
        asked = [[] for _ in range(ranks)]

        def order(epoch, to):
            to.append(epoch)
            return random.Random(f"{case.name} {epoch}").sample(range(case.length), case.length)

        every = [
            sampler(lambda e, to=to: order(e, to), case.length, case.batch, r, ranks)
            for r, to in enumerate(asked)
        ]
        first = len(steps) // per_epoch
        for each in every if text else ():
            each.load(json.loads(text))
        for _ in range(count):
            parts = [[int(i) for i in each.next_batch()] for each in every]
            sizes = [len(part) for part in parts]
            if max(sizes) - min(sizes) > 1:
                uneven = uneven or f"at step {len(steps)} the ranks get {', '.join(map(str, sizes))} samples"
            steps.append(sorted(i for part in parts for i in part))
        states = [each.state() for each in every]
        try:
            texts = [json.dumps(state) for state in states]
        except TypeError:
            return {"json": f"the state is {states[0]!r:.80}, and json cannot write it", "steps": steps}
        if other := next((one for one in texts if one != texts[0]), None):
            said = (
                f"after {len(steps)} steps the state of rank 0 is {texts[0]:.60}, of another rank {other:.60}"
            )
            return {"alike": said, "steps": steps}
        text = texts[min(case.saver, ranks - 1)]
        characters = max(characters, len(text))
        needed = {*range(first, len(steps) // per_epoch + 1)}
        drawn = max(drawn, *(len(to) - len(needed & {*to}) for to in asked))
    return {"steps": steps, "uneven": uneven, "characters": characters, "drawn": drawn}
