"""Declarations of options (`part`), and their checks (`checks`)."""

from jaxafl.options.checks import (
    Bounds,
    UserError,
    are_plain,
    as_array,
    as_numbers,
    check_choice,
    check_flag,
    check_number,
    check_whole,
    shown,
    user_errors,
)
from jaxafl.options.names import check_name
from jaxafl.options.part import (
    Number,
    Part,
    Summarised,
    bounds_of,
    check_options,
    is_static,
    number,
    options_of,
    recording,
    static,
    tables_of,
    types_of,
)
from jaxafl.options.paths import as_path
from jaxafl.options.suggestions import all_named, check_keywords, did_you_mean, named

__all__ = [
    "Bounds",
    "Number",
    "Part",
    "Summarised",
    "UserError",
    "all_named",
    "are_plain",
    "as_array",
    "as_numbers",
    "as_path",
    "bounds_of",
    "check_choice",
    "check_flag",
    "check_keywords",
    "check_name",
    "check_number",
    "check_options",
    "check_whole",
    "did_you_mean",
    "is_static",
    "named",
    "number",
    "options_of",
    "recording",
    "shown",
    "static",
    "tables_of",
    "types_of",
    "user_errors",
]
