"""One cache serves index and attention: the same page bytes, read by both."""

from __future__ import annotations

import numpy as np
import pytest

import oracle
from conftest import HAS_CUDA, NO_CUDA, needs_torch, torch

pytestmark = needs_torch

if torch is not None:
    from kvscout import msa_index_select_fp4
    from kvscout.integrations.attention import block_sparse_attention, dequantize_pages
    from kvscout.integrations.vllm import NvFp4IndexCache


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("topk", [2, 16])
def test_attention_over_the_chosen_blocks(device, topk):
    if device == "cuda" and not HAS_CUDA:
        pytest.skip(NO_CUDA)
    torch.manual_seed(0)
    length, tokens, heads, key_heads = 700, 3, 4, 2
    scale = 2688.0 / 6
    pool = torch.full((9, key_heads * 9216 + 64), 0xFF, dtype=torch.uint8, device=device)
    cache = NvFp4IndexCache(pool, key_heads, scale)
    table = torch.tensor([[7, 2, 0, 8, 4, 5, -1]], dtype=torch.int32, device=device)
    keys = torch.randn(length, key_heads, 128, device=device)
    slots = table[0, torch.arange(length, device=device) // 128].long() * 128 + torch.arange(length, device=device) % 128
    cache.append(keys, slots)
    values = torch.full((9, key_heads, 128, 32), float("nan"), device=device)
    values[slots // 128, :, slots % 128] = torch.randn(length, key_heads, 32, device=device)
    q = torch.randn(tokens, heads, 128, device=device).bfloat16()
    cu, used = (torch.tensor(x, dtype=torch.int32, device=device) for x in ([0, tokens], [length]))
    ids = msa_index_select_fp4(q, cache.codes, None, cache.scales, 1, cache.inverse_scale, cu, page_table=table,
                               seqused_k=used, topk=topk, force_end_blocks=1, reduce_heads="kv_group")
    got = block_sparse_attention(q, ids, cache.codes, cache.scales, cache.inverse_scale, values, cu, table, used)

    # The plain float model: the stored keys in a row, all blocks that were not chosen masked out.
    pages = dequantize_pages(cache.codes, cache.scales, cache.inverse_scale, table[0, :6]).cpu().double()
    stored = pages.permute(0, 2, 1, 3).reshape(-1, key_heads, 128)[:length]
    assert (stored - keys.cpu()).abs().mean() < 0.1
    rows = values[slots // 128, :, slots % 128].cpu().double()
    for t in range(tokens):
        for h in range(heads):
            kv = h * key_heads // heads
            mask = torch.full((length,), -torch.inf, dtype=torch.float64)
            for b in ids[t, kv].tolist():
                if b >= 0:
                    mask[b * 128 : b * 128 + 128] = 0
            mask[length - tokens + t + 1 :] = -torch.inf
            weights = (stored[:, kv] @ q[t, h].cpu().double() * 128**-0.5 + mask).softmax(0)
            assert torch.allclose(got[t, h].cpu().double(), weights @ rows[:, kv], atol=1e-4)


def test_dequantised_pages_are_what_the_oracle_reads():
    rng = np.random.default_rng(1)
    codes = rng.integers(0, 256, (3, 2, 128, 64), dtype=np.uint8)
    scales = rng.integers(0, 0x7F, (3, 2048), dtype=np.uint8)
    got = dequantize_pages(torch.from_numpy(codes), torch.from_numpy(scales), 0.5, torch.tensor([2, 0]))
    for out, page in zip(got.numpy(), (2, 0)):
        for h in range(2):
            exact = oracle.dequantize(codes[page, h], scales[page, h * 1024 : h * 1024 + 1024])
            assert np.array_equal(out[h], exact * 0.5)
