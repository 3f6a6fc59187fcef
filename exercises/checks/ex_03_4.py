"""03.4: an fp16 step of a small GPT on parts of the batch, with ``torch.autocast`` and ``GradScaler``."""

from functools import cache

from course_checks.fp16_steps import Case, LossTypes, play

from course_lib.grading.judge import Fact
from course_lib.grading.material import material
from course_lib.observe.ledgers.memory import record_memory

ONCE = "The scaler decides once in a step whether to update, and adapts its scale once."
FACTS = {
    "fp16": Fact("forward passes", "Every forward pass runs under `torch.autocast` in fp16"),
    "fp32": Fact("the losses", "The loss of a part is `cross_entropy(logits.float(), targets)`"),
    "parts": Fact("the parts", "Pass at most `micro` sequences at a time through the model"),
    "updated": Fact("a step", ONCE),
    "moved": Fact("how far the parameters moved in 2 steps", "This loss is the mean over…", tolerance=0.02),
    "losses": Fact("the losses that it returns", "Return the loss of the whole batch, as…", tolerance=1e-3),
    "scales": Fact("the scale after each step", ONCE),
    "peak": Fact("activations at the peak, in percent of those of one part", "never more than…", most=150),
}
CASES = [
    Case(10, 4),
    Case(10, 4, 0.2, remark=", gradients to clip"),
    Case(6, 3, 0.2, frozen=True, remark=", a frozen embedding"),
    Case(2, 4),
    Case(3, 1),
    Case(4, 2, 1.0, scale=2.0**40, remark=", a scale so large that fp16 overflows"),
    Case(8, 2, 1.0, peak=True),
]


@cache
def solved(case: Case) -> dict:
    return play(material("03.4").solution, case, LossTypes)


def most_activations(step, case: Case) -> int:
    return max(held.activations for held in play(step, case, record_memory, steps=1)["log"].held)


def observe(step, case: Case) -> dict:
    if case.peak:
        alone = most_activations(material("03.4").solution, case._replace(sequences=case.micro))
        return {"peak": round(100 * most_activations(step, case) / alone)}
    found = solved(case) if step is material("03.4").solution else play(step, case, LossTypes)
    kinds, most = {kind for _, kind in found["forwards"]}, max((n for n, _ in found["forwards"]), default=0)
    moved = found["moved"] / (solved(case)["moved"].abs().max() or 1.0)  # 1 is what the solution moves most
    seen = {"moved": moved, "losses": found["losses"], "scales": found["scales"]}
    if kinds != {"float16"}:
        seen["fp16"] = f"forward passes in {', '.join(sorted(kinds)) or 'nothing'}"
    if narrow := found["log"].seen - {"float32", "float64"}:
        seen["fp32"] = f"a loss is computed from logits in {', '.join(sorted(narrow))}"
    if most > case.micro:
        seen["parts"] = f"one has {most} sequences"
    if found["forgotten"]:
        seen["updated"] = "a step ends without `scaler.update()`, which adapts the scale"
    return seen
