"""Storage: the formats in which :func:`gradtx.store` keeps slots in fewer bits, by `Codec`."""

from gradtx.storage.encoded import FORMATS, Encoded, as_codec, is_encoded
from gradtx.storage.format import Format

__all__ = ["FORMATS", "Encoded", "Format", "as_codec", "is_encoded"]
