"""Checkpoints: runs under way kept in a folder, from which the same call goes on."""

from __future__ import annotations

import json
import shutil
import time
import warnings
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import jax
import numpy as np

from jaxafl.callbacks.hooks import PIECE_SECONDS, Hook
from jaxafl.callbacks.identity import check_identity, content
from jaxafl.callbacks.store import check_folder, flattened, interval_of, newest, say, unflattened, write
from jaxafl.device import on_host
from jaxafl.engine.execution import Execution
from jaxafl.engine.loop import Progress, over
from jaxafl.engine.plan import ORIGIN, Origin
from jaxafl.engine.state import State
from jaxafl.options import UserError, check_whole
from jaxafl.references import version

_SHARES = 0.02, 0.2  # of an interval that is a time: how long saving may hold the run up, and write beside it
_CARRIED = ("model", "server", "clients", "average", "failure", "batch_key")  # by a run that is made longer


class Checkpoint(Hook):
    """Saves runs in a folder, every so many server steps or seconds, and takes them up again.

    A checkpoint is written under another name and renamed, so that there is a whole one at any instant; the sums of all
    arrays are compared when it is read, and a damaged one is passed over for the one before it. It is written by a
    thread while the runs go on, from a copy of their state, one at a time. A disk that is full ends the save, not the
    run.
    """

    def __init__(self, folder: Any, every: Any, keep: Any, at_end: bool = True) -> None:
        """
        Args:
            folder: where; made if it does not exist.
            every: server steps, or a text such as `"30s"`, between saves.
            keep: checkpoints that are kept.
            at_end: whether runs are saved at their end too, from where they can be made longer.
        """
        self.folder = check_folder("checkpoint", folder)
        if (self.folder / "sweep.json").exists():
            raise UserError(f"{self.folder} is the folder of a sweep; name another one")
        self.steps, self.interval = interval_of(every)
        self.keep, self.at_end = check_whole("run", "keep", keep), at_end
        self.seconds = min(PIECE_SECONDS, self.interval or PIECE_SECONDS)
        self.origin, self.last, self.stretched, self.failures = ORIGIN, (time.monotonic(), -1), False, 0
        self.writing: Future[float] | None = None
        self.held = 0.0
        self.saved, self.damaged = newest(self.folder)
        self.changed = self.saved.about["changed"] if self.saved else ""

    def __enter__(self) -> Checkpoint:
        self.writer = ThreadPoolExecutor(1, "checkpoint")
        return self

    def __exit__(self, *args: Any) -> None:
        self.finish()
        self.writer.shutdown()

    # ---- going on

    @property
    def eval_every(self) -> int | None:
        """Server steps between evaluations of the run in the folder."""
        return self.saved.about["identity"]["run"]["eval_every"] if self.saved else None

    def accept(self, identity: Mapping[str, Any], server_steps: int, until: Mapping[str, float] | None = None) -> None:
        """Makes sure that the folder is empty, or holds this run.

        Args:
            identity: what must be the same when the run goes on; `versions`: what should be.
            server_steps: T.
            until: the limits of the run: one that was stopped goes on under others.
        """
        self.identity, self.server_steps = json.loads(json.dumps(identity)), server_steps
        self.until = dict(until or {})
        if self.saved is not None:
            about = self.saved.about
            planned_for_less = about["kept"] is None or about["server_steps"] <= server_steps
            if any(about["stops"]) and about.get("until", self.until) != self.until and planned_for_less:
                about |= {"stops": [None] * len(about["stops"]), "over": False}
            self._check(about)

    @property
    def speed(self) -> tuple[int | None, int | None]:
        """Lanes and their chunk of the run in the folder: another device would choose others."""
        return (self.saved.about["lanes"], self.saved.about["chunk"]) if self.saved else (None, None)

    @property
    def ends_at(self) -> int:
        """T, or that of the run in the folder if it failed or was stopped: it does not go on."""
        about = self.saved.about if self.saved else None
        return about["server_steps"] if about and about["over"] else self.server_steps

    @property
    def ends_before(self) -> int | None:
        """The T of a shorter run that is still under way in the folder: it has to end before it is made longer."""
        about = self.saved.about if self.saved else None
        if about is None or about["over"] or about["kept"] is None or about["place"] >= about["server_steps"]:
            return None
        return about["server_steps"] if about["server_steps"] < self.server_steps else None

    def start(self) -> Origin:
        """Where the plan of the run begins."""
        if self.saved is None:
            return ORIGIN
        about = self.saved.about
        if about["server_steps"] == self.server_steps:
            self.origin = Origin(about["origin"][0], {int(version): slot for version, slot in about["origin"][1]})
        elif about["kept"] is not None:
            versions = sorted(version for version, _ in about["kept"])
            self.origin = Origin(about["server_steps"], {version: slot for slot, version in enumerate(versions)})
        return self.origin

    def begin(self, execution: Execution, made: Progress) -> None:
        self.last = time.monotonic(), made.row
        if self.saved is None:
            return
        about, arrays = self.saved.about, self.saved.arrays
        state = execution.state
        longer = about["server_steps"] != self.server_steps and about["kept"] is not None
        if not longer and about.get("plan") != _planned(execution):  # what is stored, and where, follows the plan
            before = about["identity"]["versions"]["jaxafl"]
            raise UserError(
                f"{self.folder} holds a run under way that jaxafl {before} planned otherwise than {version()} does; "
                "end it with that version, or name another folder"
            )
        found = unflattened(state, "state", arrays, about["arrays"], check=not longer)
        with execution.context():
            made_of = self._grafted(state, found, about) if longer else found
            execution.state = jax.tree.map(lambda new, old: jax.device_put(new, old.sharding), made_of, state)
        piece = execution.empty_piece()
        forms = {"records": piece._replace(taken=None), "pieces": piece}
        made.row, made.eval_step = about["place"], list(about["eval_step"])
        made.stops = [tuple(stop) if stop else None for stop in about["stops"]]
        names = sorted(name.partition("/")[2] for name in arrays if name.startswith("evaluations/"))
        made.evaluations = [
            {name: arrays[f"evaluations/{name}"][number] for name in names} for number in range(len(made.eval_step))
        ]
        made.records, made.pieces = (
            [unflattened(form, name, arrays, about["arrays"], check=False)] if name in about["parts"] else []
            for name, form in forms.items()
        )
        every = execution.program.loops.steps_per_call
        shorter = made.eval_step[-1] % every and made.eval_step[-1] < self.server_steps
        if shorter and not over(execution, made):  # which ended between two evaluations of this one
            made.eval_step.pop()
            made.evaluations.pop()
            split = made.eval_step[-1]
            whole = made.records.pop()
            made.records = [jax.tree.map(lambda leaf: leaf[:, :split], whole)] if split else []
            made.pieces = [jax.tree.map(lambda leaf: leaf[:, split:], whole)]
        self.saved = None
        ended = made.eval_step and made.eval_step[-1] >= self.server_steps
        said = "nothing left to do" if ended else "going on"
        say(f"{said} after {execution.step_of(made.row)} server steps, from {self.folder}")

    def _grafted(self, state: State, found: State, about: dict[str, Any]) -> State:
        """The state of a longer run: its ring holds the versions that the shorter one has kept."""
        slots = dict(about["kept"])
        old = np.asarray([slots[version] for version in self.origin.slots])

        def moved(new: Any, kept: np.ndarray) -> np.ndarray:
            ring = np.zeros(new.shape, new.dtype)
            ring[:, list(self.origin.slots.values())] = kept[:, old]
            return ring

        carried = {name: getattr(found, name) for name in _CARRIED}
        return on_host(state)._replace(**carried, ring=jax.tree.map(moved, state.ring, found.ring))

    # ---- saving

    def piece(self, execution: Execution, made: Progress) -> None:
        since, row = self.last
        if self.steps is None:
            due = time.monotonic() - since >= (self.interval or 0)
        else:
            due = execution.step_of(made.row) // self.steps > execution.step_of(row) // self.steps
        if due:
            self.save(execution, made)

    def settled(self, execution: Execution, made: Progress) -> None:
        if made.eval_step[-1] == self.server_steps or over(execution, made):
            if self.at_end:
                self.save(execution, made)
        elif made.row > self.last[1]:
            self.piece(execution, made)

    def save(self, execution: Execution, made: Progress) -> None:
        """Saves the runs where they are, from a copy that is made at once; the save before comes first."""
        begun = time.monotonic()
        self.finish()
        parts: dict[str, Any] = {"state": jax.tree.map(np.array, on_host(execution.state))}
        parts["evaluations"] = {
            name: np.stack([one[name] for one in made.evaluations]) for name in (made.evaluations or [{}])[0]
        }
        if made.records:
            parts["records"] = execution.joined(made.records)
        if made.pieces:
            parts["pieces"] = execution.joined(made.pieces)
        kept = execution.plan.kept if execution.plan is not None else None
        origin = execution.plan.origin if execution.plan is not None else ORIGIN
        about = {
            "place": made.row,
            "made": execution.step_of(made.row),
            "server_steps": self.server_steps,
            "eval_step": list(made.eval_step),
            "stops": list(made.stops),
            "until": self.until,
            "parts": sorted(parts),
            "origin": [origin.step, sorted(origin.slots.items())],
            "kept": None if kept is None else sorted(kept.items()),
            "plan": _planned(execution),
            "identity": self.identity,
            "changed": self.changed,
            "over": over(execution, made),
            "lanes": execution.lanes,
            "chunk": execution.program.loops.lanes_per_vmap,
        }
        self.last = time.monotonic(), made.row
        self.writing, self.held = self.writer.submit(self._write, parts, about), time.monotonic() - begun

    def _write(self, parts: dict[str, Any], about: dict[str, Any]) -> float:
        """Writes a checkpoint, and returns how many seconds that took."""
        begun = time.monotonic()
        arrays, table = flattened(parts)
        write(self.folder, self.keep, arrays, about | {"arrays": table})
        while self.damaged:
            shutil.rmtree(self.folder / str(self.damaged.pop()), ignore_errors=True)
        return time.monotonic() - begun

    def finish(self) -> bool:
        """Waits for the save that is under way; whether it worked."""
        if self.writing is None:
            return True
        try:
            took = self.writing.result()
        except Exception as error:  # of the file system, zipfile or NumPy
            self.failures += 1
            why = f"{type(error).__name__}: {str(error)[:200]}"
            warnings.warn(
                f"{self.folder}: not saved, while the run goes on; earlier checkpoints stay ({why})", stacklevel=2
            )
            return False
        finally:
            self.writing = None
        needed = max(self.held / _SHARES[0], took / _SHARES[1])
        if self.interval is not None and needed > self.interval:
            if not self.stretched and needed > 1.5 * self.interval:
                costs = f"saving held the run up for {self.held:.1f} s and wrote for {took:.1f} s"
                say(f"{costs}, so it is done every {needed:.0f} s, not {self.interval:g}")
                self.stretched = True
            self.interval = max(self.interval, needed) if self.stretched else self.interval
        return True

    @property
    def notes(self) -> dict[str, Any]:
        """What the result says of it."""
        failures = {"checkpoints_not_saved": self.failures} if self.failures else {}
        return ({"resumed": self.changed} if self.changed else {}) | failures

    def _check(self, about: dict[str, Any]) -> None:
        """Whether the folder holds the same runs."""
        changed = check_identity(self.folder, about["identity"], self.identity)
        self.changed = "; ".join(filter(None, (self.changed, changed)))
        if about["over"]:
            return
        done, known = about["place"], about["server_steps"]
        if self.server_steps < known and (about["kept"] is not None or self.server_steps < done):
            raise UserError(
                f"{self.folder} holds a run of {known} server steps ({done} are made), more than server_steps="
                f"{self.server_steps}; name another folder, or at least as many"
            )


def _planned(execution: Execution) -> Any:
    """The content of the plan that runs are executed by; `None` where they make it."""
    if execution.plan is not None:
        return execution.plan.digest
    return content(jax.tree.leaves(on_host(execution.constant[2:]))) if execution.schedules is not None else None
