import pytest
import torch
from transformers import ResNetConfig, ResNetForImageClassification

from course_lib.models.resnet import ResNet18


def their_name(name: str) -> str:
    """Where transformers' ResNet keeps the parameter that torchvision calls ``name``."""
    parts = name.split(".")
    if parts[0] == "fc":
        return f"classifier.1.{parts[1]}"
    if parts[0] in ("conv1", "bn1"):
        kind = "convolution" if parts[0] == "conv1" else "normalization"
        return f"resnet.embedder.embedder.{kind}.{parts[1]}"
    stage, block, part = int(parts[0].removeprefix("layer")) - 1, parts[1], parts[2]
    prefix = f"resnet.encoder.stages.{stage}.layers.{block}"
    if part == "downsample":
        return f"{prefix}.shortcut.{'convolution' if parts[3] == '0' else 'normalization'}.{parts[4]}"
    kind = "convolution" if part.startswith("conv") else "normalization"
    return f"{prefix}.layer.{int(part[-1]) - 1}.{kind}.{parts[3]}"


@pytest.fixture(scope="module")
def theirs() -> ResNetForImageClassification:
    """An implementation that shares no code with ours, with BatchNorm statistics that are not the trivial ones."""
    torch.manual_seed(0)
    config = ResNetConfig(
        embedding_size=64,
        hidden_sizes=[64, 128, 256, 512],
        depths=[2, 2, 2, 2],
        layer_type="basic",
        num_labels=1000,
    )
    model = ResNetForImageClassification(config)
    for module in model.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            torch.nn.init.uniform_(module.running_mean, -0.1, 0.1)
            torch.nn.init.uniform_(module.running_var, 0.5, 2)
            torch.nn.init.uniform_(module.weight, 0.5, 1.5)
    return model


def test_outputs_and_gradients_equal_an_independent_resnet(theirs):
    ours = ResNet18()
    state = theirs.state_dict()
    ours.load_state_dict({name: state.pop(their_name(name)) for name in ours.state_dict()})
    assert not state, "every parameter and buffer of the other network has its place in ours"

    images = torch.randn(2, 3, 64, 64)
    ours.eval(), theirs.eval()
    with torch.no_grad():
        torch.testing.assert_close(ours(images), theirs(images).logits, rtol=1e-5, atol=1e-5)

    ours.train(), theirs.train()
    ours(images).square().mean().backward()
    theirs(images).logits.square().mean().backward()
    gradients = {name: p.grad for name, p in theirs.named_parameters()}
    for name, parameter in ours.named_parameters():
        torch.testing.assert_close(parameter.grad, gradients[their_name(name)], rtol=1e-4, atol=1e-6)


def test_equals_torchvision_where_it_works():
    try:
        from torchvision.models import resnet18
    except (ImportError, RuntimeError) as error:  # a torchvision built for another torch raises RuntimeError
        pytest.skip(f"torchvision cannot be used here: {error}")
    theirs, ours = resnet18(), ResNet18()
    assert [(k, v.shape) for k, v in ours.state_dict().items()] == [
        (k, v.shape) for k, v in theirs.state_dict().items()
    ]
    ours.load_state_dict(theirs.state_dict())
    images = torch.randn(2, 3, 64, 64)
    torch.testing.assert_close(ours(images), theirs(images), rtol=1e-5, atol=1e-5)  # in training mode
    torch.testing.assert_close(ours.eval()(images), theirs.eval()(images), rtol=1e-5, atol=1e-5)


def test_names_and_size_are_torchvisions():
    state = ResNet18().state_dict()
    # Facts of torchvision's resnet18: 62 parameters of 11,689,512 numbers, and 20 BatchNorms with 3 buffers each.
    assert len(state) == 122
    assert sum(p.numel() for p in ResNet18().parameters()) == 11_689_512
    assert {"conv1.weight", "bn1.num_batches_tracked", "layer4.0.downsample.1.running_var", "fc.bias"} <= set(
        state
    )
    assert state["layer2.0.downsample.0.weight"].shape == (128, 64, 1, 1)
    assert "layer1.0.downsample.0.weight" not in state


def test_small_images_keep_the_names_and_the_resolution():
    usual, small = ResNet18(10, 1), ResNet18(10, 1, small_images=True)
    differing = {k for k, v in small.state_dict().items() if v.shape != usual.state_dict()[k].shape}
    assert list(usual.state_dict()) == list(small.state_dict())
    assert differing == {"conv1.weight"}
    sizes = []
    for stage in (small.layer1, small.layer2, small.layer3, small.layer4):
        stage.register_forward_hook(lambda _module, _inputs, output: sizes.append(tuple(output.shape[1:])))
    assert small(torch.randn(2, 1, 8, 8)).shape == (2, 10)
    assert sizes == [(64, 8, 8), (128, 4, 4), (256, 2, 2), (512, 1, 1)]


@pytest.mark.parametrize("argument", ["num_classes", "in_channels", "width"])
def test_refuses_zero(argument):
    with pytest.raises(ValueError, match=f"{argument} is 0"):
        ResNet18(**{argument: 0})
