"""The table ``[compression]``: gradients are sent as it says, and what cannot be is refused in one sentence."""

from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

from course_lib.data.sharding import split_range
from course_lib.observe.ledgers.traffic import record_traffic
from course_lib.parallelize import mesh_axes, parallelize
from course_lib.runtime import launch
from course_lib.runtime.mesh import make_mesh
from course_lib.train.cli import _read, main
from course_lib.train.config import read_config
from course_lib.train.run import train_step

SMALL = ["--layers", "2", "--hidden", "16", "--heads", "2", "--sequence", "16", "--global-batch", "4"]
TWO_RANKS = ["--plan", "dp=2,optimizer=sgd", "--lr", "0.1"]


def job_of(path, text, *words):
    path.write_text(text, encoding="utf-8")
    with main.make_context("train", ["--config", str(path), *words]) as context:
        return _read(context.params)[0]


def two_steps(jobs):
    """Of each job the losses and gradient norms of two steps, and the bytes that this rank sends in them."""
    found, sent = {}, {}
    batch = torch.randint(256, (2, 4, 16), generator=torch.Generator().manual_seed(0))
    for name, job in jobs.items():
        model, optimizer = parallelize(
            job.make_model(),
            job.plan,
            make_mesh(mesh_axes(job.plan)),
            compression=job.compression,
            lr=job.lr,
        )
        own = split_range(4, model.data_rank, model.data_ranks)
        with record_traffic() as log:
            found[name] = [
                train_step(model, optimizer, [tensor[own.start : own.stop] for tensor in batch], job.clip)
                for _ in range(2)
            ]
        sent[name] = log.traffic.sent
    return found, sent


def test_compressed_gradients_take_fewer_bytes_and_training_goes_on(tmp_path):
    ways = {
        "none": "",
        "bytegrad": "",
        "top-k": "density = 1.0\nerror_feedback = false",
        "random-k": "density = 0.1\nwarmup_steps = 1",
        "powersgd": "matrix_rank = 2\nwarm_start = true",
        "one-bit": "warmup_steps = 1",
    }
    jobs = {
        method: job_of(
            tmp_path / "run.toml", f'[compression]\nmethod = "{method}"\n{settings}', *SMALL, *TWO_RANKS
        )
        for method, settings in ways.items()
    }
    assert jobs["none"].compression is None
    (found, sent), (other, _) = launch(two_steps, 2, args=(jobs,))
    plain = found["none"]
    for method, (first, second) in found.items():
        assert [first, second] == [pytest.approx(step, rel=1e-5) for step in other[method]], "on all ranks"
        assert first[0] == pytest.approx(plain[0][0], rel=1e-5), f"{method}: before the first update"
        assert second[0] < first[0], f"{method}: the same samples again"
    assert found["top-k"] == [pytest.approx(step, rel=1e-4) for step in plain], "nothing is left out"
    assert found["bytegrad"] == [pytest.approx(step, rel=1e-2) for step in plain]
    assert sent["bytegrad"] < 0.3 * sent["none"]
    assert sent["powersgd"] < 0.6 * sent["none"]
    for method in ("random-k", "one-bit"):  # a plain step, and then a small one
        assert found[method][0] == pytest.approx(plain[0], rel=1e-5)
        assert sent["none"] / 2 < sent[method] < 0.6 * sent["none"]


def test_the_file_in_the_documentation_can_be_trained(tmp_path):
    page = (Path(__file__).parents[3] / "docs" / "training.md").read_text(encoding="utf-8")
    table = next(part for part in page.split("```") if part.startswith("toml\n[compression]"))
    job = job_of(tmp_path / "run.toml", table.removeprefix("toml"), "--plan", "dp=2")
    assert job.compression == {"method": "powersgd", "matrix_rank": 4}
    assert read_config("llama-powersgd").compression == job.compression


@pytest.mark.parametrize(
    ("settings", "plan", "sentence"),
    [
        (
            "method = 'top'",
            "",
            "compression.method must be one of none, bytegrad, one-bit, top-k, random-k, powersgd, not 'top'",
        ),
        ("method = 'one-bit-adam'", "", "top-k, random-k, powersgd, not 'one-bit-adam'"),
        (
            "method = 'top-k'\nk = 3",
            "",
            "compression has no key k; its keys are density, error_feedback, method",
        ),
        (
            "method = 'top-k'\nerror_feedback = 1",
            "",
            "compression.error_feedback must be true or false, not 1",
        ),
        ("method = 'top-k'\ndensity = 2.0", "dp=2", "density must be"),
        (
            "method = 'powersgd'\nmatrix_rank = 0",
            "dp=2",
            "compression.matrix_rank must be a whole number of at least 1, not 0",
        ),
        ("method = 'bytegrad'", "", "dp must be at least 2 with compression, not 1"),
        ("method = 'bytegrad'", "dp=2,zero=1", "zero must be 0 with compression, not 1"),
        ("method = 'bytegrad'", "dp=2,pp=2", "pp must be 1 with compression, not 2"),
        ("method = 'bytegrad'", "dp=2,tp=2", "tp must be 1 with compression, not 2"),
        ("method = 'bytegrad'", "dp=2,overlap=none", "overlap must be gradients with compression, not none"),
        (
            "method = 'bytegrad'",
            "dp=2,precision=bf16",
            "precision must be fp32 or mixed with compression, not",
        ),
        ("method = 'one-bit'", "dp=2", "optimizer must be sgd or momentum with one-bit, not adam"),
    ],
)
def test_what_cannot_be_compressed_is_told_in_one_sentence(tmp_path, settings, plan, sentence):
    path = tmp_path / "run.toml"
    path.write_text(f"[compression]\n{settings}\n", encoding="utf-8")
    result = CliRunner().invoke(main, ["--config", str(path), *SMALL, "--plan", plan or "dp=1"])
    assert result.exit_code == 2, result.output
    assert sentence in result.output
    assert "Traceback" not in result.output
