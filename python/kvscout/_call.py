"""From a Python call to the binding: arguments in, repairs, bounds, workspace.

The binding answers 0 when the work is done (or queued), positive bits for arguments that must be converted
first (int64 lengths, host lengths beside device data), and minus the bytes of a workspace that it needs.
So the common call pays for no check here.
"""

from __future__ import annotations

from typing import Any, Callable

import numpy as np

from . import _library as library
from ._arrays import Kind, checked_integers, exported, kind_of

Array = Any  # torch.Tensor, numpy.ndarray, or any array with __dlpack__
Scale = Any  # a number, or a one-element float32 array on the device of the data

# (causal, reduce_heads) as the binding takes them: causal + 2 * reduce.
_MODES = {(causal, name): causal + 2 * reduce
          for reduce, name in enumerate((False, True, "kv_group")) for causal in (False, True)}

# Names of the arguments by their place in the binding's lists. The rare ones at the end may be left out.
_REQUESTS = ("cu_seqlens_q", "cu_seqlens_k", "page_table", "seqused_k", "mode", "max_seqlen_q", "max_k_tiles")
_RARE = ("q_offset", "kv_block_start", "kv_block_step", "q type", "k type", "stream")
_FP4 = ("q_fp4", "k_fp4", "q_scale", "k_scale", "q_global_scale", "k_global_scale", *_REQUESTS)
NAMES = {
    "msa_proxy_score_fp4": (*_FP4, "output", "workspace", *_RARE),
    "msa_proxy_score": ("q", "k", *_REQUESTS, "output", "workspace", *_RARE),
    "msa_index_select_fp4": (*_FP4, "topk", "force_begin_blocks", "force_end_blocks", "output", "scores", "workspace",
                             *_RARE),
    "msa_topk_select": ("max_score", "topk", "num_valid_pages", "output", "force_begin_blocks", "force_end_blocks",
                        "skip_masked", "stream"),
    "msa_index_append_fp4": ("k", "k_cache_fp4", "k_cache_scale", "slot_mapping", "global_scale", "type", "stream"),
    "nvfp4_quantize": ("a", "a_global_sf", "sfLayout", "codes", "scales", "type", "stream"),
}
_WRITTEN = {"output", "scores", "codes", "k_cache_fp4", "k_cache_scale", "workspace"}


def mode_of(operation: str, causal: Any, reduce_heads: Any) -> int:
    if causal is True and reduce_heads is False:  # almost every call; the look-up is a tenth of a microsecond
        return 1
    try:
        return _MODES[causal, reduce_heads]
    except (KeyError, TypeError):
        raise ValueError(f"{operation}: reduce_heads, causal: got {reduce_heads!r} and {causal!r}, expected False, True "
                         "or 'kv_group', and True or False") from None


def require_shape(operation: str, name: str, x: Array, ranks: tuple[int, ...], expected: str) -> tuple[int, ...]:
    shape = getattr(x, "shape", None)
    if shape is None or len(shape) not in ranks:
        got = type(x).__name__ if shape is None else f"shape {tuple(shape)}"
        raise ValueError(f"{operation}: {name}: got {got}, expected {expected}")
    return tuple(shape)


def topk_columns(topk: Any) -> int:
    """Columns of the ids to make; the binding refuses a topk that is none."""
    try:
        return max(0, min(int(topk), 64))
    except (TypeError, ValueError):
        return 0


def result_heads(operation: str, mode: int, q_name: str, q: Array, k_name: str, k: Array) -> tuple[int, int]:
    """(heads of a result, query tokens)."""
    tokens, heads, _ = require_shape(operation, q_name, q, (3,), "(query tokens, query heads, row)")
    reduce = mode >> 1
    if reduce == 1:
        heads = 1
    elif reduce == 2:
        heads = require_shape(operation, k_name, k, (3, 4), "(tokens, key heads, row) or (pages, key heads, 128, row)")[1]
    return heads, tokens


def plain(operation: str, kind: Any, data: tuple, rare: tuple) -> tuple[tuple, tuple]:
    """Data and the rare end of the arguments for arrays that do not go to the binding as they are."""
    (q, q_type), (k, k_type) = (exported(operation, name, x) for name, x in zip(NAMES[operation], data[:2]))
    return (q, k, *data[2:]), (*(rare or (None, 0, 1)), q_type, k_type, kind.stream(data[0]))


def run(operation: str, args: tuple, kind: Kind, like: Any) -> None:
    """Calls the binding until the work is done. `like` is the data tensor whose kind and device count."""
    function = getattr(library, operation)
    try:
        status = function(*args) if kind.direct else _ask(operation, function, args)
    except BufferError:  # an array of another library among the arguments
        status = _ask(operation, function, args)
    except RuntimeError as e:
        raise _refusal(operation, args, e) from None
    if status:
        repeat(operation, args, status, kind, like)


def _ask(operation: str, function: Callable, args: tuple) -> int:
    """The binding's answer for arrays of any library."""
    args = _exported(operation, args)
    try:
        return function(*args)
    except (BufferError, RuntimeError) as e:
        raise _refusal(operation, args, e) from None


def _refusal(operation: str, args: tuple, error: Exception) -> Exception:
    """What an array's own library says where it does not hand it over (on meta, sparse), as one line that names the
    argument; any other error as it is."""
    import tvm_ffi

    for name, x in zip(NAMES[operation], () if str(error).startswith(operation) else args):
        if hasattr(x, "__dlpack__"):
            try:
                tvm_ffi.from_dlpack(x.detach() if hasattr(x, "detach") else x)
            except Exception as e:
                said = str(e).partition("\n")[0]
                return ValueError(f"{operation}: {name}: got {type(x).__name__} ({said}), expected an array that DLPack "
                                  "can describe")
    return error


def query(operation: str, function: Callable, args: tuple, kind: Kind, like: Any) -> int:
    """A question to the binding that runs nothing: an answer of at least 0, or minus the bits of repairs."""
    answer = _ask(operation, function, args)
    if answer < 0:
        converted = list(args)
        for at in [i for i in range(len(args)) if -answer >> i & 1]:
            converted[at] = _converted(operation, NAMES[operation][at], args[at], kind, like)
        answer = _ask(operation, function, tuple(converted))
    return answer


def _exported(operation: str, args: tuple) -> tuple:
    for name, x in zip(NAMES[operation], args):
        if name in _WRITTEN and hasattr(x, "__dlpack__") and not kind_of(x).writable(x):
            raise ValueError(f"{operation}: {name}: got a read-only array, expected one that can be written")
    return tuple([exported(operation, name, x)[0] for name, x in zip(NAMES[operation], args)])


def repeat(operation: str, given: tuple, status: int, kind: Kind, like: Any) -> None:
    """What a status other than 0 asks for, then the call again."""
    function, names, args = getattr(library, operation), NAMES[operation], list(given)
    while status:
        if status < 0:
            args[names.index("workspace")] = kind.empty(like, (-status,), "uint8")
        else:
            for at in [i for i in range(len(args)) if status >> i & 1]:
                args[at] = _converted(operation, names[at], args[at], kind, like)
        again = _ask(operation, function, tuple(args))
        if again > 0 and again == status:
            raise RuntimeError(f"{operation}: could not convert {[n for i, n in enumerate(names) if status >> i & 1]}")
        status = again


def _converted(operation: str, name: str, value: Any, kind: Kind, like: Any) -> Any:
    dtype = "int64" if name == "slot_mapping" else "int32"
    if kind.capturing(like):
        raise ValueError(f"{operation}: {name}: got an array of another type or device under stream capture, "
                         f"expected {dtype}, contiguous, on the device of the data")
    return kind.lengths(operation, name, value, like, dtype)


def resolve_bounds(operation: str, data: tuple, requests: tuple, rare: tuple, kind: Kind, like: Any) -> tuple:
    """`requests` with max_seqlen_q and max_k_tiles where they were None, from the lengths: one read of the device."""
    if kind.capturing(like):
        raise ValueError(f"{operation}: max_seqlen_q and max_k_tiles: got None under stream capture, expected "
                         "both (or max_seqlen_q and output): deriving them would read the device")
    known = [*_lengths_to_host(operation, requests[:4], kind), requests[4], None, None]
    found = np.zeros(2, np.int64)
    asked = "msa_proxy_score" if operation == "msa_proxy_score" else "msa_proxy_score_fp4"
    args = (*data, *known, found, None, *((None, *rare[1:5]) if rare else ()))
    try:
        _ask(asked, getattr(library, asked + "_bounds"), args)
    except ValueError as e:
        raise ValueError(str(e).replace(asked, operation, 1)) from None
    return (*requests[:5], *(f if r is None else r for f, r in zip(found.tolist(), requests[5:])))


def _lengths_to_host(operation: str, arrays: tuple, kind: Kind) -> list:
    """cu_seqlens_q, cu_seqlens_k, page_table, seqused_k with all but the page table as int32 on the host."""
    named = [(i, n) for i, n in enumerate(_REQUESTS[:4]) if n != "page_table" and hasattr(arrays[i], "__dlpack__")]
    given = [arrays[i] for i, _ in named]
    if kind.name == "torch" and len(given) > 1 and all(getattr(x, "is_cuda", False) for x in given):
        # One copy instead of two: every copy waits for the device.
        joined = kind.host(kind.torch.cat([x.reshape(-1) for x in given]))  # type: ignore[attr-defined]
        ends = np.cumsum([x.numel() for x in given])
        values = [part.reshape(tuple(x.shape)) for part, x in zip(np.split(joined, ends[:-1]), given)]
    else:
        values = [kind_of(x).host(x) for x in given]
    result = list(arrays)
    for (i, name), value in zip(named, values):
        result[i] = checked_integers(operation, name, value, "int32")
    return result
