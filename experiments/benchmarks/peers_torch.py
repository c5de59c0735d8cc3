"""What `peers.py` runs of others: PyTorch alone, pfl and FLGo; it needs NumPy and PyTorch, nothing of jaxafl.

    python peers_torch.py pytorch|pfl|flgo fedavg|fedasync|fedbuff pfl_cnn|femnist_cnn UPDATES

prints `{"updates", "seconds", "accuracy": [[updates, accuracy], ...]}`; evaluations are part of the time.
"""

from __future__ import annotations

import heapq
import json
import os
import pathlib
import sys
import tempfile
import time
from typing import Any

import numpy as np

CLIENTS, SAMPLES, TEST, IN_FLIGHT, BUFFER, COHORT = int(os.environ.get("PEERS_CLIENTS", 200)), 50, 500, 20, 10, 50
STEPS, BATCH, RATE = 5, 10, float(os.environ.get("PEERS_RATE", 0.05))
EVERY = int(os.environ.get("PEERS_EVERY", 50))  # updates between evaluations
SHAPES = {"pfl_cnn": ((32, 32, 3), 10), "femnist_cnn": ((28, 28, 1), 62)}
ALPHA, EXPONENT = 0.6, 0.5  # of FedAsync


def task(name: str) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, int]:
    """Images [n, H, W, C] in [0, 1] of a pattern per class under noise: training and test set, and the classes."""
    shape, classes = SHAPES[name]
    rng = np.random.default_rng(0)
    coarse = rng.random((classes, shape[0] // 4, shape[1] // 4, shape[2]))
    patterns = coarse.repeat(4, axis=1).repeat(4, axis=2)
    count = CLIENTS * SAMPLES + TEST
    y = rng.integers(0, classes, count)
    x = (0.4 * patterns[y] + 0.6 * rng.random((count, *shape))).astype(np.float32)
    return x[TEST:], y[TEST:], x[:TEST], y[:TEST], classes


def network(name: str) -> Any:
    import torch
    from torch import nn

    class Loss(nn.Sequential):
        """With what pfl asks of a network."""

        def loss(self, inputs: Any, targets: Any, eval: bool = False) -> Any:
            self.train(not eval)
            return nn.functional.cross_entropy(self(inputs), targets.long())

        @torch.no_grad()
        def metrics(self, inputs: Any, targets: Any, eval: bool = True) -> Any:
            from pfl.metrics import Weighted

            self.eval()
            return {"accuracy": Weighted(int((self(inputs).argmax(1) == targets).sum()), len(targets))}

    if name == "pfl_cnn":
        layers = [nn.Conv2d(3, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Dropout(0.25)]
        layers += [nn.Flatten(), nn.Linear(12544, 128), nn.ReLU(), nn.Dropout(0.5), nn.Linear(128, 10)]
    else:
        layers = [nn.Conv2d(1, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()]
        layers += [nn.Linear(9216, 62)]
    return Loss(*layers)


def tensors(name: str) -> tuple[Any, ...]:
    import torch

    *arrays, _ = task(name)
    return tuple(torch.tensor(a.transpose(0, 3, 1, 2).copy() if a.ndim == 4 else a) for a in arrays)


def pytorch(method: str, name: str, updates: int) -> dict[str, Any]:
    """An event loop as one writes it: a heap of arrivals, the weights that each client downloaded."""
    import torch

    torch.manual_seed(0)
    rng, (x, y, x_test, y_test), model = np.random.default_rng(0), tensors(name), network(name)
    current, buffer, heap, version, found = _weights(model), [], [], 0, []
    speed = rng.uniform(1, 5, CLIENTS)

    def start(now: float, busy: set[int]) -> None:
        client = int(rng.choice(sorted(set(range(CLIENTS)) - busy)))
        heapq.heappush(heap, (now + speed[client], client, version, current))

    def train(client: int, weights: list[Any]) -> list[Any]:
        model.load_state_dict(dict(zip(model.state_dict(), weights, strict=True)))
        optimizer = torch.optim.SGD(model.parameters(), RATE)
        rows = client * SAMPLES + rng.permutation(SAMPLES)[: STEPS * BATCH].reshape(STEPS, BATCH)
        for row in rows:
            optimizer.zero_grad()
            model.loss(x[row], y[row]).backward()
            optimizer.step()
        return _weights(model)

    begun = time.perf_counter()
    for _ in range(IN_FLIGHT):
        start(0.0, {client for _, client, _, _ in heap})
    for done in range(1, updates + 1):
        now, client, downloaded, weights = heapq.heappop(heap)
        trained = train(client, weights)
        if method == "fedasync":
            weight = ALPHA * (version - downloaded + 1) ** -EXPONENT
            current, version = [a + weight * (b - a) for a, b in zip(current, trained, strict=True)], version + 1
        else:
            weight = (version - downloaded + 1) ** -EXPONENT
            buffer.append([weight * (b - a) for a, b in zip(weights, trained, strict=True)])
            if len(buffer) == BUFFER:
                current = [a + sum(deltas) / BUFFER for a, *deltas in zip(current, *buffer, strict=True)]
                buffer, version = [], version + 1
        start(now, {client for _, client, _, _ in heap})
        if done % EVERY == 0:
            model.load_state_dict(dict(zip(model.state_dict(), current, strict=True)))
            with torch.no_grad():
                model.eval()
                found.append([done, float((model(x_test).argmax(1) == y_test).float().mean())])
    return {"updates": updates, "seconds": time.perf_counter() - begun, "accuracy": found}


def _weights(model: Any) -> list[Any]:
    return [value.clone() for value in model.state_dict().values()]


def pfl(method: str, name: str, updates: int) -> dict[str, Any]:
    """Synchronous rounds of pfl's simulation."""
    import torch

    device, start = ("cuda", torch.distributed.init_process_group) if torch.cuda.is_available() else ("cpu", None)
    if start:  # NCCL refuses two processes on one GPU
        torch.distributed.init_process_group = lambda backend, **rest: start(backend="gloo", **rest)
    from pfl.aggregate.simulate import SimulatedBackend
    from pfl.algorithm.base import NNAlgorithmParams
    from pfl.algorithm.federated_averaging import FederatedAveraging
    from pfl.callback.base import TrainingProcessCallback
    from pfl.data.dataset import Dataset
    from pfl.data.federated_dataset import FederatedDataset
    from pfl.data.sampling import get_user_sampler
    from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams
    from pfl.metrics import Metrics
    from pfl.model.pytorch import PyTorchModel

    x, y, x_test, y_test = (array.to(device) for array in tensors(name))
    torch.manual_seed(0)
    network_, found = network(name), []

    def of_user(user: Any) -> Any:
        part = slice(int(user) * SAMPLES, (int(user) + 1) * SAMPLES)
        return Dataset((x[part], y[part]), user_id=user)

    class Evaluation(TrainingProcessCallback):
        def after_central_iteration(self, aggregate: Any, model: Any, *, central_iteration: int) -> Any:
            done = (central_iteration + 1) * COHORT
            if done % EVERY == 0:
                with torch.no_grad():
                    network_.eval()
                    found.append([done, float((network_(x_test).argmax(1) == y_test).float().mean())])
            return False, Metrics()

    model = PyTorchModel(network_, torch.optim.SGD, torch.optim.SGD(network_.parameters(), 1.0))
    users = FederatedDataset(of_user, get_user_sampler("minimize_reuse", list(range(CLIENTS))))
    begun = time.perf_counter()
    FederatedAveraging().run(
        algorithm_params=NNAlgorithmParams(
            central_num_iterations=updates // COHORT,
            evaluation_frequency=10**6,
            train_cohort_size=COHORT,
            val_cohort_size=None,
        ),
        backend=SimulatedBackend(training_data=users, val_data=users),
        model=model,
        model_train_params=NNTrainHyperParams(
            local_num_epochs=1, local_learning_rate=RATE, local_batch_size=BATCH, local_max_grad_norm=None
        ),
        model_eval_params=NNEvalHyperParams(local_batch_size=None),
        callbacks=[Evaluation()],
    )
    return {"updates": updates // COHORT * COHORT, "seconds": time.perf_counter() - begun, "accuracy": found}


CONFIG = """
import sys
sys.path.insert(0, {here!r})
import torch
import peers_torch
x, y, x_test, y_test = peers_torch.tensors({name!r})
class Set(torch.utils.data.TensorDataset):
    pass
train_data, test_data = Set(x, y), Set(x_test, y_test)
def get_model(): return peers_torch.network({name!r})
"""


def flgo(method: str, name: str, updates: int) -> dict[str, Any]:
    """FLGo's FedAsync and FedBuff with its own event clock. What it has trained is counted by wrapping its clients."""
    import importlib

    import torch

    (_, _, x_test, y_test), found, done = tensors(name), [], [0]
    os.chdir(tempfile.mkdtemp())
    sys.path.insert(0, os.getcwd())
    import flgo
    import flgo.benchmark.partition
    import flgo.simulator
    from flgo.benchmark.toolkits.cv.classification import FromDatasetPipe

    # which torch 2.13 asks for
    FromDatasetPipe.TaskDataset.__getitems__ = lambda self, rows: [self[row] for row in rows]

    torch.set_num_threads(os.cpu_count() or 1)
    pathlib.Path("config.py").write_text(CONFIG.format(here=str(pathlib.Path(__file__).parent), name=name))
    benchmark = flgo.gen_benchmark_from_file("made", "config.py", target_path=".", data_type="cv")
    made = importlib.import_module(benchmark)
    made.visualize = lambda *rest: None  # of 200 clients it takes minutes
    flgo.gen_task_by_(made, flgo.benchmark.partition.IIDPartitioner(num_clients=CLIENTS), "task")
    algorithm = importlib.import_module(f"flgo.algorithm.{method}")

    class Client(algorithm.Client):  # type: ignore[name-defined]
        def train(self, model: Any) -> Any:
            done[0] += 1
            return super().train(model)

    class Server(algorithm.Server):  # type: ignore[name-defined]
        def iterate(self) -> Any:
            before, made = done[0], super().iterate()
            if done[0] // EVERY > before // EVERY:
                with torch.no_grad():
                    self.model.eval()
                    found.append([done[0], float((self.model(x_test).argmax(1) == y_test).float().mean())])
            return made

    Chosen = type(method, (), {"Server": Server, "Client": Client, "__name__": method})
    options = {
        "num_rounds": updates, "num_steps": STEPS, "batch_size": BATCH,
        "learning_rate": RATE, "proportion": IN_FLIGHT / CLIENTS, "train_holdout": 0.0, "sample": "uniform",
        "torch_num_threads": os.cpu_count(), "responsiveness": "UNI-1-5", "eval_interval": -1, "lr_scheduler": -1,
        "no_log_console": True, "algo_para": [BUFFER / CLIENTS, 1.0] if method == "fedbuff" else [ALPHA, 0.0],
    }  # fmt: skip
    runner = flgo.init("task", Chosen, options, Simulator=flgo.simulator.DefaultSimulator)
    runner.register_exit_condition(lambda server: done[0] >= updates)  # its rounds take what arrived in a second
    begun = time.perf_counter()
    runner.run()
    return {"updates": done[0], "seconds": time.perf_counter() - begun, "accuracy": found}


if __name__ == "__main__":
    what, chosen, problem, count = sys.argv[1:5]
    print(json.dumps({"pytorch": pytorch, "pfl": pfl, "flgo": flgo}[what](chosen, problem, int(count))))
