"""Properties of the arrivals of a clock."""

from __future__ import annotations

import enum


class Delivery(enum.Flag):
    """Properties of a protocol's arrivals.

    A clock lists them in `Clock.delivers`, a server in `Server.requires` and `Server.accepts`.
    """

    NONE = 0
    STALE = enum.auto()  # an update may start from an older version than the newest
    CONTINUOUS = enum.auto()  # clients start at any time, not only at server steps
    AGED = enum.auto()  # runs start from versions of a drawn age
    REPEATED = enum.auto()  # several server steps can take the same update
    EMPTY = enum.auto()  # a server step may have no arrivals
    SEVERAL = enum.auto()  # a server step may have several arrivals, with any options
    MULTIPLE = enum.auto()  # an update may count several times (`multiplicity`)
    PULLED = enum.auto()  # the server chooses the clients of the next arrivals after they have started
    PARTIAL = enum.auto()  # a run arrives with the local steps that it has completed, possibly 0
    BY_CLIENT = enum.auto()  # entry i is client i
    KINDS = enum.auto()  # `kind` distinguishes arrivals
    HELD = enum.auto()  # a client may go on from the version that it holds
    REGIONAL = enum.auto()  # clients are of regions (column `region`), which exchange models with the server
    QUEUED = enum.auto()  # a run may wait at its client before it starts, with the model that was sent
    REPLIES = enum.auto()  # the server may answer with the local steps of a client's next run
