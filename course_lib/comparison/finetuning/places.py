"""For chapter 17: LoRA of rank 8 beside some of the matrices, in all layers or in the upper ones alone.

``python -m course_lib.comparison.finetuning.places`` runs what is missing in the kept runs; they are no rows of the
comparison's table.
"""

from __future__ import annotations

from collections.abc import Collection

from course_lib.comparison.finetuning.kept import FOLDER, MATMUL, SEEDS, STEPS, kept_runs
from course_lib.comparison.finetuning.methods import METHODS, Method
from course_lib.comparison.walk import best

FOUR = ("attention.self.query", "attention.self.key", "attention.self.value", "attention.output.dense")
# Which matrices, and the learning rates: the best one in every layer; of the four, of 0.001 and 0.003 from layer 3 up.
PLACES = {
    "qv": (("attention.self.query", "attention.self.value"), (3e-3,)),
    "attention": (FOUR, (1e-3,)),
    "five": ((*FOUR, "intermediate.dense"), (3e-4, 1e-3, 3e-3)),  # without the MLP's second matrix
    "all": ((*FOUR, "intermediate.dense", "output.dense"), (1e-3,)),
}
LAYERS, LOWEST = 6, range(3, 7)  # MiniLM's
# Three seeds each; the others have one.
THRICE = ["lora-qv-r8-from3", "lora-attention-r8-from3", "lora-all-r8-from3", "lora-five-r8"]
# A LLaMA's matrices, by what MiniLM has in their place.
NAMES: dict[str, str] = dict(zip(("query", "key", "value", "output"), FOUR, strict=True))
NAMES |= {"gate": "intermediate.dense", "up": "intermediate.dense", "down": "output.dense"}


def _method(place: str, lowest: int) -> Method:
    names, rates = PLACES[place]
    targets = tuple(f"layer.{i}.{name}" for i in range(lowest - 1, LAYERS) for name in names)
    start = {"targets": targets, "rank": 8, "alpha": 16}
    return Method("lora", {"": start}, rates, variant=f", rank 8, {place}, from layer {lowest}")


UPPER = [place for place in PLACES if place != "five"]
PLACED = {f"lora-{place}-r8-from{lowest}": _method(place, lowest) for place in UPPER for lowest in LOWEST}
PLACED["lora-five-r8"] = _method("five", 1)


def right_answers(place: str, lowest: int, seed: int = 0, rank: int = 8) -> float | None:
    """The share of the test part, at the rate that is best on the first seed's validation part; None: not run."""
    name = f"lora-{place}-r{rank}" + (f"-from{lowest}" if lowest > 1 else "")
    own = [run for run in kept_runs() if run["method"] == name]
    tried = [run for run in own if run["seed"] == SEEDS[0]]
    found = (
        [run["test"] for run in own if run["seed"] == seed and run["lr"] == best(tried)["lr"]]
        if tried
        else []
    )
    return found[0] if found else None


def as_in_llama(places: Collection[str], rank: int, lowest: int, layers: int = 32) -> list[float]:
    """Right answers of MiniLM, a share for each seed, with LoRA where a LLaMA has it: the same matrices, without the
    same share of the lowest layers. Empty: not run."""
    if ("gate" in places) != ("up" in places):
        return []
    own, from_layer = {NAMES[place] for place in places}, 1 + round((lowest - 1) * LAYERS / layers)
    named = [place for place, (names, _) in PLACES.items() if set(names) == own]
    found = [right_answers(place, from_layer, seed, rank) for place in named for seed in SEEDS]
    return [right for right in found if right is not None]


def main() -> None:
    from course_lib.comparison.finetuning.compare import Comparison
    from course_lib.comparison.finetuning.results import Runs
    from course_lib.comparison.finetuning.run import Setting
    from course_lib.data.finetuning_tasks import word_order
    from course_lib.models.pretrained import load_minilm

    METHODS.update(PLACED)
    like = Setting("word-order", "minilm", "", "", lr=0, seed=0, steps=STEPS, matmul=MATMUL)
    runs = Runs(FOLDER / "runs.jsonl")
    for methods, seeds in ((list(PLACED), [0]), (THRICE, SEEDS)):
        Comparison(like, lambda: (load_minilm()[0], word_order()), runs, methods, seeds, finer=True).run()


if __name__ == "__main__":
    main()
