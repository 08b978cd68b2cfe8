"""The checker of the shapes in our signatures: an int passes for a float, as everywhere in Python."""

import re
from functools import partial, wraps
from inspect import isfunction
from typing import Any

import jaxtyping
from beartype import BeartypeConf, beartype

checked = beartype(conf=BeartypeConf(is_pep484_tower=True, violation_type=jaxtyping.TypeCheckError))
_jaxtyped = jaxtyping.jaxtyped


def jaxtyped(function: Any = None, *, typechecker: Any) -> Any:
    """Jaxtyping's decorator in less time: arguments are looked at once, and for shapes only where there are some."""
    if function is None:
        return partial(jaxtyped, typechecker=typechecker)
    hints = " ".join(map(repr, getattr(function, "__annotations__", {}).values()))
    types = re.sub(r"<class '[\w.]*'>", "", re.sub(r"jaxtyping\.\w+\[[^]]*\]", "", hints))
    if not isfunction(function) or "'" in types:  # words, or names in quotes, which jaxtyping looks up
        return _jaxtyped(function, typechecker=typechecker)
    strict = checked(function)
    if "jaxtyping." in hints:
        strict = _jaxtyped(strict, typechecker=None)

    @wraps(function)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        return (function if jaxtyping.config.jaxtyping_disable else strict)(*args, **kwargs)

    return wrapped


jaxtyping.jaxtyped = jaxtyped
