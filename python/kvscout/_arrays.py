"""Whose arrays a call works on: torch, numpy, or anything else that speaks DLPack.

A `Kind` answers the few questions in which array libraries differ: how to make an array beside another one,
how to hand one to the binding, how to bring lengths to the host or to a device, whether the current stream
is being captured. `kind_of` finds it by type, one dictionary look-up in the common case. The first array
argument of an operation decides: numpy in, numpy out; torch in, torch out.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

# DType of include/kvscout/tensor.h, for arrays whose bytes the binding sees under another name.
E2M1X2, E4M3, BF16 = 1, 2, 4


def checked_integers(operation: str, name: str, values: np.ndarray, dtype: str) -> np.ndarray:
    """Host integers as `dtype`; a ValueError where they do not fit."""
    if values.dtype.kind not in "iu":
        raise ValueError(f"{operation}: {name}: got {values.dtype} elements, expected {dtype}")
    info = np.iinfo(dtype)
    if values.size and (values.min() < info.min or values.max() > info.max):
        raise ValueError(f"{operation}: {name}: got values beyond {dtype}, expected {dtype}")
    return np.ascontiguousarray(values, dtype)


class Kind:
    """numpy, and the common ground of the others."""

    name = "numpy"
    direct = False  # arguments may go to the binding as they are

    def compiling(self) -> bool:
        return False

    def capturing(self, like: Any) -> bool:
        """True while work queued for `like`'s device is recorded into a CUDA graph."""
        return False

    def stream(self, like: Any) -> int | None:
        """The stream to run on where the binding cannot ask for it."""
        return None

    def empty(self, like: Any, shape: tuple[int, ...], dtype: str) -> Any:
        return np.empty(shape, dtype)

    def export(self, x: Any) -> tuple[Any, int | None]:
        """(what the binding takes, the element type where it must be told)."""
        code = None
        if not x.dtype.isnative:
            raise BufferError(f"{x.dtype} elements of foreign byte order")
        if x.dtype.num >= 256:  # user-defined: ml_dtypes, which numpy's DLPack refuses
            code = {"bfloat16": BF16, "float8_e4m3fn": E4M3}.get(x.dtype.name)
        if code is not None:
            x = x.view(np.float16 if code == BF16 else np.uint8)
        if not x.flags.writeable:  # only the newer exchange carries read-only memory
            import tvm_ffi

            try:
                x = tvm_ffi.from_dlpack(x.__dlpack__(max_version=(1, 0)))
            except (TypeError, BufferError):
                x = x.copy()  # numpy before 2.1
        return x, code

    def writable(self, x: Any) -> bool:
        return x.flags.writeable

    def host(self, x: Any) -> np.ndarray:
        return np.asarray(x)

    def lengths(self, operation: str, name: str, x: Any, like: Any, dtype: str) -> Any:
        """Integers as the binding takes them beside `like`."""
        return checked_integers(operation, name, kind_of(x).host(x), dtype)

    def finish(self, result: Any, like: Any) -> Any:
        """A result made by `empty`, as the caller's kind of array."""
        return result


class Torch(Kind):
    name = "torch"

    def __init__(self, torch: Any):
        self.torch = torch
        # torch 2.10 and later have a C table of their arrays, with every element type.
        self.direct = hasattr(torch.Tensor, "__dlpack_c_exchange_api__")
        self.compiling = torch.compiler.is_compiling  # type: ignore[method-assign]
        self.dtypes = {"float32": torch.float32, "int32": torch.int32, "int64": torch.int64,
                       "uint8": torch.uint8}

    def capturing(self, like: Any) -> bool:
        return like.is_cuda and self.torch.cuda.is_current_stream_capturing()

    def empty(self, like: Any, shape: tuple[int, ...], dtype: str) -> Any:
        return self.torch.empty(shape, dtype=self.dtypes[dtype], device=like.device)

    def export(self, x: Any) -> tuple[Any, int | None]:
        if self.direct:
            return x, None
        x = x.detach()
        code = {"torch.float8_e4m3fn": E4M3, "torch.float4_e2m1fn_x2": E2M1X2}.get(str(x.dtype))
        return (x, None) if code is None else (x.view(self.torch.uint8), code)

    def writable(self, x: Any) -> bool:
        return True

    def host(self, x: Any) -> np.ndarray:
        return x.detach().cpu().numpy()

    def lengths(self, operation: str, name: str, x: Any, like: Any, dtype: str) -> Any:
        if not isinstance(x, self.torch.Tensor):
            x = self.torch.from_numpy(checked_integers(operation, name, kind_of(x).host(x), dtype))
        elif not x.is_cuda:
            x = self.torch.from_numpy(checked_integers(operation, name, self.host(x), dtype))
        return x.to(like.device, self.dtypes[dtype]).contiguous()


class Dispatched(Torch):
    """Tensor subclasses that answer operators themselves (FakeTensor, DTensor): custom ops, which they see."""

    def __init__(self, torch: Any):
        super().__init__(torch)
        self.direct = False
        self.compiling = lambda: True  # type: ignore[method-assign]


class Other(Kind):
    """JAX, CuPy and whatever else has `__dlpack__`: results in their own kind where the library has an
    array-API `from_dlpack` (host) or `empty` (device)."""

    name = "other"

    @staticmethod
    def _on_host(x: Any) -> bool:
        return x.__dlpack_device__()[0] in (1, 3)  # kDLCPU, kDLCUDAHost

    @staticmethod
    def _namespace(x: Any) -> Any:
        if hasattr(x, "__array_namespace__"):
            return x.__array_namespace__()
        module = sys.modules.get(type(x).__module__.partition(".")[0])  # CuPy has the functions all the same
        return module if hasattr(module, "from_dlpack") else None

    @staticmethod
    def _cupy_stream(x: Any) -> Any:
        """CuPy's current stream where x is CuPy's."""
        cupy = sys.modules.get("cupy")
        if cupy is not None and isinstance(x, cupy.ndarray):
            return cupy.cuda.get_current_stream()
        return None

    def capturing(self, like: Any) -> bool:
        stream = self._cupy_stream(like)
        return stream is not None and stream.is_capturing()

    def stream(self, like: Any) -> int | None:
        stream = self._cupy_stream(like)
        return None if stream is None else stream.ptr

    def empty(self, like: Any, shape: tuple[int, ...], dtype: str) -> Any:
        if self._on_host(like):
            return np.empty(shape, dtype)
        namespace = self._namespace(like)
        if namespace is None or type(like).__module__.startswith("jax"):  # their arrays are immutable
            raise ValueError(f"output: got nothing beside {type(like).__name__} on a device, expected an array "
                             "that can be written (torch or CuPy)")
        return namespace.empty(shape, dtype=dtype)

    def export(self, x: Any) -> tuple[Any, int | None]:
        if type(x).__module__.startswith("jax"):
            x.block_until_ready()
        elif self._cupy_stream(x) is not None:
            # The call runs on CuPy's current stream, where x is ready. Without being told so, CuPy makes the
            # legacy stream wait for it, which a stream that is being captured does not survive.
            import tvm_ffi

            x = tvm_ffi.from_dlpack(x.__dlpack__(stream=-1))
        return x, None

    def writable(self, x: Any) -> bool:
        return not type(x).__module__.startswith("jax")  # immutable by promise

    def host(self, x: Any) -> np.ndarray:
        return x.get() if hasattr(x, "get") else np.asarray(x)

    def lengths(self, operation: str, name: str, x: Any, like: Any, dtype: str) -> Any:
        values = checked_integers(operation, name, kind_of(x).host(x), dtype)
        return values if self._on_host(like) else self._namespace(like).asarray(values)

    def finish(self, result: Any, like: Any) -> Any:
        namespace = self._namespace(like)
        if isinstance(result, np.ndarray) and namespace is not None:
            return namespace.from_dlpack(result)
        return result


NUMPY = Kind()
_kinds: dict[type, Kind] = {np.ndarray: NUMPY}


def kind_of(x: Any, what: str = "kvscout") -> Kind:
    """`what`: operation and argument, for the error."""
    kind = _kinds.get(type(x))
    return kind if kind is not None else _meet(x, what)


def _meet(x: Any, what: str) -> Kind:
    """The kind of a type seen for the first time."""
    torch = sys.modules.get("torch")  # a torch tensor cannot come without it
    if torch is not None and isinstance(x, torch.Tensor):
        known = _kinds.get(torch.Tensor)
        kind: Kind = known if known is not None else Torch(torch)
        _kinds[torch.Tensor] = kind
        if type(x).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__:
            kind = Dispatched(torch)
    elif isinstance(x, (np.ndarray, np.generic)):
        kind = NUMPY
    elif hasattr(x, "__dlpack__"):
        kind = Other()
    else:
        raise ValueError(f"{what}: got {type(x).__name__}, expected an array (torch, numpy or any with DLPack)")
    _kinds[type(x)] = kind
    return kind


def exported(operation: str, name: str, x: Any) -> tuple[Any, int | None]:
    """(an argument for the binding, its element type where that must be told): arrays through their kind, everything
    else as it is."""
    if not hasattr(x, "__dlpack__"):
        return x, None
    try:
        return kind_of(x).export(x)
    except BufferError as e:
        raise ValueError(f"{operation}: {name}: got {type(x).__name__} ({e}), expected an array that DLPack can describe") from None
