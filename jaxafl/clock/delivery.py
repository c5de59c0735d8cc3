"""Properties of the arrivals of a clock."""

from __future__ import annotations

import enum


class Delivery(enum.Flag):
    """Properties of a protocol's arrivals.

    A clock lists them in `Clock.delivers`, a server in `Server.requires` and `Server.accepts`.

    Attributes:
        STALE: an update may start from an older version than the newest.
        CONTINUOUS: clients start at any time, not only at server steps.
        AGED: runs start from versions of a drawn age.
        REPEATED: several server steps can take the same update, until its client starts again.
        EMPTY: a server step may have no arrivals.
        SEVERAL: a server step may have several arrivals, with any options.
        MULTIPLE: an update may count several times (`multiplicity`).
        PULLED: the server chooses the clients of the next arrivals after they have started.
        PARTIAL: a run arrives with the local steps that it has completed, possibly 0.
        BY_CLIENT: entry i is client i.
        KINDS: `kind` distinguishes arrivals.
        HELD: a client may go on from the version that it holds.
        QUEUED: a run may wait at its client before it starts, with the model that was sent.
        REGIONAL: clients are of regions (column `region`), which exchange models with the server.
        REPLIES: the server may answer with the local steps of a client's next run.
    """

    NONE = 0
    STALE = enum.auto()
    CONTINUOUS = enum.auto()
    AGED = enum.auto()
    REPEATED = enum.auto()
    EMPTY = enum.auto()
    SEVERAL = enum.auto()
    MULTIPLE = enum.auto()
    PULLED = enum.auto()
    PARTIAL = enum.auto()
    BY_CLIENT = enum.auto()
    KINDS = enum.auto()
    HELD = enum.auto()
    QUEUED = enum.auto()
    REGIONAL = enum.auto()
    REPLIES = enum.auto()

    @property
    def words(self) -> str:
        """The names of the properties as words of a message."""
        return ", ".join(str(flag.name).lower().replace("_", " ") for flag in self)


STARTS = Delivery.STALE | Delivery.CONTINUOUS
"""Properties of the arrivals of clients that start at any time, from any version."""
