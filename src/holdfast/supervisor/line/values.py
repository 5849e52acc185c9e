"""Values in messages: msgpack, a closed set. Nothing is unpickled, here or anywhere.

None, booleans, whole numbers of 64 bits, floats, text, bytes, lists, maps, and numpy arrays of
plain numbers, which travel as extension 1: a msgpack list of (dtype, shape, C-ordered bytes).
"""

import sys
from typing import Any

import msgspec

from holdfast.errors import ValidationError

ARRAY_EXTENSION = 1
_PLAIN_KINDS = "biufc"
_KNOWN = (
    "None, booleans, 64-bit whole numbers, floats, text, bytes, lists, maps and numpy arrays of "
    "numbers"
)
_MAX_DEPTH = 64


def _encode_other(value: Any) -> Any:
    # An array exists only if numpy was imported already, so nothing is imported here.
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        if isinstance(value, numpy.ndarray) and value.dtype.kind in _PLAIN_KINDS:
            flat = numpy.ascontiguousarray(value)
            data = msgspec.msgpack.encode((flat.dtype.str, list(value.shape), flat.tobytes()))
            return msgspec.msgpack.Ext(ARRAY_EXTENSION, data)
        if isinstance(value, numpy.generic) and value.dtype.kind in _PLAIN_KINDS:
            return value.item()
    raise TypeError(f"a {type(value).__name__} cannot be sent; a message is made of {_KNOWN}")


def _decode_extension(code: int, data: memoryview) -> Any:
    if code != ARRAY_EXTENSION:
        raise ValidationError(f"a message holds an unknown extension ({code})")
    try:
        import numpy
    except ImportError:
        raise ValidationError(
            "a message holds a numpy array, and numpy is not installed here"
        ) from None
    kind, shape, flat = msgspec.msgpack.decode(data, type=tuple[str, list[int], bytes])
    dtype = numpy.dtype(kind)
    if dtype.kind not in _PLAIN_KINDS:
        raise ValidationError(f"a message holds an array of {kind}, which is no plain number")
    return numpy.frombuffer(flat, dtype=dtype).reshape(shape).copy()


_encoder = msgspec.msgpack.Encoder(enc_hook=_encode_other)
_decoder = msgspec.msgpack.Decoder(ext_hook=_decode_extension)


def encode_value(value: Any) -> bytes:
    """Encode one message.

    Raises:
        ValidationError: the message holds a value outside the set, which the error names.
    """
    if isinstance(value, dict | list | tuple) or not isinstance(value, _ATOM_TYPES):
        _check(value, _MAX_DEPTH)
    try:
        return _encoder.encode(value)
    except (TypeError, OverflowError, ValueError, RecursionError) as error:
        raise ValidationError(f"the message cannot be sent: {error}") from error


def _check(value: Any, depth: int) -> None:
    """Refuse dates, sets, enums and dataclasses, which msgspec would return as something else."""
    kind = type(value)
    if kind in _ATOMS:
        return
    if depth == 0:
        raise ValidationError(f"the message is nested more than {_MAX_DEPTH} deep")
    if kind is dict:
        for key, item in value.items():
            if type(key) not in _ATOMS:
                raise ValidationError(
                    f"a {type(key).__name__} cannot be the key of a map in a message"
                )
            if type(item) not in _ATOMS:
                _check(item, depth - 1)
    elif kind is list or kind is tuple:
        for item in value:
            if type(item) not in _ATOMS:
                _check(item, depth - 1)
    elif not isinstance(value, _ATOM_TYPES) and not type(value).__module__.startswith("numpy"):
        raise ValidationError(f"a {kind.__name__} cannot be sent; a message is made of {_KNOWN}")


_ATOM_TYPES = (str, bytes, bytearray, memoryview, int, float, type(None))
_ATOMS = frozenset({*_ATOM_TYPES, bool})


def decode_value(data: bytes) -> Any:
    """Decode one message. Tuples come back as lists.

    Raises:
        ValidationError: the bytes are no message.
    """
    try:
        return _decoder.decode(data)
    except (msgspec.MsgspecError, TypeError, ValueError, RecursionError) as error:
        raise ValidationError(f"a message cannot be read: {error}") from error
