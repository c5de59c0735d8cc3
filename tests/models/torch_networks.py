"""The published networks written in PyTorch, and copying of weights into them."""

from __future__ import annotations

from typing import Any

import numpy as np

Tree = dict[str, Any]


def network(torch: Any, name: str, norm: str = "batch", width: int = 4, groups: int = 2) -> Any:
    """A PyTorch network for images [B, C, H, W]; `norm`, `width` and `groups` are options of the residual ones."""
    nn = torch.nn
    relu, flat, pool, mean = nn.ReLU(), nn.Flatten(), nn.MaxPool2d(2), nn.AdaptiveAvgPool2d(1)
    conv, dense = nn.Conv2d, nn.Linear
    if name == "resnet20":
        return resnet(torch, 3, 3, "pad", norm, width, groups)
    if name == "resnet18":
        return resnet(torch, 4, 2, "project", norm, width, groups)
    layers = {
        "logistic": [flat, dense(784, 10)],
        "mlp": [flat, dense(784, 200), relu, dense(200, 200), relu, dense(200, 10)],
        "cnn_small": [
            conv(1, 10, 5), relu, pool, conv(10, 20, 5), relu, pool,
            flat, dense(320, 50), relu, dense(50, 10),
        ],
        "cnn_over": [
            conv(1, 100, 5), relu, pool, conv(100, 200, 5, bias=False), relu, pool,
            flat, dense(3200, 50), relu, dense(50, 10),
        ],
        "cnn_defedavg": [
            conv(1, 32, 5), relu, pool, conv(32, 64, 5), relu, pool,
            flat, dense(1024, 512), relu, dense(512, 10),
        ],
        "cnn_asyncfeded": [conv(1, 32, 3), relu, conv(32, 64, 3), relu, pool, flat, dense(9216, 10)],
        "cnn_afl": [
            conv(1, 32, 3, padding=1), relu, conv(32, 32, 3, padding=1), relu, conv(32, 32, 3, padding=1), relu,
            mean, flat, dense(32, 10),
        ],
    }  # fmt: skip
    return nn.Sequential(*layers[name])


def resnet(torch: Any, stages: int, blocks: int, shortcut: str, norm: str, width: int, groups: int) -> Any:
    """A residual network of basic blocks for 3 channels and 10 classes."""
    nn = torch.nn

    def normalisation(channels: int) -> Any:
        return nn.BatchNorm2d(channels) if norm == "batch" else nn.GroupNorm(groups, channels)

    class Block(nn.Module):
        def __init__(self, channels: int, features: int, stride: int) -> None:
            super().__init__()
            self.stride = stride
            self.body = nn.Sequential(
                nn.Conv2d(channels, features, 3, stride, 1, bias=False), normalisation(features), nn.ReLU(),
                nn.Conv2d(features, features, 3, 1, 1, bias=False), normalisation(features),
            )  # fmt: skip
            self.project = None
            if channels != features and shortcut == "project":
                self.project = nn.Sequential(
                    nn.Conv2d(channels, features, 1, stride, bias=False), normalisation(features)
                )

        def forward(self, x: Any) -> Any:
            y = self.body(x)
            if self.project is not None:
                x = self.project(x)
            elif self.stride > 1:
                x = x[:, :, :: self.stride, :: self.stride]
                x = torch.cat([x, torch.zeros_like(x)], dim=1)
            return torch.relu(x + y)

    layers: list[Any] = [nn.Conv2d(3, width, 3, 1, 1, bias=False), normalisation(width), nn.ReLU()]
    channels = width
    for stage in range(stages):
        for block in range(blocks):
            features = width * 2**stage
            layers.append(Block(channels, features, 2 if stage > 0 and block == 0 else 1))
            channels = features
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 10))


def copy_weights(torch: Any, target: Any, params: Tree, state: Tree) -> None:
    """Copies parameters and running statistics of a Linen network into a PyTorch network of the same layers."""
    layers = in_order(params)
    channels = None
    with torch.no_grad():
        for (path, source), layer in zip(layers, torch_layers(target), strict=True):
            if "kernel" in source:
                weight = kernel_in_torch(source["kernel"], channels)
                channels = source["kernel"].shape[-1]
            else:
                weight = np.asarray(source["scale"])
            assert weight.shape == tuple(layer.weight.shape), path
            layer.weight.copy_(torch.tensor(weight))
            assert (layer.bias is not None) == ("bias" in source), path
            if "bias" in source:
                layer.bias.copy_(torch.tensor(np.asarray(source["bias"])))
            if hasattr(layer, "running_mean"):
                statistics = at(state["batch_stats"], path)
                layer.running_mean.copy_(torch.tensor(np.asarray(statistics["mean"])))
                layer.running_var.copy_(torch.tensor(np.asarray(statistics["var"])))


def torch_layers(target: Any) -> list[Any]:
    """The layers with weights, in the order of `in_order`."""
    return [layer for layer in target.modules() if getattr(layer, "weight", None) is not None]


def in_order(params: Tree, path: tuple[str, ...] = ()) -> list[tuple[tuple[str, ...], Tree]]:
    """(path, parameters) of the layers of a Linen network in the order of their use."""
    found = []
    for name in sorted(params, key=_place):
        if name.startswith("BasicBlock"):
            found += in_order(params[name], (*path, name))
        else:
            found.append(((*path, name), params[name]))
    return found


def at(tree: Tree, path: tuple[str, ...]) -> Tree:
    for name in path:
        tree = tree[name]
    return tree


def kernel_in_torch(kernel: Any, channels: int | None) -> np.ndarray:
    """HWIO as OIHW; a dense kernel [in, out] as [out, in], its inputs channels first where they are `channels`."""
    kernel = np.asarray(kernel)
    if kernel.ndim == 4:
        return np.ascontiguousarray(kernel.transpose(3, 2, 0, 1))
    if channels and channels != kernel.shape[0]:
        side = round(np.sqrt(kernel.shape[0] / channels))
        kernel = kernel.reshape(side, side, channels, -1).transpose(2, 0, 1, 3).reshape(kernel.shape)
    return np.ascontiguousarray(kernel.T)


def _place(name: str) -> tuple[int, int, bool]:
    """Convolutions, each followed by its normalisation; then blocks; then dense layers."""
    kind, index = name.split("_")
    return ("Conv", "BasicBlock", "Dense").index("Conv" if kind.endswith("Norm") else kind), int(index), kind != "Conv"
