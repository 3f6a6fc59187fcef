"""Numbers of trained parameters that papers print, from shapes alone. The exact ones stand here once more, by hand."""

import pytest

from course_lib.comparison.finetuning.published_counts import Count, counts_table, published_counts

EXACT = {  # (model, printed): trained
    ("GPT-3 175B", "37.7 M"): 2 * 96 * 2 * 8 * 12288,
    ("GPT-3 175B", "4.7 M"): 2 * 96 * 2 * 1 * 12288,
    ("GPT-3 175B", "18 M"): 96 * 2 * 8 * 12288,
    ("RoBERTa base", "0.3 M"): 2 * 12 * 2 * 8 * 768,
    ("RoBERTa large", "0.8 M"): 2 * 24 * 2 * 8 * 1024,
    ("GPT-2 medium", "0.35 M"): 2 * 24 * 2 * 4 * 1024,
    ("LLaMA-7B", "1.2 M"): 30 * 10 * 4096,
    ("T5-XXL", "20,480"): 5 * 4096,
}


def test_the_printed_figures_follow_from_the_shapes_or_it_is_said_why_not():
    counts = published_counts()
    computed = {(c.model, c.printed): c.computed for c in counts}
    assert {key: computed[key] for key in EXACT} == EXACT
    assert EXACT["GPT-3 175B", "37.7 M"] == 37_748_736
    differ = {(c.model, c.printed): c.note for c in counts if not c.agrees}
    assert set(differ) == {("GPT-2 medium", "0.35 M"), ("BERT large on GLUE", "3.6 %")}
    assert all(differ.values())
    text = str(counts_table("adapters", "LLaMA-Adapter"))
    assert "1.23 M" in text
    assert "cannot be computed" in text
    assert "GPT-3" not in text
    [bitfit] = published_counts("BitFit")
    assert f"{24 * (1024 + 4096):,} of " in bitfit.formula


def test_equal_means_less_than_one_in_the_last_printed_digit():
    def agrees(computed, printed):
        return Count("", "", "", computed, printed, "").agrees

    assert agrees(37_748_736, "37.7 M")
    assert agrees(18_874_368, "18 M")  # cut off
    assert not agrees(37_850_000, "37.7 M")
    assert agrees(20_480, "20,480")
    assert not agrees(20_481, "20,480")
    assert not agrees(None, "3.6 %")


def test_an_unknown_method_gets_one_sentence():
    with pytest.raises(ValueError, match="no figure of 'IA3' is kept; choose from LoRA, adapters"):
        published_counts("IA3")
