"""Chapter 18: the learner's own text task. A bet on it comes first, then a prompt of 8 vectors is trained on it."""

from __future__ import annotations

import random
from collections.abc import Callable

import torch
from torch import Tensor
from torch.optim.lr_scheduler import LambdaLR

from course_lib.by_hand.prompt import Prompt, add
from course_lib.comparison.finetuning.selection.run import right_answers
from course_lib.data.task_gpt import answer, load_task_gpt
from course_lib.data.text_tasks import ASK, BEGIN, END, VOCABULARY, draw_texts, encode
from course_lib.one_device.loop import cross_entropy
from course_lib.one_device.schedule import warmed_up

RATE, BATCH, LONGEST = 0.1, 16, 22
SHOWN = "open file", "sys.exit"
Task = Callable[[str], str]


class OwnTasks:
    """The learner's tries, and how many of the bets were won."""

    def __init__(self) -> None:
        self.won: list[bool] = []

    def train_prompt(self, task: Task, learns: object = ..., steps: int = 100) -> None:
        """Prints what the task wants, then what a trained prompt makes of new texts, and who was right.

        Args:
            task: the right answer to a text.
            learns: the bet, "yes" or "no": is the prompt right on more than half of the new texts?
            steps: of training, with 16 texts each.
        """
        if fault := fault_of(task):
            print(fault)
            return
        for text in SHOWN:
            print(f"wanted: {text} → {task(text)}")
        if learns not in ("yes", "no"):
            print('Bet first: write "yes" or "no" in place of the dots.')
            return
        if not 1 <= steps <= 1000:
            print("Take 1 to 1,000 steps.")
            return
        model = load_task_gpt()
        tune(model, task, steps)
        right = right_answers(model, lines(task, draw_texts("test", None, random.Random(0))))
        for text in SHOWN:
            print(f"written: {text} → {answer(model, text)}")
        self.won.append((right > 0.5) == (learns == "yes"))
        print(f"right on {100 * right:.0f} % of new texts after {steps} steps")
        print(f"your bet is {'won' if self.won[-1] else 'lost'}: {sum(self.won)} of {len(self.won)} so far")


def fault_of(task: Task) -> str:
    """What is wrong with a task, in a sentence; nothing if it can be trained."""
    for text in (*SHOWN, *draw_texts("train", 200, random.Random(1))):
        try:
            said = task(text)
        except Exception as error:
            return f"Your task stopped at {text!r} with {type(error).__name__}: {error}"
        if not isinstance(said, str):
            return f"Your task gives {said!r} for {text!r}; it must give a text."
        if len(said) > LONGEST or not said.isascii() or END in said:
            return f"Your task gives {said!r} for {text!r}; take one line of at most {LONGEST} ASCII letters."
    return ""


def lines(task: Task, texts: list[str]) -> tuple[Tensor, Tensor]:
    """Tokens and targets of the texts, without any name before them."""
    return encode([f"{BEGIN}{text}{ASK}" for text in texts], [task(text) for text in texts])


def tune(model: torch.nn.Module, task: Task, steps: int) -> None:
    """Puts 8 vectors before the frozen model's texts, and trains them as the kept runs do."""
    draw = random.Random(0)
    prompt = add(model, Prompt, n=8)
    with torch.no_grad():  # they begin as letters that say nothing
        ids = torch.tensor([draw.randrange(ord("a"), ord("z") + 1) for _ in range(prompt.n)])
        prompt.P.copy_(torch.eye(VOCABULARY)[ids] @ _embeddings(model))
    optimizer = torch.optim.Adam([prompt.P], lr=RATE)
    schedule = LambdaLR(optimizer, lambda done: warmed_up(done, steps))
    for _ in range(steps):
        tokens, targets = lines(task, draw_texts("train", BATCH, draw))
        optimizer.zero_grad()
        cross_entropy(model(tokens), targets).backward()
        optimizer.step()
        schedule.step()


def _embeddings(model: torch.nn.Module) -> Tensor:
    return model.get_submodule("embedding.tokens").get_parameter("weight")
