"""For chapter 17: LoRA of rank 8 in the upper layers alone, beside some of their matrices.

``python -m course_lib.comparison.finetuning.places`` runs what is missing in the kept runs; they are no rows of the
comparison's table.
"""

from __future__ import annotations

from course_lib.comparison.finetuning.kept import FOLDER, MATMUL, STEPS, kept_runs
from course_lib.comparison.finetuning.methods import METHODS, Method
from course_lib.comparison.walk import best

FOUR = ("attention.self.query", "attention.self.key", "attention.self.value", "attention.output.dense")
# Which matrices, and the learning rate: the best one in every layer; of the four, of 0.001 and 0.003 from layer 3 up.
PLACES = {
    "qv": (("attention.self.query", "attention.self.value"), 3e-3),
    "attention": (FOUR, 1e-3),
    "all": ((*FOUR, "intermediate.dense", "output.dense"), 1e-3),
}
LAYERS, LOWEST = 6, range(3, 7)  # MiniLM's


def _method(place: str, lowest: int) -> Method:
    names, rate = PLACES[place]
    targets = tuple(f"layer.{i}.{name}" for i in range(lowest - 1, LAYERS) for name in names)
    start = {"targets": targets, "rank": 8, "alpha": 16}
    return Method("lora", {"": start}, (rate,), variant=f", rank 8, {place}, from layer {lowest}")


PLACED = {f"lora-{place}-r8-from{lowest}": _method(place, lowest) for place in PLACES for lowest in LOWEST}


def right_answers(place: str, lowest: int, seed: int = 0) -> float | None:
    """The share of the test part, at the rate that is best on the validation part; None: not run."""
    name = f"lora-{place}-r8" + (f"-from{lowest}" if lowest > 1 else "")
    own = [run for run in kept_runs() if run["method"] == name and run["seed"] == seed]
    return best(own)["test"] if own else None


def main() -> None:
    from course_lib.comparison.finetuning.compare import Comparison
    from course_lib.comparison.finetuning.results import Runs
    from course_lib.comparison.finetuning.run import Setting
    from course_lib.data.finetuning_tasks import word_order
    from course_lib.models.pretrained import load_minilm

    METHODS.update(PLACED)
    like = Setting("word-order", "minilm", "", "", lr=0, seed=0, steps=STEPS, matmul=MATMUL)
    runs = Runs(FOLDER / "runs.jsonl")
    Comparison(like, lambda: (load_minilm()[0], word_order()), runs, list(PLACED), seeds=[0]).run()


if __name__ == "__main__":
    main()
