"""The run of ``course_lib/elastic/demo.py`` on one device, without anything that makes it elastic."""

from torch import nn

from course_lib.data.digits import load_digits
from course_lib.elastic.demo import new_state


def digits_alone(steps):
    """The loss of each step, and the weights after the last."""
    images, labels = load_digits()
    state, losses = new_state(len(labels)), []
    for _ in range(steps):
        chosen = state.sampler.next_batch(0, 1)
        state.optimizer.zero_grad()
        loss = nn.functional.cross_entropy(state.model(images[chosen]), labels[chosen])
        loss.backward()
        state.optimizer.step()
        losses.append(loss.item())
    return losses, state.model.state_dict()
