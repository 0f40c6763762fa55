"""Where the bytes of a Python buffer lie, for native code that reads or fills them in place."""

from __future__ import annotations

import ctypes


class _PyBuffer(ctypes.Structure):
    """Py_buffer of Python's C API (Include/pybuffer.h), the same since 3.3."""

    _fields_ = (
        ("buf", ctypes.c_void_p),
        ("obj", ctypes.py_object),
        ("len", ctypes.c_ssize_t),
        ("itemsize", ctypes.c_ssize_t),
        ("readonly", ctypes.c_int),
        ("ndim", ctypes.c_int),
        ("format", ctypes.c_char_p),
        ("shape", ctypes.c_void_p),
        ("strides", ctypes.c_void_p),
        ("suboffsets", ctypes.c_void_p),
        ("internal", ctypes.c_void_p),
    )


def address_of(data: bytes | bytearray | memoryview) -> int:
    """The address of the first byte of `data`, valid while `data` lives and is not resized.

    ctypes alone finds it for writable buffers only, and mapped files are not. Raises BufferError where the bytes do not
    follow each other.
    """
    view = _PyBuffer()
    ctypes.pythonapi.PyObject_GetBuffer(ctypes.py_object(data), ctypes.byref(view), 0)
    try:
        return int(view.buf or 0)
    finally:
        ctypes.pythonapi.PyBuffer_Release(ctypes.byref(view))
