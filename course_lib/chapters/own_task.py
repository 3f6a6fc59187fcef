"""Chapter 18: the learner's own forward with a prompt and own text task; a bet comes before the training."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from functools import cache
from itertools import chain, groupby, product
from string import ascii_letters

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR

from course_lib.by_hand.prompt import Prompt, add
from course_lib.comparison.finetuning.selection.run import right_answers
from course_lib.data.task_gpt import CONFIG, answer, load_task_gpt
from course_lib.data.text_tasks import ASK, BEGIN, END, KNOWN, VOCABULARY, draw_texts, encode, texts
from course_lib.models.gpt import GPT
from course_lib.observe.show.commitment import Bet
from course_lib.observe.show.shown import Shown
from course_lib.observe.show.tables import table
from course_lib.one_device.loop import cross_entropy
from course_lib.one_device.schedule import warmed_up

RATE, BATCH, LONGEST, VECTORS = 0.1, 16, 22, 8
SHOWN = "open file", "sys.exit"
Task = Callable[[str], str]
Forward = Callable[[GPT, Tensor, Tensor], Tensor]  # model, P of (8, d), tokens -> logits
LETTERS = 40  # of a text that a forward is tried with
UNEQUAL = r"tensor a \({0}\) must match the size of tensor b \({0}\)".format(f"(?:{VECTORS}|{LETTERS})")
STOPPED = {  # what PyTorch says -> what was done
    "ellipsis": "Write your forward first: a line with dots is left.",
    r"except in dimension (\d)": "Your torch.cat joins along dimension {0}. Of (batch, places, d) the places are "
    "dimension 1.",
    "must be tuple of Tensors": "torch.cat takes the tensors as one tuple, in parentheses of their own.",
    r"same number of dimensions: got (\d) and (\d)": "Your torch.cat joins a tensor of {0} dimensions with one of "
    "{1}. P and text have 3 each.",
    UNEQUAL: f"You add or multiply where {VECTORS} vectors and {LETTERS} letters have to stand one after the other.",
}


class WithPrompt(nn.Module):
    """The frozen model with 8 vectors, as the learner's ``forward`` joins them."""

    def __init__(self, forward: Forward) -> None:
        super().__init__()
        self.model, self.joined = load_task_gpt().requires_grad_(False), forward
        draw = random.Random(0)  # they begin as letters that say nothing
        ids = [draw.randrange(ord("a"), ord("z") + 1) for _ in range(VECTORS)]
        self.P = nn.Parameter(self.model.get_parameter("embedding.tokens.weight")[ids].clone())

    def forward(self, tokens: Tensor) -> Tensor:
        return self.joined(self.model, self.P, tokens)


def writes(line: str) -> str:
    """What the task GPT writes after a typed line, ``reverse:open file>``; of another line, what to type."""
    name, begin, text = line.removesuffix(ASK).partition(BEGIN)
    room = CONFIG.max_length - len(line) - 2 * len(text) - 3  # after the longest answer
    if not begin or not text or not line.isascii() or END in line or room < 0:
        return "Type a short line of ASCII letters: a name, a colon, a text and >."
    return answer(load_task_gpt(), text, name)


def search_names(wanted: str, text: str = SHOWN[0]) -> str:
    """Which names make the task GPT write what is wanted of a text, of all with one or two letters and any two known.

    Two names are joined by nothing or by one of four marks.
    """
    short = ["".join(letters) for n in (1, 2) for letters in product(ascii_letters, repeat=n)]
    names = short + [a + mark + b for a, mark, b in product(KNOWN, ("", *" +_."), KNOWN)]
    model, found = load_task_gpt().requires_grad_(False), []
    for _, alike in groupby(sorted(names, key=len), len):
        own = list(alike)
        tokens = torch.tensor([[*f"{name}{BEGIN}{text}{ASK}".encode()] for name in own])
        first = model(tokens)[:, -1].argmax(-1).tolist()
        begun = [name for name, letter in zip(own, first, strict=True) if letter == ord(wanted[0])]
        found += [name for name in begun if answer(model, text, name) == wanted]
    return f"{len(names):,} names tried; these make it write {wanted}: {', '.join(found) or 'none'}"


def try_forward(forward: Forward) -> None:
    """Prints whether a forward joins and drops the vectors as it has to."""
    print(
        fault_of_forward(forward)
        or "Right: the logits are those of the text, and the vectors get a gradient."
    )


def fault_of_forward(forward: Forward) -> str:
    """What is wrong with a forward, in a sentence; nothing if a prompt can be trained with it."""
    yours, right = WithPrompt(forward), load_task_gpt()
    add(right, Prompt, n=VECTORS).P.data.copy_(yours.P.data)
    tokens = torch.randint(VOCABULARY, (3, LETTERS), generator=torch.Generator().manual_seed(0))
    joined: list[int] = []
    yours.model.blocks[0].register_forward_pre_hook(lambda _, inputs: joined.append(inputs[0].shape[1]))
    try:
        logits = yours(tokens)
    except Exception as error:
        for said, done in STOPPED.items():
            if found := re.search(said, str(error)):
                return done.format(*found.groups())
        return f"Your forward stopped with {type(error).__name__}: {error}"
    wanted = right(tokens)
    if not isinstance(logits, Tensor) or logits.shape != wanted.shape:
        found = tuple(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
        told = f"Texts of {tuple(tokens.shape)} need logits of {tuple(wanted.shape)}; yours: {found}."
        return told + left_out(logits, joined[0] if joined else None)
    if logits.requires_grad:
        logits.square().sum().backward()
    if yours.P.grad is None or not yours.P.grad.any():
        return "The text does not read the vectors: a place reads only what stands before it."
    if not torch.allclose(logits, wanted, atol=1e-3):
        return "The shapes are right, but these are not the logits of the text's places."
    return ""


def left_out(logits: object, joined: int | None) -> str:
    """Of logits with too many or too few places: how many entered the layers, or how many of these were dropped."""
    if not isinstance(logits, Tensor) or logits.ndim != 3 or len(logits) != 3 or joined is None:
        return ""
    if joined != VECTORS + LETTERS:
        return f" {joined} places enter the layers; {VECTORS} vectors and {LETTERS} letters are {VECTORS + LETTERS}."
    return f" Of {joined} places {joined - logits.shape[1]} are dropped; the {VECTORS} of the vectors have to be."


@cache
def written() -> frozenset[str]:
    """Every letter that some known task writes."""
    own = chain(*texts("train"))
    return frozenset(chain(END, *(known(text) for text in own for known in KNOWN.values())))


class OwnTasks:
    """The learner's tries, and how many of the bets were won."""

    def __init__(self) -> None:
        self.won: dict[tuple[str, ...], bool] = {}  # a task counts once, under its answers
        self.board: list[list[str]] = []

    def train_prompt(self, forward: Forward, task: Task, learns: object, steps: int = 100) -> Shown | None:
        """Prints what the task wants, then what a trained prompt makes of new texts, and who was right.

        Returns a table of all tries. Nothing is trained while dots stand for the bet.

        Args:
            forward: the learner's.
            task: the right answer to a text.
            learns: the bet, "yes" or "no": is the prompt right on more than half of the new texts?
            steps: of training, with 16 texts each.
        """
        if fault := fault_of(task):
            print(fault)
            return None
        for text in SHOWN:
            print(f"wanted: {text} → {task(text)}")
        if fault := fault_of_forward(forward):
            print(fault)
            return None
        if learns not in ("yes", "no"):
            print('Bet first: write "yes" or "no" in place of the dots.')
            return None
        if not 1 <= steps <= 1000:
            print("Take 1 to 1,000 steps.")
            return None
        model, right = tuned(forward, task, steps)
        wanted = tuple(task(text) for text in draw_texts("train", 200, random.Random(1)))
        won = self.won.setdefault(wanted, (right > 0.5) == (learns == "yes"))
        print(f"your bet is {'won' if won else 'lost'}: {sum(self.won.values())} of {len(self.won)} so far")
        new = "".join(sorted(set(chain(*wanted)) - written()))
        first = SHOWN[0]
        self.board.append(
            [task(first), printed(answer(model, first)), new or "none", str(learns), f"{100 * right:.0f} %"]
        )
        return table([f"wanted for {first}", "written", "new letters", "your bet", "right"], self.board)


def train_after(bet: Bet, forward: Forward, *tasks: Task, steps: int = 100) -> None:
    """Trains a prompt on each task and prints what it writes; nothing is trained before the bet is made."""
    if bet.value is None:
        print("Bet first, in the cell above. Then run this cell again.")
        return
    if fault := fault_of_forward(forward):
        print(fault)
        return
    for task in tasks:
        model, right = tuned(forward, task, steps)
        for text in SHOWN:
            print(f"{text}: wanted {task(text)}, written {printed(answer(model, text))}")
        near = "".join(map(chr, torch.cdist(model.P, model.model.head.weight).argmin(1).tolist()))
        typed = printed(answer(model.model, SHOWN[0], near))
        print(f"right on {100 * right:.0f} % of new texts")
        print(f"typed as a name, the letters nearest to its vectors, {printed(near)}, write {typed}\n")


def tuned(forward: Forward, task: Task, steps: int) -> tuple[WithPrompt, float]:
    """Trained vectors, and their share of right answers to new texts."""
    model = WithPrompt(forward)
    tune(model, task, steps)
    return model, right_answers(model, lines(task, draw_texts("test", None, random.Random(0))))


def printed(letters: str) -> str:
    """With a control character as its number."""
    return letters.encode("unicode_escape").decode()


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


def lines(task: Task, asked: list[str]) -> tuple[Tensor, Tensor]:
    """Tokens and targets of the texts, without any name before them."""
    return encode([f"{BEGIN}{text}{ASK}" for text in asked], [task(text) for text in asked])


def tune(model: WithPrompt, task: Task, steps: int) -> None:
    """Trains the vectors as the kept runs do."""
    draw = random.Random(0)
    optimizer = torch.optim.Adam([model.P], lr=RATE)
    schedule = LambdaLR(optimizer, lambda done: warmed_up(done, steps))
    for _ in range(steps):
        tokens, targets = lines(task, draw_texts("train", BATCH, draw))
        optimizer.zero_grad()
        cross_entropy(model(tokens), targets).backward()
        optimizer.step()
        schedule.step()
