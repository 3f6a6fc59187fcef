"""ResNet-18 (arXiv:1512.03385), with torchvision's parameter names, so that its published weights load."""

from __future__ import annotations

from torch import Tensor, nn


class BasicBlock(nn.Module):
    """Two 3x3 convolutions and a shortcut around them: ``relu(x + f(x))``.

    Where the block changes the shape, a 1x1 convolution (``downsample``) changes the shortcut's too.
    """

    def __init__(self, in_channels: int, channels: int, stride: int = 1) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, channels, 3, stride=stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)
        self.downsample = None
        if stride != 1 or in_channels != channels:
            self.downsample = nn.Sequential(
                nn.Conv2d(in_channels, channels, 1, stride=stride, bias=False), nn.BatchNorm2d(channels)
            )

    def forward(self, x: Tensor) -> Tensor:
        shortcut = x if self.downsample is None else self.downsample(x)
        x = self.relu(self.bn1(self.conv1(x)))  # (batch, channels, height/stride, width/stride)
        return self.relu(self.bn2(self.conv2(x)) + shortcut)


class ResNet18(nn.Module):
    """Eight blocks of two convolutions, a first convolution and a last linear layer: 18 layers with weights.

    Args:
        num_classes: length of the output.
        in_channels: 3 for colour, 1 for the digits.
        small_images: keep the first layers at full resolution. The published stem (7x7 convolution of stride 2,
            then pooling of stride 2) was made for 224x224 images; of an 8x8 digit it leaves 2x2. Here it becomes
            a 3x3 convolution of stride 1, as the paper itself does for the 32x32 images of CIFAR-10
            (section 4.2); only ``conv1.weight`` changes its shape.
        width: channels of the first stage; the others have 2, 4 and 8 times as many. 64 is the published one.

    Input ``(batch, in_channels, height, width)``, output ``(batch, num_classes)``.
    """

    def __init__(
        self, num_classes: int = 1000, in_channels: int = 3, *, small_images: bool = False, width: int = 64
    ) -> None:
        super().__init__()
        for name, value in [("num_classes", num_classes), ("in_channels", in_channels), ("width", width)]:
            if value < 1:
                raise ValueError(f"{name} is {value}; a network needs at least 1.")
        if small_images:
            self.conv1 = nn.Conv2d(in_channels, width, 3, padding=1, bias=False)
        else:
            self.conv1 = nn.Conv2d(in_channels, width, 7, stride=2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.Identity() if small_images else nn.MaxPool2d(3, stride=2, padding=1)
        self.layer1 = self._stage(width, width, stride=1)
        self.layer2 = self._stage(width, 2 * width, stride=2)
        self.layer3 = self._stage(2 * width, 4 * width, stride=2)
        self.layer4 = self._stage(4 * width, 8 * width, stride=2)
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(8 * width, num_classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    @staticmethod
    def _stage(in_channels: int, channels: int, stride: int) -> nn.Sequential:
        return nn.Sequential(BasicBlock(in_channels, channels, stride), BasicBlock(channels, channels))

    def forward(self, x: Tensor) -> Tensor:
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))  # (batch, width, height/4, width/4)
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))  # (batch, 8 * width, height/32, width/32)
        return self.fc(self.avgpool(x).flatten(1))  # (batch, num_classes)
