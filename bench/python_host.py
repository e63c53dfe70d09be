"""Host cost of a call from Python: microseconds on the host with everything given.

    python bench/python_host.py

"nothing launched" is everything before the launch (reading the arrays, validation, choosing the back end), for a request
without tokens. "with its launch" is one token against 64 blocks on a GPU, queued and not waited for; beside it what torch
takes to launch its smallest operations. Best of many rounds: the cost without a busy neighbour.
"""

from __future__ import annotations

import platform
import time
from typing import Callable

import torch

import kvscout

CALLS, ROUNDS = 200, 150


def best(call: Callable) -> float:
    gpu = torch.cuda.is_available()
    for _ in range(CALLS):
        call()
    times = []
    for _ in range(ROUNDS):
        if gpu:
            torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(CALLS):
            call()
        times.append((time.perf_counter() - start) / CALLS * 1e6)
    return min(times)


def calls(kind: str, tokens: int, blocks: int = 64) -> dict[str, Callable]:
    """Every operation that can be given everything: one request of `tokens` tokens, four heads, `blocks` blocks."""
    device, heads, i32, f32 = "cuda" if kind == "cuda" else "cpu", 4, torch.int32, torch.float32

    def new(*shape, dtype=torch.uint8, of=0):
        x = torch.full(shape, of, dtype=dtype, device=device)
        return x.numpy() if kind == "numpy" and dtype != torch.bfloat16 else x

    q, k, q_scale, k_scale = new(tokens, heads, 64), new(blocks, 1, 128, 64), new(1024), new(1024 * blocks)
    cu, table, used = new(2, dtype=i32), new(1, blocks, dtype=i32), new(1, dtype=i32, of=blocks * 128)
    cu[1] = tokens
    scores, ids = new(heads, blocks, tokens, dtype=f32), new(tokens, heads, 16, dtype=i32)
    keys, slots = new(tokens, 1, 128, dtype=torch.bfloat16), new(tokens, dtype=torch.int64)
    paged = dict(page_table=table, seqused_k=used, max_seqlen_q=1, max_k_tiles=blocks)
    needed = kvscout.msa_index_select_fp4_workspace(q, k, q_scale, k_scale, 1.0, 1.0, cu, **paged)
    workspace = new(needed) if kind == "cuda" and needed else None
    found = {
        "msa_proxy_score_fp4": lambda: kvscout.msa_proxy_score_fp4(
            q, k, q_scale, k_scale, 1.0, 1.0, cu, page_table=table, seqused_k=used, max_seqlen_q=1, max_k_tiles=blocks,
            output=scores),
        "msa_topk_select": lambda: kvscout.msa_topk_select(scores, 16, output=ids, force_end_blocks=1),
        "msa_index_select_fp4": lambda: kvscout.msa_index_select_fp4(
            q, k, q_scale, k_scale, 1.0, 1.0, cu, page_table=table, seqused_k=used, max_seqlen_q=1, max_k_tiles=blocks,
            force_end_blocks=1, output=ids, workspace=workspace),
        "msa_index_append_fp4": lambda: kvscout.msa_index_append_fp4(keys, k, k_scale, slots, 1.0),
    }
    if kind == "numpy":
        del found["msa_index_append_fp4"]  # numpy has no bfloat16 of its own
    return found


def main() -> None:
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else "no GPU"
    print(f"{platform.machine()}, {gpu}, Python {platform.python_version()}, torch {torch.__version__}")
    for kind in ("numpy", "torch", "cuda"):
        if kind == "cuda" and not torch.cuda.is_available():
            print("cuda  not run: no GPU")
            continue
        launched = calls(kind, 1) if kind == "cuda" else {}
        for name, call in calls(kind, 0).items():
            line = f"{kind:5s} {name:21s} {best(call):6.2f} us, nothing launched"
            print(line + (f"; {best(launched[name]):6.2f} us with its launch" if launched else ""))
    if torch.cuda.is_available():
        x = torch.zeros(64, device="cuda")
        print(f"torch zero_ {best(x.zero_):6.2f} us, add_ {best(lambda: x.add_(1.0)):6.2f} us, with their launch")


if __name__ == "__main__":
    main()
