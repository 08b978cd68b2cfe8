"""The checker of the shapes in our signatures: an int passes for a float, as everywhere in Python."""

from beartype import BeartypeConf, beartype

checked = beartype(conf=BeartypeConf(is_pep484_tower=True))
