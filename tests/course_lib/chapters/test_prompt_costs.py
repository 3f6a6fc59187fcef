"""What chapter 18 counts of a step: twice the kept bytes for twice the texts, and nothing below the lowest prefix."""

from course_lib.by_hand import prompt as by_hand
from course_lib.chapters.flash_changes import changed
from course_lib.chapters.prompt_costs import step_costs
from course_lib.models.gpt import GPTConfig

SMALL = GPTConfig.tiny(max_length=32)


def test_full_training_counts_all_parameters_and_equal_layers():
    one, two = (step_costs(SMALL, lambda model: None, batch=batch, seq=16) for batch in (1, 2))
    assert one.trained == SMALL.parameters
    assert len(set(one.kept)) == 1
    assert [2 * kept for kept in one.kept] == two.kept
    assert one.flops.backward == 2 * one.flops.forward


def test_layers_below_the_lowest_prefix_keep_nothing():
    mine = changed(by_hand, "in enumerate(model.blocks):", "in list(enumerate(model.blocks))[2:]:")
    kept = step_costs(SMALL, lambda model: mine.add(model, mine.Prefix, n=4), seq=16).kept
    assert kept[:2] == [0, 0]
    assert 0 < kept[2] < kept[3]


def test_a_prompt_of_gpt2_costs_a_tenth_more_than_no_places_before_900_tokens():
    def step(kind, tokens):
        return sum(step_costs(GPTConfig(), lambda model: by_hand.add(model, kind, n=100), seq=tokens).flops)

    beside = [step(by_hand.Prompt, tokens) / step(by_hand.Prefix, tokens) for tokens in (100, 800, 900)]
    assert beside[0] > 1.7
    assert beside[1] > 1.1 > beside[2]


def test_the_head_computes_the_text_alone():
    def step(kind):
        return step_costs(SMALL, lambda model: by_hand.add(model, kind, n=8), seq=16)

    with_prompt, with_prefix = step(by_hand.Prompt), step(by_hand.Prefix)
    forward = 2 * 16 * SMALL.hidden_size * SMALL.vocab_size
    assert with_prompt.head == with_prefix.head == 2 * forward
    assert sum(with_prompt.flops) > sum(with_prefix.flops) > with_prefix.head
