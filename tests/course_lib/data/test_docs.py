import asyncio.queues
import inspect
import json
import subprocess
import sys
import zlib
from collections import Counter

import pytest
import torch

from course_lib.data.docs import corpus, corpus_tokens, docstrings, language_windows, package_task
from course_lib.models.pretrained import load_tokenizer


def test_docstrings_are_those_that_python_itself_shows():
    found = {entry.name: entry for entry in docstrings()}
    for thing in (json, asyncio.queues.Queue, asyncio.queues.Queue.put, inspect.getdoc):
        module = thing.__name__ if inspect.ismodule(thing) else f"{thing.__module__}.{thing.__qualname__}"
        assert found[module].text == inspect.cleandoc(thing.__doc__)
        assert found[module].package == module.split(".")[0]


def test_there_are_thousands_of_docstrings_and_none_of_tests_or_programs():
    entries = docstrings()
    assert len(entries) > 4000
    modules = {part for entry in entries for part in entry.name.split(".")}
    assert not modules & {"idlelib", "turtledemo", "lib2to3", "site-packages"}
    assert not any(entry.package.startswith("_") for entry in entries)


def test_nothing_is_imported_and_another_process_reads_the_same():
    code = (
        "import sys, zlib; from course_lib.data.docs import corpus; print(zlib.crc32(corpus().encode()));"
        "print(sorted({'antigravity', 'this', 'tkinter', 'turtle', 'imaplib', 'wsgiref'} & set(sys.modules)))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    checksum, imported = run.stdout.splitlines()
    assert int(checksum) == zlib.crc32(
        corpus().encode()
    )  # strings hash differently there: no set's order leaks
    assert imported == "[]"


def test_bytes_give_the_corpus_back():
    tokens = corpus_tokens("bytes")
    assert tokens.dtype == torch.int64
    assert len(tokens) > 1_000_000
    assert bytes(tokens.tolist()).decode() == corpus()
    assert "if" in corpus()


def test_word_pieces_are_fewer_and_in_the_vocabulary():
    tokens = corpus_tokens("wordpiece")
    assert tokens.max() < 30522
    assert 2.5 < len(corpus_tokens("bytes")) / len(tokens) < 6
    text = load_tokenizer().decode(tokens[:200].tolist())
    assert "assert" in text  # the first topic of help() is the assert statement
    assert not {101, 102} & set(tokens[:1000].tolist()), "no [CLS] and [SEP] inside running text"


def test_the_target_is_the_next_token():
    tokens = torch.arange(23)
    inputs, targets = language_windows(tokens, 5)
    assert inputs.shape == targets.shape == (4, 5)
    assert torch.equal(targets, inputs + 1)
    assert torch.equal(inputs.flatten(), tokens[:20])
    assert inputs.data_ptr() == tokens.data_ptr(), "windows share the corpus' memory"
    assert language_windows(torch.arange(21), 5)[1][-1, -1] == 20


def test_package_task_is_padded_with_masks():
    task = package_task("train", classes=5, length=32)
    n = len(task.labels)
    assert task.tokens.shape == task.mask.shape == (n, 32)
    assert len(task.packages) == 5
    assert task.labels.unique().tolist() == list(range(5))
    assert (task.tokens[:, 0] == 101).all()  # [CLS]
    assert torch.equal(task.tokens == 0, ~task.mask)  # padding, and nothing else, is 0
    lengths = task.mask.sum(1)
    assert (task.tokens[torch.arange(n), lengths - 1] == 102).all()  # [SEP] ends every text, cut or not
    assert lengths.min() < 32 == lengths.max()


def test_package_task_keeps_the_most_frequent_packages_and_holds_texts_apart():
    train, test = package_task("train"), package_task("test")
    assert train.packages == test.packages
    assert len(test.labels) == (len(train.labels) + len(test.labels)) // 5
    counts = (train.labels.bincount() + test.labels.bincount()).tolist()
    assert counts == sorted(counts, reverse=True)
    usable = Counter(entry.text for entry in docstrings())
    asyncios = [
        e for e in docstrings() if e.package == "asyncio" and len(e.text) >= 20 and usable[e.text] == 1
    ]
    assert counts[train.packages.index("asyncio")] == len(asyncios), "the same fifth each time"


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: corpus_tokens("words"), "tokenizer is 'words'; choose one of bytes, wordpiece"),
        (lambda: language_windows(torch.arange(5), 5), "length is 5; with 5 tokens it runs from 1 to 4"),
        (lambda: package_task("all"), "split is 'all'"),
        (lambda: package_task(classes=1), "classes is 1; choose from 2 to"),
        (lambda: package_task(length=2), "length is 2"),
    ],
)
def test_refuses_with_one_sentence(call, message):
    with pytest.raises(ValueError, match=message):
        call()
