"""06.4: the largest model that fits at each stage, and the stage to choose."""

from course_lib.grading.judge import Fact, record
from simulator.inputs.plan import Plan
from simulator.predict.memory import model_states

RETURNS = "returns a stage at which a model fits, or None where it fits at no stage."
FACTS = {
    "fits": Fact("the number of parameters that fits at stage {}", "returns how many…", tolerance=1e-6),
    "stage": Fact("the stage", RETURNS),
    "above": Fact("stages above the lowest that fits", most=0),
}


# parameters: for `choose_stage`
class Case(record("ranks memory", parameters=None)):
    @property
    def name(self) -> str:
        room = f"{self.memory / 1e9:g} GB" if self.memory >= 1e9 else f"{self.memory} bytes"
        text = f"{self.ranks:,} rank{'s' * (self.ranks > 1)} with {room}"
        return text if self.parameters is None else f"{self.parameters / 1e9:g} billion parameters, {text}"


SIZES = [(64, 80e9), (8, 40e9), (2, 141e9), (3, 24e9), (1000, 16e9), (1, 80e9), (3, 100)]
MODELS = [(64, 80e9, 1e9), (64, 40e9, 7.5e9), (64, 80e9, 10e9), (64, 80e9, 30e9), (4, 80e9, 30e9)]
EXACT = [(4, memory, 1e9) for memory in (16e9, 7e9, 5.5e9, 4e9)]
CASES = [Case(*case) for case in (*SIZES, *MODELS, *EXACT, (4, 3.999e9, 1e9), (1, 31e9, 2e9))]


def observe(answers, case: Case) -> dict:
    largest_model, choose_stage = answers
    ranks, memory, parameters, *_ = case
    if parameters is None:
        fits = {stage: float(largest_model(memory, stage, ranks)) for stage in range(4)}
        return {"fits": fits, "stage": "", "above": 0}
    need = [parameters * model_states(1, Plan(dp=ranks, zero=stage)).total for stage in range(4)]
    fitting = [stage for stage in range(4) if need[stage] <= memory * (1 + 1e-12)]
    got, said = choose_stage(parameters, memory, ranks), ""
    if got is None and fitting:
        said = f"the answer is None, and the model fits at stage {fitting[0]}"
    elif got is not None and not fitting:
        said = f"the answer is {got!r}, and the model fits at no stage"
    elif got is not None and got not in range(4):
        said = f"the answer is {got!r}, not a stage"
    elif got is not None and got not in fitting:
        said = f"at stage {got} the model does not fit"
    return {"fits": {}, "stage": said, "above": 0 if said or got is None else int(got) - fitting[0]}
