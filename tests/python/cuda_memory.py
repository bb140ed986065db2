# SPDX-License-Identifier: Apache-2.0
"""Memory of a CUDA device for tests, by the driver alone: by a real one, or by
tests/unit/fake_cuda.c under the name of libcuda.so.1."""

import ctypes
import functools
import weakref

from tests.python.support import numpy

_CALLS = {"cuInit": 2000, "cuDevicePrimaryCtxRetain": 7000,
          "cuCtxPushCurrent": 4000, "cuMemAlloc": 3020, "cuMemFree": 3020,
          "cuMemcpyAsync": 4000, "cuStreamCreate": 2000,
          "cuStreamSynchronize": 2000}


class NoDriver(Exception):
    pass


class Array:
    """As cupy has them. free: called with the last reference."""

    def __init__(self, address, shape, strides, typestr, writable=True,
                 free=None):
        self.__cuda_array_interface__ = {
            "data": (address, not writable), "shape": shape,
            "strides": strides, "typestr": typestr, "version": 3}
        self.address, self.shape = address, shape
        if free:
            weakref.finalize(self, free).atexit = False


@functools.lru_cache(maxsize=None)
def driver():
    """NoDriver."""
    return Driver()


class Driver:
    """With the first device's context, until the process ends."""

    def __init__(self):
        try:
            library = ctypes.CDLL("libcuda.so.1")
            find = library.cuGetProcAddress_v2
        except (OSError, AttributeError) as error:
            raise NoDriver(f"no CUDA driver: {error}") from None
        self._calls = {}
        for name, version in _CALLS.items():
            address, status = ctypes.c_void_p(), ctypes.c_int()
            find(name.encode(), ctypes.byref(address), version,
                 ctypes.c_uint64(1), ctypes.byref(status))
            self._calls[name] = ctypes.CFUNCTYPE(ctypes.c_int)(address.value)
        try:
            self.call("cuInit", 0)
        except AssertionError as error:
            raise NoDriver(str(error)) from None
        context, stream = ctypes.c_void_p(), ctypes.c_void_p()
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
        self.call("cuCtxPushCurrent", context)
        self.call("cuStreamCreate", ctypes.byref(stream), 1)
        self.cuda_stream = stream.value

    def call(self, name, *arguments):
        result = self._calls[name](*arguments)
        assert result == 0, f"{name}: CUDA error {result}"

    def _wait(self):
        self.call("cuStreamSynchronize", ctypes.c_void_p(self.cuda_stream))

    def _free(self, address):
        self._wait()
        self.call("cuMemFree", ctypes.c_uint64(address))

    def _copy(self, to, source, num):
        self.call("cuMemcpyAsync", ctypes.c_uint64(to),
                  ctypes.c_uint64(source), ctypes.c_size_t(num),
                  ctypes.c_void_p(self.cuda_stream))
        self._wait()

    def put(self, values, **how):
        """A copy of numpy's array; of a view, of all that it is a view of."""
        whole = values.base
        if not isinstance(whole, numpy.ndarray) or \
                not whole.flags.c_contiguous:
            whole = values = numpy.ascontiguousarray(values)
        address = ctypes.c_uint64()
        self.call("cuMemAlloc", ctypes.byref(address),
                  ctypes.c_size_t(max(whole.nbytes, 1)))
        self._copy(address.value, whole.ctypes.data, whole.nbytes)
        at = address.value + values.ctypes.data - whole.ctypes.data
        return Array(at, values.shape, values.strides if values.size else None,
                     values.dtype.str,
                     free=functools.partial(self._free, address.value), **how)

    def get(self, array):
        """What is in a dense one."""
        out = numpy.empty(
            array.shape, array.__cuda_array_interface__["typestr"])
        self._copy(out.ctypes.data, array.address, out.nbytes)
        return out
