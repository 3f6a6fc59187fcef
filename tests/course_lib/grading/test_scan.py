"""What an answer may contain: honest ones pass, and whatever reaches around the checks is named."""

import pytest

from course_lib.grading.scan import plain, scan

IMPORTS = {"checks": "course_lib.grading.judge", "torch": "torch", "dist": "torch.distributed"}
KEPT = {"checks", "torch", "dist", "model"}

HONEST = [
    "import torch\nimport torch.distributed as dist\nfrom torch import nn\nimport torch.nn.functional as F",
    "class Net(torch.nn.Module):\n    def __init__(self):\n        super().__init__()\n        self.w = 1\n"
    "    def __getattr__(self, name):\n        return super().__getattr__(name)",
    "def step(model, input, sum=0):\n    for p in model.parameters():\n        p.grad = p.grad / 2\n    model.x = 1",
    "def f(parent, name, new):\n    setattr(parent, name, new)\n    return type(parent).__name__",
    "from course_lib.runtime import launch\nfrom simulator.inputs.chunks import chunk_sizes\n"
    "import time, math, itertools",
    "def f(x):\n    '''Never `__globals__`.'''\n    print(f'{x!r}')\n    return x.__len__()",
    "def f(model):\n    torch.manual_seed(0)\n    model.eval()\n    return torch.compile(model)",
    "def f(print):\n    max = 3\n    return print + max",
    "from dataclasses import dataclass\n@dataclass\nclass A:\n    x: int = 0\n    def __post_init__(self):\n"
    "        object.__setattr__(self, 'y', 1)",
    "import gc\ndef f(x):\n    gc.collect()\n    return vars(x), x.__dict__, globals()",  # protects nothing
    "total = 0\ntry:\n    total += 1\nexcept ValueError as error:\n    raise RuntimeError from error",
]


@pytest.mark.parametrize("source", HONEST)
def test_honest_answers_pass(source):
    assert scan(source, KEPT, IMPORTS) is None


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("x = 1  # NBVAL_RAISES_EXCEPTION", "the marker `NBVAL_RAISES_EXCEPTION`"),
        ("# NBVAL_SKIP\nx = 1", "the marker `NBVAL_SKIP`"),
        ("#NBVAL_IGNORE_OUTPUT", "NBVAL_IGNORE_OUTPUT"),
        ("# PYTEST_VALIDATE_IGNORE_OUTPUT", "PYTEST_VALIDATE_IGNORE_OUTPUT"),
        ("%reset -f", "the notebook command `%reset`"),
        ("!kill -9 1", "the notebook command `!kill`"),
        ("import os\nos._exit(0)", "imports `os`"),
        ("import threading", "imports `threading`"),
        ("from torch import multiprocessing", "imports `torch.multiprocessing`"),
        ("import torch.multiprocessing as mp", "imports `torch.multiprocessing`"),
        ("from course_lib.grading import judge", "imports `course_lib.grading.judge`"),
        ("import course_lib.grading.judge", "imports `course_lib.grading.judge`"),
        ("from math import *", "imports `*`"),
        ("from . import x", "imports `*` or from `.`"),
        ("exec('x = 1')", "uses `exec`"),
        ("open('/etc/passwd')", "uses `open`"),
        ("__import__('os')", "uses `__import__`"),
        ("get_ipython().ast_transformers.append(1)", "uses `get_ipython`"),
        ("__builtins__", "uses `__builtins__`"),
        ("print = lambda *a: 0", "redefines Python's `print`"),
        ("def isinstance(a, b): return True", "redefines Python's `isinstance`"),
        ("import math as abs", "redefines Python's `abs`"),
        ("def f():\n    global print\n    print = 1", "redefines Python's `print`"),
        ("[print := 1 for _ in range(1)]", "redefines Python's `print`"),
        ("for print in [1]: pass", "redefines Python's `print`"),
        ("del print", "redefines Python's `print`"),
        ("class checks: pass", "redefines `checks`"),
        ("with f() as (checks, y): pass", "redefines `checks`"),
        ("import math as torch", "redefines `torch`"),
        ("match 1:\n    case checks: pass", "redefines `checks`"),
        ("try:\n    pass\nexcept ValueError as model:\n    pass", "redefines `model`"),
        ("checks.ddp.check_05_1 = print", "changes an attribute of `checks`"),
        ("torch.Tensor.__eq__ = print", "changes an attribute of `torch`"),
        ("del torch.allclose", "changes an attribute of `torch`"),
        ("setattr(torch, 'allclose', print)", "changes an attribute of `torch`"),
        ("from course_lib.data_parallel.ddp import assign_buckets", "not with the course's own answer"),
        ("import course_lib.runtime.collectives as c", "imports `course_lib.runtime.collectives`"),
        ("from course_lib.runtime import collectives", "imports `course_lib.runtime.collectives`"),
        ("def f(p):\n    return checks.ddp.deal(p)", "uses `checks`; an answer is judged by the checks"),
        ("torch.save(torch.ones(1), '/tmp/x')", "uses `save`; an answer needs no files"),
        ("import numpy as np\nn = np\nn.fromfile('/tmp/x')", "uses `fromfile`"),
        ("from torch.utils._python_dispatch import TorchDispatchMode", "uses `_python_dispatch`"),
        ("dist.group.WORLD._get_backend(torch.device('cpu'))", "stays where its messages are counted"),
        ("torch.sys.exit()", "reaches for `sys` through `torch`"),
        ("torch.multiprocessing.spawn(print)", "reaches for `multiprocessing` through `torch`"),
        ("import random as r\ndef f(r): r._os._exit(0)", "reaches for `_os`"),
        ("().__class__.__base__.__subclasses__()", "uses `__subclasses__`"),
        ("f.__globals__['checks'] = 1", "uses `__globals__`"),
        ("getattr(f, '__globals__')", "uses `__globals__`"),
        ("'{0.__globals__}'.format(f)", "uses `__globals__`"),
        ("try:\n    1 / 0\nexcept Exception as e:\n    e.__traceback__.tb_frame.f_back", "uses `f_back`"),
    ],
)
def test_what_an_answer_may_not_do_is_named(source, reason):
    assert reason in scan(source, KEPT, IMPORTS)


def test_what_the_solution_itself_uses_is_no_way_around():
    own = "from course_lib.sharded.files import write\nwrite(torch.save)"
    source = "from course_lib.sharded.files import write\ndef f(t, path):\n    torch.save(t, path)"
    assert "imports `course_lib.sharded.files.write`" in scan(source, KEPT, IMPORTS)
    assert scan(source, KEPT, IMPORTS, own) is None


def test_time_is_measured_and_nothing_else_of_the_notebook_is_used():
    assert (
        scan(plain("def f(x):\n    return x\n%time f(3)\nfor _ in 'ab':\n    %time f(4)"), KEPT, IMPORTS)
        is None
    )
    assert "%timeit" in scan(plain("%timeit f(3)"), KEPT, IMPORTS)


def test_an_answer_that_is_not_python_is_a_syntax_error():
    with pytest.raises(SyntaxError):
        scan("def f(:", KEPT, IMPORTS)
