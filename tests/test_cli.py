"""The command line: what command lines describe, bad ones, and whole commands."""

from __future__ import annotations

import dataclasses
import functools
import importlib.metadata
import pathlib
import re
import shlex
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import xarray as xr

import jaxafl as afl
from jaxafl import cli
from jaxafl.cli import main, simulate
from jaxafl.cli.catalogue import KINDS, offered
from jaxafl.cli.expressions import parsed
from jaxafl.cli.line import Run, prepared
from jaxafl.cli.show import show_result
from jaxafl.server import Server
from tests.extensions.duration import every_so_often

ROOT = pathlib.Path(__file__).parent.parent
DATA = "--data synthetic --data.max-size 60 --data.clients 6 --model logistic --no-progress"
SMALL = DATA.split()
FREE = ["--server", "fedasync", "--clock.concurrency", "3", "--server-steps", "6", "--client.steps", "2"]
KNOWN: dict[str, Any] = {}  # one of equal data or models, so that their training is traced once
USUAL = "Client(learning_rate=0.05, steps=10)"
TEN = "free_running(concurrency=10, durations=uniform(low=1, high=5)"
COMMANDS = {  # command -> local training, server, clock and axes
    "run --server fedbuff --clock.period 2.0": f"{USUAL} fedbuff() {TEN}, buffer=None, period=2.0)",
    "run --server fedbuff --clock.rate 2": f"{USUAL} fedbuff() free_running(durations=uniform(low=1, high=5), "
    "buffer=10, rate=2)",
    "run --server fadas --data.clients 4 --server.delay-scaling eq4": f"{USUAL} fadas(delay_scaling='eq4') "
    "free_running(concurrency=4, durations=uniform(low=1, high=5), buffer=10)",
    "run --server fedbuff --data.clients 4 --clock.dispatch step": f"{USUAL} fedbuff() free_running(concurrency=4, "
    "durations=uniform(low=1, high=5), buffer=4, dispatch='step')",
    "run --server mifa --clock.dispatch step": f"{USUAL} mifa() {TEN}, dispatch='step')",
    "run --server mu2": f"Client(learning_rate=1.0, steps=1, correction=storm()) mu2() {TEN})",
    "run --server fedbuff --server.staleness none --client.batch_size=null": "Client(learning_rate=0.05, "
    f"steps=10, batch_size=None) fedbuff(staleness='none') {TEN}, buffer=10)",
    "run --data.clients 3 --client.optimizer adamw --client.weight-decay 0.5 --client.steps [1,2,3]": "Client("
    "optimizer=adamw, weight_decay=0.5, learning_rate=0.05, steps=(1, 2, 3)) fedavg() synchronous()",
    'run --client.upload "chain(clip_by_global_norm(1.0), few=top_k(share=0.01))" --client.correction "feddyn(0.1)"': ""
    "Client(learning_rate=0.05, steps=10, upload=chain(clip_by_global_norm(max_norm=1.0), few=top_k(share=0.01)), "
    "correction=feddyn(alpha=0.1)) fedavg() synchronous()",
    'run --clock.durations "link(up=1e6, down=5e6) + 3" --clock.hours "available(22, 6, zones=4)"': f"{USUAL} fedavg() "
    "synchronous(durations=link(up=1000000.0, down=5000000.0) + constant(value=3), "
    "hours=available(begin=22, end=6, zones=4))",
    'run --server mifa --clock warm_up --clock.clock "free_running(concurrency=3, durations=uniform(1, 5))"': f"{USUAL}"
    " mifa() warm_up(clock=free_running(concurrency=3, durations=uniform(low=1, high=5)))",
    "sweep --server fedbuff --axis server.learning_rate=0.3,1 --axis seed=0:2": f"{USUAL} "
    f"fedbuff(learning_rate=0.3) {TEN}, buffer=10) server.learning_rate: 0.3, 1; seed: 0, 1",
    'sweep --server fedbuff --attack "sign_flip(3, clients=0.2)" --axis "server.aggregate=none,median()" '
    "--axis attack.clients=0,0.1": f"{USUAL} fedbuff(aggregate=median()) {TEN}, buffer=10) server.aggregate: None, "
    "median(); attack.clients: 0, 0.1; seed: 0",
    "sweep --axis clock.durations=1,uniform(1,2) --axis client.optimizer=adam,sgd --axis client.steps=[1,2],4": "Client"
    "(optimizer=adam, learning_rate=0.05, steps=(1, 2)) fedavg() synchronous(durations=constant(value=1)) "
    "clock.durations: constant(value=1), uniform(low=1, high=2); client.optimizer: adam, sgd; "
    "client.steps: [1, 2], 4; seed: 0",
    "sweep --server fedprox --axis client.proximal=0.1,30 --axis clock.replacement=False,true --clock.cohort 3 --axis "
    "client.epochs=none,2 --axis server.weights=uniform": "Client(learning_rate=0.05, epochs=2, proximal=0.1) "
    "fedavg(weights='uniform') synchronous(cohort=3) client.proximal: 0.1, 30; clock.replacement: False, True; "
    "client.epochs: None, 2; server.weights: 'uniform'; seed: 0",
}


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, Any, dict[str, Any]]]:
    """What commands call, with simulation, further arguments and options; nothing runs."""
    made: list[tuple[Any, Any, dict[str, Any]]] = []

    def recorded(function: Any) -> Any:
        @functools.wraps(function)  # whose arguments the commands look up
        def record(simulation: Any, *more: Any, **options: Any) -> None:
            made.append((simulation, more, options))
            raise KeyboardInterrupt

        return record

    owners = {"run_sweep": simulate, "outlook": simulate, "compare": afl.study, "tune": afl.study}
    for name, owner in {**owners, "run": afl.Simulation}.items():
        monkeypatch.setattr(owner, name, recorded(getattr(owner, name)))
    return made


def simulation(*arguments: str) -> afl.Simulation:
    return prepared(simulate.run, Run, arguments)[1]


def one_line(capsys: pytest.CaptureFixture[str]) -> str:
    error = capsys.readouterr().err
    assert error.startswith("jaxafl: error: ") and error.count("\n") == 1
    return error


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_line_describes_what_python_would(command: str, calls: Any) -> None:
    name, *words = shlex.split(command)
    sized = ["--data", "synthetic", "--data.max-size", "60"]
    sized += ["--data.clients", "12"] if "--data.clients" not in words else []
    assert main([name, *sized, *words]) == 130
    sim, more, _ = calls[0]
    axes = more[0] if more else {}
    shown = {path: ", ".join(getattr(one, "__name__", repr(one)) for one in values) for path, values in axes.items()}
    listed = "; ".join(f"{path}: {values}" for path, values in shown.items())
    assert " ".join([repr(sim.client), repr(sim.server), repr(sim.clock), *[listed] * bool(axes)]) == COMMANDS[command]


def shell_lines() -> list[str]:
    """The commands in the shell blocks of README, docs and experiments."""
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "experiments").rglob("*.md")]
    blocks = [block for page in pages for block in re.findall(r"```bash\n(.*?)```", page.read_text("utf-8"), re.S)]
    lines = [line.partition(" #")[0].strip() for block in blocks for line in block.replace("\\\n", " ").splitlines()]
    return sorted({line for line in lines if re.match("jaxafl (run|sweep|compare|tune) ", line)})


@pytest.mark.parametrize("line", shell_lines())
def test_the_shell_blocks_of_the_pages_are_read(line: str, calls: Any, tmp_path: Any, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    if "--download" in line or "cifar10" in line or "mymodule" in line:
        pytest.skip("needs files")
    assert main(shlex.split(line)[1:]) == 130 and calls


@pytest.mark.parametrize("name", sorted(offered("servers")))
def test_every_server_runs_with_the_defaults_on_an_asynchronous_clock_if_it_can(name: str) -> None:
    required = {
        "bernoulli": "--clock.upload 0.5",
        "interrupting": "--clock.period 4 --clock.contacted 2",
        "sampled": "--clock.drawn 2",
        "semi_async": "--clock.fraction 0.5 --clock.lag 2",
        "stale_rounds": "--clock.participants 2 --clock.max-staleness 1",
        "tiers": "--clock.regions 0 0 0 1 1 1",
        "regional_rounds": "--clock.regions 0 0 0 1 1 1",
    }
    clocks = offered("servers")[name].clocks
    usual = next((one for one in ("free_running", "synchronous", *clocks) if one in clocks), "")
    made = simulation(*SMALL, "--server", name, *required.get(usual, "").split())
    assert made.clock.name == usual
    given = {part: KNOWN.setdefault(repr(one), one) for part, one in (("data", made.data), ("model", made.model))}
    dataclasses.replace(made, **given).check()


@pytest.mark.parametrize(
    ("preset", "words", "given"),
    [
        (afl.presets.ringmaster, {"N": 5, "R": 3}, {"clients": 5, "max_staleness": 3}),
        (afl.presets.rennala, {"N": 5, "B": 4}, {"clients": 5, "batch": 4}),
        (afl.presets.fedvarp, {"n": 4}, {"cohort": 4}),
        (afl.presets.async_diloco, {"N": 3, '"grace(W)"': "grace(0.5)"}, {"clients": 3, "window": 0.5}),
        (
            afl.presets.naive_optimal,
            {"M": 2, "constant(TIMES)": "constant([2.5, 1.0, 3.0])", "@WEIGHTS.npy": "@{folder}/weights.npy"},
            {"times": [2.5, 1.0, 3.0], "fastest": 2},
        ),
    ],
)
def test_the_command_line_of_a_preset_gives_its_server_and_clock(preset, words, given, tmp_path, capsys):
    text = re.search("In a shell: `(.*?)`", " ".join(preset.__doc__.split()))[1]
    np.save(tmp_path / "weights.npy", [1.0, 1.0, 0.0])
    arguments = [str(words.get(word, word)).format(folder=tmp_path) for word in text.split()]
    assert main(["run", "--server", preset.__name__]) == 2
    assert f"{preset.__name__} is a server on a certain clock; write {text}" in one_line(capsys)
    if "times" not in given:
        arguments += ["--clock.durations", "uniform(1, 5)"]
        given = given | {"durations": afl.clock.uniform(1, 5)}
    made = simulation(*SMALL, "--data.clients", "3", *arguments)
    expected = preset(**given)
    assert (repr(made.server), repr(made.clock)) == (repr(expected.server), repr(expected.clock))
    np.testing.assert_array_equal(getattr(made.clock, "weights", None), getattr(expected.clock, "weights", None))


@pytest.mark.parametrize("name", ["synthetic", "shakespeare", "glue_sst2", "cifar10", "femnist"])
def test_the_usual_network_takes_what_the_data_are(name: str, capsys: Any) -> None:
    usual = {"synthetic": "logistic", "shakespeare": "char_lstm", "glue_sst2": "bert"}
    assert main(["run", "--data", name, "--help"]) == 0
    shown = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert f"by default one for the data; or MODULE:NAME (default: {usual.get(name, 'cnn_small')})" in shown


def test_a_number_per_client_comes_from_a_file(tmp_path: pathlib.Path, monkeypatch: Any, capsys: Any) -> None:
    monkeypatch.chdir(tmp_path)
    rates = [0.1, 0.2, 0.05, 0.3]
    np.save("rates.npy", rates)
    np.save("sizes.npy", [8, 16, 4, 2])
    np.save("words.npy", np.array([None]))
    np.save("short.npy", rates[:3])
    pathlib.Path("bad.txt").write_text("a b")
    data = [*SMALL, "--data.clients", "4"]
    made = simulation(
        *data, "--client.learning-rate", "@rates.npy", "--client.batch_size=@sizes.npy", "--client.momentum=@rates.npy",
        "--client.epochs", "@sizes.npy", "--server", "fedprox", "--client.proximal", "@rates.npy",
    )  # fmt: skip
    made.check()
    np.testing.assert_array_equal([*made.client.hyperparameters.values()], [rates, rates])
    assert made.client.batch_size == made.client.epochs == (8, 16, 4, 2) and made.client.steps is None
    assert made.client.proximal.tolist() == rates
    for file in ("@short.npy", "@none.npy", "@bad.txt", "@words.npy"):
        assert main(["run", *data, "--client.learning-rate", file]) == 2
        said = "one number per client" if file == "@short.npy" else "cannot be read"
        assert said in " ".join(capsys.readouterr().err.replace("│", " ").split())


def test_a_file_gives_the_simulation_that_a_shell_cannot_say(tmp_path, monkeypatch, capsys, calls):
    monkeypatch.setattr(sys, "path", [*sys.path])
    file = tmp_path / "experiment_of_mine.py"
    file.write_text("from tests.problems import classifier\n\nsimulation = classifier()\n")
    assert main(["run", str(file), "--seed", "3", "--server-steps", "7"]) == 130
    assert main(["sweep", str(file), "--axis", "server.learning_rate=0.2,0.5", "--axis", "seed=0:2"]) == 130
    (run, _, how), (swept, axes, _) = calls
    assert (how["seed"], how["server_steps"]) == (3, 7) and run.server == swept.server == afl.server.fedbuff()
    assert axes == ({"server.learning_rate": [0.2, 0.5], "seed": [0, 1]},)
    assert main(["run", str(file), "--server", "fedavg"]) == 2
    assert "Unrecognized options: --server" in capsys.readouterr().err
    (tmp_path / "nothing_of_mine.py").write_text("simulation = 3")
    assert main(["run", str(tmp_path / "nothing_of_mine.py")]) == 2
    assert "simulation is 3; expected a jaxafl.Simulation" in one_line(capsys)


def test_options_of_runs_reach_them(calls: Any) -> None:
    given = "--until time=60,accuracy=0.9 --per-client --lanes 4 --eval-every 5 --devices 1"
    assert main(["run", *SMALL, *given.split(), "--checkpoint-every", "10"]) == 130
    how = calls[0][2]
    assert how["until"] == {"time": 60, "accuracy": 0.9}
    assert (how["lanes"], how["eval_every"], how["devices"], how["server_steps"]) == (4, 5, 1, None)
    assert (how["diagnostics"], how["checkpoint_every"]) == (("per_client",), 10)


def test_methods_differ_in_their_lengths_and_parts(calls: Any) -> None:
    both = ["--method", "A=--server fedbuff --server-steps 10", "--method", "B=--server fedasync --eval-every 25"]
    assert main(["compare", *SMALL, "--server-steps", "50", *both, "--seeds", "2"]) == 130
    methods, (seeds,), how = calls[0]
    assert {name: one.server.name for name, one in methods.items()} == {"A": "fedbuff", "B": "fedasync"}
    assert how["server_steps"] == {"A": 10, "B": 50} and how["eval_every"] == {"A": None, "B": 25} and seeds == 2


def test_a_plan_has_the_length_of_its_server_steps(calls: Any, capsys: Any) -> None:
    plan = [*SMALL, "--axis", "server.learning_rate=0.5,1", "--clock.durations", "2", "--plan"]
    for steps in (["--server-steps", "7"], []):
        assert main(["sweep", *plan, *steps]) == 130
    assert [how["server_steps"] for _, _, how in calls] == [7, 200]
    capsys.readouterr()
    assert main(["sweep", *plan, "--until", "time=60"]) == 2
    assert "leave --until out" in one_line(capsys)


BAD = [  # command line, and what stands in the message
    ("bogus", "Unrecognized options: bogus"),
    ("run --server fedfoo", "there is no server 'fedfoo'; did you mean 'fedfa'? Choose from ace, "),
    (f"run {DATA} --seed=-1", "seed must be at least 0"),
    (f"run {DATA} --clock.durations uniform(1)", "missing 1 required positional argument: 'high'"),
    (f"run {DATA} --clock.durations unifrom(1,5)", "did you mean 'uniform'?"),
    (f"run {DATA} --client.learning-rate abc", "'abc' is not a number"),
    (f"run {DATA} --partition iid", "leave --partition"),
    (f"run {DATA} --sever-steps 3", "--server-steps {None}|INT"),
    (f"run {DATA} --clock.buffer 3", "Unrecognized options: --clock.buffer, 3"),
    ("run --server audg", "--clock.upload FLOAT"),
    (f"run {DATA} --until time=5,time=9", "each name once"),
    (f"run {DATA} --server absent_module:halved", "No module named 'absent_module'"),
    (f"sweep {DATA}", "at least one axis"),
    (f"sweep {DATA} --axis server.learning_rate=1,-1", "must be >= 0, got -1"),
    (f"sweep {DATA} --axis attack=none,clip", "in the sweep at attack=clip"),
    (f"sweep {DATA} --axis server.bogus=1", "no option 'bogus' in the path 'server.bogus'"),
    (f"sweep {DATA} --axis clock.durations.low=1 --clock.durations 3", "no option 'low'"),
    (f"sweep {DATA} --axis seed=0:2 --seed 7", "beside --seed"),
    (f"sweep {DATA} --axis client.batch-size=8 --client.batch_size=7", "beside --client.batch-size"),
    (f"sweep {DATA} --axis client.learning_rate=1/3,0.1", "'1/3' is not a number"),
    *((f"sweep {DATA} --axis {axis}", "--axis") for axis in ("seed", "seed=", "=1", "seed=3:3", "seed=1,,2")),
    (f"sweep {DATA} --axis seed=a,b", "'a' is not a number"),
    (f"sweep {DATA} --axis seed=0:2 --workers 2 --dask x --folder x", "utually exclusive"),
    (f"compare {DATA}", "compare needs methods: write --method NAME="),
    (f"compare {DATA} --method 'A=--server fedbuff --until time=9'", "--until is one for all methods"),
    (f"tune {DATA} --axis client.learning_rate=0.1,0.2", "neither trained on nor tested on"),
    ("plot absent.nc --output result.png", "No such file or directory: 'absent.nc'"),
    ("plot --output result.png", "there is no result to show: name a file"),
    ("resume .", "is not the --folder of a command"),
    ("quickstart --budget 7", "positive multiple of 100"),
]


@pytest.mark.parametrize(("command", "said"), BAD)
def test_a_bad_command_line_is_answered_before_anything_runs(command, said, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(afl.study, "compare", None)  # nothing is run
    assert main(shlex.split(command) if "'A" in command else command.split()) == 2
    error = capsys.readouterr().err
    plain = " ".join(error.replace("│", " ").replace("| ", " ").replace(" |", " ").split())
    assert said in plain and "Traceback" not in error
    assert [one.name for one in tmp_path.iterdir() if one.name != "x"] == []


@pytest.mark.parametrize(
    "text",
    [
        "", "open('x')", "().__class__", "uniform.__init__(1, 2)", "2 ** 3", "lambda: 1", "[1]", "uniform(*[1, 2])",
        "uniform(**{'low': 1})", "'a' * 3", "x", "uniform(1, 2)\x00", "1 / 0", "-" * 5000 + "1", "constant([1] + 2)",
        "uniform(1, 2) / uniform(1, 2)", "os:system('true')", "__import__('os')",
    ],
)  # fmt: skip
def test_expressions_are_never_evaluated_as_code(text: str) -> None:
    with pytest.raises((ValueError, ImportError)):
        parsed(text, afl.clock.Duration)


def test_expressions_are_those_of_python() -> None:
    clock = afl.clock
    text = "uniform(1, 5, per='client') * constant(0.1, per=\"step\") + 2 * suspension(0.1) + lognormal(-1, 0.5)"
    same = clock.uniform(1, 5, per="client") * clock.constant(0.1, per="step") + 2 * clock.suspension(0.1)
    assert parsed(text, clock.Duration) == same + clock.lognormal(-1, 0.5)
    same = clock.constant([1] * 2 + [3]) * clock.stragglers(clients=[0, 2]) * clock.constant(0.25)
    text = "constant([1] * 2 + [3]) * stragglers(clients=[0, 2]) / (9 - 5)"
    assert repr(parsed(text, clock.Duration)) == repr(same)
    np.testing.assert_array_equal(parsed("constant([1] * 2 + [inf])", clock.Duration).value, [1, 1, np.inf])
    assert repr(parsed("private_mean(0.5, quantile=None)", afl.aggregate.Aggregate)) == "private_mean(max_norm=0.5)"


def test_lists_have_every_public_server() -> None:
    public = {name: getattr(afl.server, name) for name in afl.server.__all__ if name.islower()}
    made = {name for name, call in public.items() if isinstance(call, type) and issubclass(call, Server)}
    servers = offered("servers")
    assert set(servers) - {"fedprox"} == made and servers["asyncfeded"].clocks == ("free_running",)


@pytest.mark.parametrize("kind", [*KINDS, "optimisers", "local training"])
def test_no_option_is_without_help(kind):
    assert offered(kind) and all(one.summary for one in offered(kind).values())
    empty = [f"{one.name}.{o.name}" for one in offered(kind).values() for o in one.options if not o.help or not o.type]
    assert empty == []


def test_lists_show_every_name_grouped_by_question(capsys):
    assert main(["list"]) == 0
    shown = capsys.readouterr().out
    assert all(name in shown for kind in KINDS for name in offered(kind))
    expected = {"fedbuff": "tolerated", "fedavg": "waits", "picky_sgd": "refused", "safa": "remembered"}
    expected |= {"fedvarp": "remembered", "naive_optimal": "tolerated", "rennala": "refused", "ringmaster": "refused"}
    every = offered("servers") | offered("presets")
    assert {name: every[name].question for name in expected} == expected


@pytest.mark.parametrize("command", cli.COMMANDS)
def test_every_command_has_help(command, capsys):
    assert main([command, "--help"]) == 0
    assert f"usage: jaxafl {command}" in capsys.readouterr().out
    assert main(["--help"]) == 0
    shown = capsys.readouterr().out
    assert f"• {command} " in shown and max(map(len, shown.splitlines()[1:])) <= 80


@pytest.mark.parametrize("name", ["free_running", "bernoulli"])
def test_help_shows_the_options_of_the_parts_that_are_named(name, capsys):
    assert main(["run", "--clock", name, "--help"]) == 0
    shown = capsys.readouterr().out
    assert all(f"--clock.{one.name.replace('_', '-')}" in shown for one in offered("clocks")[name].options)


OWN = '''
def in_turn(clients: int = 2):
    """Samples dealt out in turn.

    Args:
        clients: number of clients.
    """
    from tests.extensions.partition import dealt

    return dealt(clients)


def right(labels, outputs):
    return (outputs.argmax(-1) == labels).mean()
'''


@pytest.fixture
def own(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a module in the current directory, which is not on `sys.path`."""
    (tmp_path / "parts_of_mine.py").write_text(OWN, encoding="utf-8")
    (tmp_path / "broken_of_mine.py").write_text("1 / 0\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path])
    monkeypatch.delitem(sys.modules, "parts_of_mine", raising=False)
    return "parts_of_mine"


def test_parts_of_ones_own_are_found_with_their_options(own: str, capsys: Any, calls: Any) -> None:
    """A class in the current directory, and parts of the other kinds, which `tests/test_extending.py` runs."""
    there = "tests.extensions"
    server = f"--server {there}.server:clipped_mean --server.radius"
    parts = (
        f"{server} 0.25 --clock {there}.clock:in_turns --clock.seconds 3 --model {there}.model:tanh_network "
        f"--data {there}.dataset:pooled_moons --partition {own}:in_turn --partition.clients 4"
    )
    made = simulation(*parts.split())
    assert (made.server.radius, made.clock.seconds, made.data.num_clients) == (0.25, 3, 4)
    assert simulation("--clock.durations", f"{there}.duration:every_so_often(1.0)").clock.durations == every_so_often(
        1.0
    )
    assert main(["run", *parts.split(), "-h"]) == 0
    shown = " ".join(capsys.readouterr().out.replace("│", " ").split())
    for text in ("--server.radius FLOAT", "--model.features INT", "--partition.clients INT number of"):
        assert text in shown
    assert main(["sweep", *SMALL, *server.split()[:2], "--axis", "server.radius=0.5,1"]) == 130
    assert calls[0][1] == ({"server.radius": [0.5, 1], "seed": [0]},) and calls[0][0].server.radius == 0.5
    for arguments, said in {
        f"--server {there}.clock:in_turns": "server",
        f"{server} -1": "clipped_mean: radius must be > 0, got -1",
        f"--data {there}.dataset:pooled_moons": "--partition iid",
    }.items():
        assert main(["run", "--data", "synthetic", "--model", "logistic", *arguments.split()]) == 2
        assert said in capsys.readouterr().err
    with pytest.raises(ZeroDivisionError):  # a broken module keeps its traceback
        main(["run", "--server", "broken_of_mine:server"])


@pytest.mark.slow
def test_metrics_of_ones_own_are_computed_also_by_the_installed_script(own: str, tmp_path: pathlib.Path) -> None:
    code = "import sys; sys.path = [p for p in sys.path if p]; from jaxafl.cli import main; sys.exit(main())"
    how = f"--metrics right={own}:right --csv log.csv --server-steps 3 --output own.nc"
    command = [sys.executable, "-P", "-c", code, "run", *SMALL, *how.split()]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 0 and "fedavg on synchronous" in ended.stdout, ended.stderr
    result = afl.load("own.nc")
    np.testing.assert_allclose(result.right, result.accuracy, rtol=1e-6)
    assert "right" in (tmp_path / "log.csv").read_text().splitlines()[0]


def test_version_and_usage(capsys):
    assert main(["--version"]) == 0 and main([]) == 2
    said = capsys.readouterr()
    assert said.out == f"jaxafl {importlib.metadata.version('jaxafl')}\n"
    assert "Expected one of {run, sweep, compare," in said.err


def test_a_bug_is_not_passed_off_as_a_mistake_of_the_user(monkeypatch, capsys):
    for error, code in ((ValueError, None), (OSError, 2), (MemoryError, 2), (ImportError, 2)):
        failing = lambda *_, error=error, **__: (_ for _ in ()).throw(error("as said"))  # noqa: E731
        monkeypatch.setattr(afl.Simulation, "run", failing)
        if code is None:
            with pytest.raises(error, match="as said"):
                main(["run", *SMALL])
        else:
            assert main(["run", *SMALL]) == code
            assert one_line(capsys) == "jaxafl: error: as said\n"


@pytest.mark.parametrize(
    ("failed_step", "said", "accuracy"),
    [((-1, -1), "", "40 ± 14 %"), ((-1, 3), "1 of 2", "30 %"), ((2, 3), "2 of 2", "nan")],
)
def test_the_table_averages_the_runs_that_have_not_failed(failed_step, said, accuracy, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    variables = {
        "accuracy": (("seed", "evaluation"), [[0.1, 0.3], [0.1, 0.5]]),
        "eval_time": (("seed", "evaluation"), [[0.0, 1.0], [0.0, 1.0]]),
        "staleness": (("seed", "step", "arrival"), np.zeros((2, 1, 1), int)),
        "time": (("seed", "step"), np.ones((2, 1))),
        "failed_step": (("seed",), np.asarray(failed_step)),
    }
    show_result(xr.Dataset(variables, {"seed": [0, 1]}))
    shown = capsys.readouterr().out
    assert accuracy in shown and said in shown and ("failed" in shown) == bool(said)


@pytest.mark.slow
def test_run_and_sweep_write_what_python_would(tmp_path, capsys):
    file = tmp_path / "result.nc"
    durations = ["--clock.durations", "uniform(1, 5) + suspension(0.1)"]
    cache = ["--cache", str(tmp_path / "cache")]
    assert main(["run", *SMALL, *FREE, *durations, *cache, "--seed", "3", "--output", str(file)]) == 0
    assert "fedasync on free_running" in capsys.readouterr().out
    assert (tmp_path / "cache").stat().st_mode & 0o777 == 0o700
    clock = afl.clock.free_running(concurrency=3, durations=afl.clock.uniform(1, 5) + afl.clock.suspension(0.1))
    parts = afl.data.synthetic(clients=6, max_size=60), afl.models.logistic(10), afl.Client(learning_rate=0.05, steps=2)
    same = afl.Simulation(*parts, afl.server.fedasync(), clock).run(6, seed=3)
    loaded = afl.load(file)
    np.testing.assert_array_equal(loaded["time"], same["time"])
    np.testing.assert_allclose(loaded["accuracy"], same["accuracy"], rtol=1e-6)
    grid = tmp_path / "grid.nc"
    axes = ["--axis", "server.alpha=0.2,0.6", "--axis", "seed=2:4"]
    assert main(["sweep", *SMALL, *FREE, *durations, *axes, "--until", "updates=6", "--output", str(grid)]) == 0
    said = capsys.readouterr().out
    assert re.search(r"\n +0\.6 ", said) and "updates 6 (4 of 4 runs)" in said  # a column per axis
    assert afl.load(grid)["seed"].values.tolist() == [2, 3]
    assert main(["sweep", *SMALL, *FREE, *axes, "--plan"]) == 0
    assert re.search(r"members +4\n", capsys.readouterr().out)
    picture, page = tmp_path / "sweep.svg", tmp_path / "page.html"
    assert main(["plot", str(grid), "--kind", "accuracy_vs_steps", "--xlim", "0,", "--output", str(picture)]) == 0
    assert main(["report", str(file), "--output", str(page)]) == 0 and page.stat().st_size > 5000
    assert main(["plot", str(file), "--kind", "timeline", "--metric", "loss", "--output", str(picture)]) == 2
    assert "there is no option 'metric'" in one_line(capsys)
    file.write_bytes(file.read_bytes()[:2000])
    assert main(["plot", str(file), "--output", str(picture)]) == 2 and str(file) in one_line(capsys)


@pytest.mark.slow
def test_runs_that_fail_are_named_and_exit_with_1_if_all_do(capsys):
    broken = [*SMALL, "--model", "mlp", "--server-steps", "4"]
    with pytest.warns(UserWarning, match="stopped being finite at server step"):
        assert main(["run", *broken, "--client.learning-rate", "1e30"]) == 1
    with pytest.warns(UserWarning, match="1 of 2 runs"):
        assert main(["sweep", *broken, "--axis", "client.learning_rate=0.1,1e30"]) == 0
    assert "failed" in capsys.readouterr().out


@pytest.mark.slow
def test_compare_tune_and_their_folders(tmp_path: pathlib.Path, capsys: Any) -> None:
    clock = ["--clock.concurrency", "4"]
    methods = {"A": "--server fedbuff --clock.buffer 2", "B": "--server fedasync --server.alpha 0.3"}
    given = [word for name, text in methods.items() for word in ("--method", f"{name}={text}")]
    how = ["--seeds", "2", "--until", "time=9", "--targets", "0.1", "--folder", str(tmp_path / "folder")]
    assert main(["compare", *SMALL, *clock, *given, *how]) == 0
    said = capsys.readouterr().out
    folder = tmp_path / "moved"
    (tmp_path / "folder").rename(folder)
    table = afl.Comparison.gather(folder).table(reference="A", targets=0.1)
    assert said.startswith(table)
    assert main(["resume", str(folder)]) == 0 and capsys.readouterr().out.startswith(table)
    assert main(["gather", str(folder)]) == 0
    assert capsys.readouterr().out == "A: 2 of 2 members are finished\nB: 2 of 2 members are finished\n"
    page = tmp_path / "page.html"
    assert main(["report", str(folder), "--output", str(page)]) == 0
    assert "paired by seed, at 9 s simulated" in page.read_text()
    capsys.readouterr()
    grid = ["--axis", "client.learning_rate=1e-9,0.02", "--axis", "clock.before_step=false", "--server-steps", "8"]
    assert main(["tune", *SMALL, *clock, "--server", "fedbuff", "--validation", "0.2", *grid]) == 0
    said = capsys.readouterr().out
    assert "| **client.learning_rate=0.02" in said


@pytest.mark.slow
def test_a_run_goes_further_than_it_was_asked_to(tmp_path: pathlib.Path) -> None:
    run = ["run", *SMALL, "--clock.concurrency", "4", "--server", "fedbuff", "--clock.buffer", "2", "--eval-every", "4"]
    output = tmp_path / "result.nc"
    assert main([*run, "--server_steps", "4", "--folder", str(tmp_path / "run"), "--output", str(output)]) == 0
    (tmp_path / "run").rename(tmp_path / "moved")
    assert main(["resume", str(tmp_path / "moved"), "--server-steps", "12"]) == 0
    longer = afl.load(output)
    assert longer.eval_step.values.tolist() == [0, 4, 8, 12]
    assert main([*run, "--server-steps", "12", "--output", str(tmp_path / "whole.nc")]) == 0
    np.testing.assert_array_equal(longer.loss, afl.load(tmp_path / "whole.nc").loss)


def test_options_of_ones_own_optimiser_reach_it(tmp_path: Any, monkeypatch: Any) -> None:
    (tmp_path / "my_rule.py").write_text(
        "import optax\n\n\ndef rule(learning_rate: float = 1.0, scale: bool = True, momentum: float = 0.5):\n"
        "    return optax.sgd(learning_rate * (1 if scale else 2), momentum)\n"
    )
    monkeypatch.chdir(tmp_path)
    made = simulation(*SMALL, "--client.optimizer", "my_rule:rule", "--client.no-scale")
    assert made.client.hyperparameters["learning_rate"] == 0.05
    assert dict(made.client.switches) == {"scale": False}
