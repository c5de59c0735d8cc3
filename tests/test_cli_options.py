"""Defaults, names and help of the command line."""

from __future__ import annotations

import importlib.metadata
import re

import numpy as np
import optax
import pytest
import tyro

import jaxafl as afl
from jaxafl.cli import main
from jaxafl.cli.build import make_simulation
from jaxafl.cli.catalogue import KINDS, offered
from jaxafl.cli.files import with_arrays, without_files
from jaxafl.cli.options import Run, chosen, options_type
from jaxafl.cli.simulate import parsed, run

DATA = ("--data", "synthetic", "--data.max-size", "60", "--data.clients", "6", "--model", "logistic")
REQUIRED = {
    "bernoulli": ("--clock.upload", "0.5"),
    "interrupting": ("--clock.period", "4", "--clock.contacted", "2"),
    "sampled": ("--clock.drawn", "2"),
    "semi_async": ("--clock.fraction", "0.5", "--clock.lag", "2"),
    "stale_rounds": ("--clock.participants", "2", "--clock.max-staleness", "1"),
}


def simulation(*arguments: str) -> afl.Simulation:
    names = chosen(arguments)
    plain, arrays = without_files(arguments, names)
    return make_simulation(names, with_arrays(tyro.cli(options_type(Run, names), args=plain), arrays))


@pytest.mark.parametrize("name", sorted(offered("servers")))
def test_every_server_works_with_the_defaults_of_the_command_line(name):
    clock = chosen(["--server", name])["clock"].name
    simulation(*DATA, "--server", name, *REQUIRED.get(clock, ())).check()


@pytest.mark.parametrize(
    ("preset", "words", "given"),
    [
        (afl.presets.ringmaster, {"N": 5, "R": 3}, {"clients": 5, "max_staleness": 3}),
        (afl.presets.rennala, {"N": 5, "B": 4}, {"clients": 5, "batch": 4}),
        (afl.presets.fedvarp, {"n": 4}, {"cohort": 4}),
        (
            afl.presets.naive_optimal,
            {"M": 2, "constant(TIMES)": "constant([2.5, 1.0, 3.0])", "@WEIGHTS.npy": "@{folder}/weights.npy"},
            {"times": [2.5, 1.0, 3.0], "fastest": 2},
        ),
    ],
)
def test_the_command_line_of_a_preset_gives_its_server_and_clock(preset, words, given, tmp_path):
    text = re.search("In a shell: `(.*?)`", " ".join(preset.__doc__.split()))[1]
    np.save(tmp_path / "weights.npy", [1.0, 1.0, 0.0])
    arguments = [str(words.get(word, word)).format(folder=tmp_path) for word in text.split()]
    with pytest.raises(ValueError, match=re.escape(f"{preset.__name__} is a server on a certain clock; write {text}")):
        chosen(["--server", preset.__name__])
    if "times" not in given:
        arguments += ["--clock.durations", "uniform(1, 5)"]
        given = given | {"durations": afl.clock.uniform(1, 5)}
    made = simulation(*DATA[:-4], "--data.clients", "3", *DATA[-2:], *arguments)
    expected = preset(**given)
    assert (repr(made.server), repr(made.clock)) == (repr(expected.server), repr(expected.clock))
    np.testing.assert_array_equal(getattr(made.clock, "weights", None), getattr(expected.clock, "weights", None))
    one_gradient = (made.client.steps, made.client.hyperparameters["learning_rate"]) == (1, 1.0)
    assert one_gradient == ("One gradient per run" in preset.__doc__.replace("\n   ", ""))


@pytest.mark.parametrize("name", sorted(offered("servers")))
def test_the_usual_clock_is_asynchronous_where_the_server_is(name):
    server = offered("servers")[name]
    clock = chosen(["--server", name])["clock"].name
    assert clock in server.clocks
    assert clock != "synchronous" or "free_running" not in server.clocks


@pytest.mark.parametrize("name", sorted(offered("datasets")))
def test_the_usual_network_takes_what_the_data_are(name):
    usual = chosen(["--data", name])["model"].name
    assert usual == {"synthetic": "logistic", "shakespeare": "char_lstm"}.get(
        name, "bert" if name.startswith("glue_") else "cnn_small"
    )
    assert chosen(["--data", name, "--model", "mlp"])["model"].name == "mlp"


def test_synthetic_data_need_no_other_option():
    simulation("--data", "synthetic", "--data.max-size", "60").check()


@pytest.mark.parametrize(
    ("server", "steps", "rate", "batch_size"),
    [("fedbuff", 10, 0.05, 32), ("asysg", 1, 1.0, 32), ("audg", 1, 1.0, None), ("psurdg", 1, 1.0, None)],
)
def test_local_training_is_what_the_server_accepts(server, steps, rate, batch_size):
    made = simulation(*DATA, "--server", server, *REQUIRED.get(chosen(["--server", server])["clock"].name, ())).client
    assert (made.steps, made.hyperparameters["learning_rate"], made.batch_size) == (steps, rate, batch_size)


def test_options_of_local_training_go_before_its_defaults():
    made = simulation(*DATA, "--server", "asysg", "--client.batch-size", "8").client
    assert (made.steps, made.batch_size) == (1, 8)
    made = simulation(*DATA, "--client.epochs", "2", "--client.learning-rate", "0.3").client
    assert (made.steps, made.epochs, made.hyperparameters["learning_rate"]) == (None, 2, 0.3)


@pytest.mark.parametrize(("clients", "concurrency"), [(5, 5), (10, 10), (12, 10)])
def test_concurrency_is_ten_or_all_clients(clients, concurrency):
    made = simulation("--data", "synthetic", "--clients", str(clients), "--model", "logistic", "--server", "fedasync")
    assert made.clock.concurrency == concurrency
    made.check()


@pytest.mark.parametrize("server", ["afl", "audg", "defedavg_niid", "favano", "quafl", "safa"])
def test_the_hint_at_the_help_of_a_missing_option_shows_that_option(server, capsys):
    assert main(["run", "--server", server]) == 2
    said = " ".join(capsys.readouterr().err.split())
    clock = chosen(["--server", server])["clock"].name
    hint = f"jaxafl run --server {server} --clock {clock} --help"
    assert f"For full helptext, run: {hint}" in said
    assert main(hint.split()[1:]) == 0
    shown = capsys.readouterr().out
    assert all(flag in shown for flag in REQUIRED[clock][::2])


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--clock.buffer", "3"], ("no option --clock.buffer", "the clock is synchronous", "--clock.cohort")),
        (["--clock.sets", "3"], ("no option --clock.sets",)),
        (["--server", "fedbuff", "--clock.cohort=3"], ("no option --clock.cohort", "the clock is free_running")),
        (["--client.b1", "0.3"], ("the optimiser is sgd", "--client.momentum")),
        (["--partition.alpha", "0.3"], ("no partition is chosen",)),
        (["--sever-steps", "3"], ("did you mean --server-steps?",)),
        (["--save", "a.nc"], ("no option --save; did you mean --output?",)),
        (["fedbuff"], ("'fedbuff' is not an option",)),
        (["--axis", "seed=0:2"], ("jaxafl sweep",)),
    ],
)
def test_an_option_that_there_is_not_says_what_there_is(arguments, said, capsys):
    assert main(["run", *DATA, *arguments]) == 2
    error = capsys.readouterr().err
    assert error.startswith("jaxafl: error: ") and error.count("\n") == 1
    assert all(text in error for text in said)


def test_help_shows_hyphens_and_underscores_are_read(capsys):
    assert main(["run", "--help"]) == 0
    shown = capsys.readouterr().out
    assert "--server-steps" in shown and "--server_steps" not in shown
    names = chosen(DATA)
    options = tyro.cli(options_type(Run, names), args=[*DATA, "--server_steps", "7", "--client.batch_size", "4"])
    assert (options.server_steps, options.client.batch_size) == (7, 4)


def test_help_shows_the_values_that_the_docstring_names(capsys):
    assert main(["run", "--server", "fedasync", "--help"]) == 0
    assert "--server.staleness {constant,polynomial,hinge,exponential}" in capsys.readouterr().out
    assert main(["run", "--server", "fadas", "--help"]) == 0
    assert "--server.delay-scaling {None,eq4,eq77}" in capsys.readouterr().out


def test_version(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"jaxafl {importlib.metadata.version('jaxafl')}\n"


@pytest.mark.parametrize("kind", [*KINDS, "optimisers", "local training"])
def test_no_option_is_without_help(kind):
    assert offered(kind) and all(one.summary for one in offered(kind).values())
    empty = [f"{one.name}.{o.name}" for one in offered(kind).values() for o in one.options if not o.help or not o.type]
    assert empty == []


def test_weight_decay_is_that_of_an_optimiser_that_has_one(capsys):
    made = simulation(*DATA, "--client.optimizer", "adamw", "--client.weight-decay", "0.5").client
    assert made == afl.Client(optax.adamw, learning_rate=0.05, steps=10, weight_decay=0.5, **_plain(made))
    assert made.hyperparameters["weight_decay"] == 0.5
    assert "weight_decay" not in simulation(*DATA, "--client.optimizer", "adamw").client.hyperparameters
    made = simulation(*DATA, "--client.weight-decay", "0.5").client
    assert made == afl.Client(optax.sgd, learning_rate=0.05, steps=10, weight_decay=0.5)
    assert main(["run", "--client.optimizer", "adamw", "--help"]) == 0
    assert "by default 0.0001, that of adamw" in " ".join(capsys.readouterr().out.replace("│", " ").split())


def _plain(client) -> dict:
    """The optimiser's other options, which the command line gives with their defaults."""
    given = dict(client.hyperparameters) | dict(client.switches)
    return {name: value for name, value in given.items() if name not in ("learning_rate", "weight_decay")}


@pytest.mark.parametrize("durations", ["uniform([[1],2],3)", "recorded([[1,2,3],[1,2]])", "constant('x')"])
def test_durations_of_a_wrong_shape_or_kind_are_one_line(durations, capsys):
    assert main(["run", *DATA, "--durations", durations]) == 2
    error = capsys.readouterr().err
    assert error.startswith("jaxafl: error: ") and error.count("\n") == 1


@pytest.mark.parametrize(
    ("server", "more", "buffer"),
    [
        ("fedbuff", (), 10),
        ("fadas", ("--clock.concurrency", "4"), 4),
        ("fedbuff", ("--clock.buffer", "1"), 1),
        ("fedasync", (), 1),
    ],
)
def test_the_buffer_is_that_of_the_paper(server, more, buffer):
    made = simulation("--data", "synthetic", "--clients", "12", "--model", "logistic", "--server", server, *more)
    assert made.clock.buffer == buffer


@pytest.mark.parametrize("word", ["none", "null", "None"])
def test_no_value_is_written_in_small_letters_too(word):
    given = (*DATA, "--server", "fedbuff", "--server.staleness", "none", f"--client.batch_size={word}", "--lanes", word)
    _, options, _ = parsed(run, Run, given)
    assert (options.client.batch_size, options.lanes, options.server.staleness) == (None, None, "none")
    assert parsed(run, Run, (*DATA, "--client.batch-size", word))[1].client.batch_size is None
    with pytest.raises(SystemExit):
        parsed(run, Run, (*DATA, "--client.learning-rate", word))
