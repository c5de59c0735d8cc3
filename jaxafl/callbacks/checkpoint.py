"""Checkpoints of unfinished runs in a folder, from which the same call resumes."""

from __future__ import annotations

import time
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import jax
import numpy as np

from jaxafl.callbacks.base import PIECE_SECONDS
from jaxafl.callbacks.content import content
from jaxafl.callbacks.identity import check_identity
from jaxafl.callbacks.store import check_folder, flattened, interval_of, log_info, newest, unflattened, write
from jaxafl.clock.schedule import steps_of
from jaxafl.device import on_host
from jaxafl.engine.execution import Execution
from jaxafl.engine.lockstep import Lockstep
from jaxafl.engine.loop import Progress, over
from jaxafl.engine.plan import ORIGIN, Origin
from jaxafl.engine.planned import Planned
from jaxafl.engine.state import State
from jaxafl.options import UserError, warn
from jaxafl.references import version

# Without a budget, saving a large state at short intervals takes more time than training.
_BLOCKING_SHARE = 0.02  # largest fraction of a time interval that a save may block the run
_WRITING_SHARE = 0.2  # largest fraction of a time interval that the thread may write
_PLANNED = ("ring", "store", "lanes")  # parts of a state that depend on the plan


class Checkpoint:
    """Saves runs in a folder at an interval of server steps or seconds, and restores them.

    A checkpoint is written to a temporary name and renamed, so that a complete one exists at any time. Reading it
    compares the checksums of its file. A damaged checkpoint is skipped for the one before it. A thread writes a copy
    of the state while the runs continue. A full disk fails the save, not the run.
    """

    def __init__(
        self,
        folder: Any,
        every: Any,
        identity: Mapping[str, Any],
        server_steps: int,
        until: Mapping[str, float] | None = None,
        in_sweep: bool = False,
    ) -> None:
        """
        Args:
            folder: the folder; created if it does not exist.
            every: server steps, or a text such as `"30s"`, between saves.
            identity: fingerprint of the run. A difference in `versions` warns, any other raises.
            server_steps: T.
            until: the limits of the run. A stopped run resumes if they changed.
            in_sweep: True for members of a sweep. Other runs are also saved at their end, so that they can be extended.

        Raises:
            ValueError: the folder holds another or a longer run, or a shorter one that has not ended.
        """
        self.folder = check_folder(folder)
        if (self.folder / "sweep.json").exists():
            raise UserError(f"{self.folder} is the folder of a sweep; name another one")
        self.steps, self.interval = interval_of(every)
        self.identity = identity
        self.server_steps = server_steps
        self.until = dict(until or {})
        self.in_sweep = in_sweep
        self.seconds = min(PIECE_SECONDS, self.interval or PIECE_SECONDS)
        self.origin = ORIGIN
        self.last = time.monotonic(), -1
        self.writing: Future[float] | None = None
        self.held = 0.0
        self.saved = newest(self.folder)
        self.about = self.saved.about if self.saved else None
        self.changed = self._accepted(self.about) if self.about else ""

    def __enter__(self) -> Checkpoint:
        self.writer = ThreadPoolExecutor(1, "checkpoint")
        return self

    def __exit__(self, *args: Any) -> None:
        self.finish()
        self.writer.shutdown()

    # ---- restoring

    def _accepted(self, about: dict[str, Any]) -> str:
        """Checks that the run in the folder goes on as this one, and returns the versions that changed.

        The run forgets that it was stopped if its limits have changed.
        """
        server_steps = self.server_steps
        known, planned = about["server_steps"], about["kept"] is not None
        if any(about["stops"]) and about["until"] != self.until and (not planned or known <= server_steps):
            about |= {"stops": [None] * len(about["stops"]), "over": False}
        changed = check_identity(self.folder, about, self.identity)
        made = about["place"]
        fits = server_steps == known or (server_steps >= made and not (planned and made < known))
        if not about["over"] and not fits:
            raise UserError(
                f"{self.folder} holds {made} of {known} server steps, and does not go on as {server_steps}: "
                "for fewer server steps name another folder, and for more first let this run end"
            )
        return changed

    @property
    def speed(self) -> tuple[int | None, int | None]:
        """The number of lanes and of lanes per `vmap` of the run in the folder, which the default of a device may not
        match."""
        return (self.about["lanes"], self.about["chunk"]) if self.about else (None, None)

    @property
    def ends_at(self) -> int:
        """T, or the T of the run in the folder if it failed or was stopped."""
        return self.about["server_steps"] if self.about and self.about["over"] else self.server_steps

    def start(self) -> Origin:
        """Returns the origin of the run's plan."""
        if (about := self.about) is None:
            return ORIGIN
        if about["server_steps"] == self.server_steps:
            self.origin = Origin(about["origin"][0], {int(version): slot for version, slot in about["origin"][1]})
        elif about["kept"] is not None:
            self.origin = Origin(about["server_steps"], dict(about["kept"]))
        return self.origin

    def begin(self, execution: Execution, progress: Progress) -> None:
        self.last = time.monotonic(), progress.step
        if self.saved is None:
            return
        about, arrays = self.saved.about, self.saved.arrays
        longer = about["server_steps"] != self.server_steps and about["kept"] is not None
        if not longer and about["plan"] != _plan_digest(execution):  # another plan stores other versions in slots
            before = about["identity"]["versions"]["jaxafl"]
            raise UserError(
                f"{self.folder} holds a run under way that jaxafl {before} planned otherwise than {version()} does; "
                "end it with that version, or name another folder"
            )
        if about["schedule"] != _schedule_digest(execution, about["place"]):
            raise UserError(
                f"{self.folder} holds a run whose clock gave other arrivals than it gives now; expected the same code, "
                "also of the functions that the clock calls. Name another folder"
            )
        if not longer:
            execution.make_room(unflattened(execution.state, "state", arrays, check=False))
        state = execution.state
        found = unflattened(state, "state", arrays, check=not longer)
        restored = self._extended(state, found) if longer else found
        execution.state = jax.tree.map(lambda new, old: jax.device_put(new, old.sharding), restored, state)
        progress.step = about["place"]
        progress.eval_step = list(about["eval_step"])
        progress.stops = [tuple(stop) if stop else None for stop in about["stops"]]
        known = {name.partition("/")[2]: arrays[name] for name in sorted(arrays) if name.startswith("evaluations/")}
        progress.evaluations = [dict(zip(known, one, strict=True)) for one in zip(*known.values(), strict=True)]
        every = self.identity["run"]["eval_every"]
        shorter = progress.eval_step[-1] % every and progress.eval_step[-1] < self.server_steps
        if shorter and not over(execution, progress):  # the shorter run's last evaluation is none of this run's
            progress.eval_step.pop()
            progress.evaluations.pop()
        if progress.step:
            whole = unflattened(execution.advance(0, 0), "records", arrays, check=False)
            evaluated = progress.eval_step[-1]
            progress.records = [jax.tree.map(lambda leaf: leaf[:, :evaluated], whole)] if evaluated else []
            progress.pieces = [jax.tree.map(lambda leaf: leaf[:, evaluated:], whole)]
        self.saved = None
        ended = over(execution, progress) or [0, *progress.eval_step][-1] >= self.server_steps
        words = "nothing left to do" if ended else "going on"
        log_info(f"{words} after {progress.step} server steps, from {self.folder}")

    def _extended(self, state: State, found: State) -> State:
        """Returns the state of an extended run, whose ring holds the versions that the shorter run kept."""
        slots = [*self.origin.slots.values()]

        def moved(new: Any, kept: np.ndarray) -> np.ndarray:
            ring = np.zeros(new.shape, new.dtype)
            ring[:, slots] = kept[:, slots]
            return ring

        carried = {name: getattr(found, name) for name in State._fields if name not in _PLANNED}
        return on_host(state)._replace(**carried, ring=jax.tree.map(moved, state.ring, found.ring))

    # ---- saving

    def piece(self, execution: Execution, progress: Progress) -> None:
        since, step = self.last
        elapsed = time.monotonic() - since >= (self.interval or 0)
        if elapsed if self.steps is None else progress.step // self.steps > step // self.steps:
            self.save(execution, progress)

    def evaluated(self, execution: Execution, progress: Progress) -> None:
        if progress.eval_step[-1] == self.server_steps or over(execution, progress):
            if not self.in_sweep:
                self.save(execution, progress)
        elif progress.step > self.last[1]:
            self.piece(execution, progress)

    def save(self, execution: Execution, progress: Progress) -> None:
        """Copies the state of the runs and starts to write it. Waits for an earlier save first."""
        begun = time.monotonic()
        self.finish()
        parts = {"state": jax.tree.map(np.array, on_host(execution.state))}
        if progress.evaluations:
            parts["evaluations"] = jax.tree.map(lambda *each: np.stack(each), *progress.evaluations)
        if progress.step:
            parts["records"] = execution.joined([*progress.records, *progress.pieces])
        plan = execution.window.plan if isinstance(execution, Planned) else None
        origin = ORIGIN if plan is None else plan.origin
        about = {
            "place": progress.step,
            "server_steps": self.server_steps,
            "eval_step": list(progress.eval_step),
            "stops": list(progress.stops),
            "until": self.until,
            "origin": [origin.step, sorted(origin.slots.items())],
            "kept": None if plan is None else sorted(plan.kept.items()),
            "plan": _plan_digest(execution),
            "schedule": _schedule_digest(execution, progress.step),
            "identity": self.identity,
            "changed": self.changed,
            "over": over(execution, progress),
            "lanes": execution.shapes.lanes,
            "chunk": execution.shapes.chunk,
        }
        self.last = time.monotonic(), progress.step
        self.writing = self.writer.submit(self._write, parts, about)
        self.held = time.monotonic() - begun

    def _write(self, parts: dict[str, Any], about: dict[str, Any]) -> float:
        """Writes a checkpoint, and returns the seconds it took."""
        begun = time.monotonic()
        write(self.folder, flattened(parts), about)
        return time.monotonic() - begun

    def finish(self) -> bool:
        """Waits for the running save. Returns False if it failed."""
        if self.writing is None:
            return True
        try:
            took = self.writing.result()
        except Exception as error:  # the file system, zipfile and NumPy raise many types
            why = f"{type(error).__name__}: {str(error)[:200]}"
            warn(f"{self.folder}: not saved, while the run goes on; earlier checkpoints stay ({why})")
            return False
        finally:
            self.writing = None
        if self.interval is not None:
            self.interval = max(self.interval, self.held / _BLOCKING_SHARE, took / _WRITING_SHARE)
        return True


def _plan_digest(execution: Execution) -> Any:
    """Returns a digest of the plan; `None` if the plan is computed during the run."""
    if isinstance(execution, Planned):
        return execution.window.plan.digest
    return content(jax.tree.leaves(on_host(execution.tables))) if isinstance(execution, Lockstep) else None


def _schedule_digest(execution: Execution, step: int) -> Any:
    """Returns a digest of the last arrivals before a server step; `None` if members differ, or training decides."""
    if not isinstance(execution, Planned):
        return None
    last = steps_of(execution.schedules_of(0), max(step - 100, 0), step)
    return content([last.of_arrivals("client"), last.of_arrivals("version")])
