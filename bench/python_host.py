"""Host cost of a call from Python: microseconds on the host with everything given, kernel and launch not counted.

    python bench/python_host.py

A call with max_k_tiles = 0 does all of the host's work (reading the arrays, validation, choosing the back end) and
launches nothing. Best of many rounds: the cost without a busy neighbour.
"""

from __future__ import annotations

import platform
import time

import torch

import kvscout


def best(call, calls: int = 200, rounds: int = 300) -> float:
    for _ in range(200):
        call()
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        for _ in range(calls):
            call()
        times.append((time.perf_counter() - start) / calls * 1e6)
        if torch.cuda.is_available():
            torch.cuda.synchronize()
    return min(times)


def arrays(kind: str) -> dict:
    device = "cuda" if kind == "cuda" else "cpu"
    new = lambda shape, dtype=torch.uint8: torch.zeros(shape, dtype=dtype, device=device)  # noqa: E731
    a = dict(q=new((1, 1, 64)), k=new((2, 1, 128, 64)), q_scale=new(1024), k_scale=new(2048), cu=new(2, torch.int32),
             table=new((1, 2), torch.int32), used=new(1, torch.int32), out=new((1, 0, 1), torch.float32),
             scores=new((1, 0, 1), torch.float32), ids=new((1, 1, 16), torch.int32), keys=new((1, 1, 128), torch.bfloat16),
             slots=new(0, torch.int64))
    return {k: v.numpy() if kind == "numpy" and v.dtype != torch.bfloat16 else v for k, v in a.items()}


def main() -> None:
    print(f"{platform.processor() or platform.machine()}, Python {platform.python_version()}, torch {torch.__version__}")
    for kind in ("torch", "numpy", "cuda"):
        if kind == "cuda" and not torch.cuda.is_available():
            print("cuda: not run, no GPU")
            continue
        a = arrays(kind)
        score = lambda: kvscout.msa_proxy_score_fp4(  # noqa: E731
            a["q"], a["k"], a["q_scale"], a["k_scale"], 1.0, 1.0, a["cu"], page_table=a["table"], seqused_k=a["used"],
            max_seqlen_q=1, max_k_tiles=0, output=a["out"])
        print(f"{kind}: msa_proxy_score_fp4  {best(score):6.2f} us")
        print(f"{kind}: msa_topk_select      {best(lambda: kvscout.msa_topk_select(a['scores'], 16, output=a['ids'])):6.2f} us")
        if kind != "numpy":
            append = lambda: kvscout.msa_index_append_fp4(a["keys"], a["k"], a["k_scale"], a["slots"], 1.0)  # noqa: E731
            print(f"{kind}: msa_index_append_fp4 {best(append):6.2f} us")


if __name__ == "__main__":
    main()
