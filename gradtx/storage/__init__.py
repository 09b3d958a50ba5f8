"""Storage: the codecs in which :func:`gradtx.store` keeps slots in fewer bits."""

from gradtx.storage.encoded import FORMATS, Encoded, as_codec, is_encoded
from gradtx.storage.format import Codec, Format

__all__ = ["FORMATS", "Codec", "Encoded", "Format", "as_codec", "is_encoded"]
