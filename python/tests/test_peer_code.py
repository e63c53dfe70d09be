"""Code written for flashinfer.msa_ops and flashinfer, run by changing the import: an indexer's decode and prefill."""

from __future__ import annotations

import types

import numpy as np
import pytest

import oracle
from conftest import HAS_CUDA, NO_CUDA, World, needs_torch, torch

pytestmark = needs_torch

CODE = '''
import torch
from {package} import SfLayout, nvfp4_quantize
from {module} import msa_proxy_score, msa_proxy_score_fp4, msa_topk_select


def to_nvfp4(x):
    forward = 448.0 * 6.0 / x.abs().amax().float().clamp_min(1e-12)
    packed, scales = nvfp4_quantize(x.reshape(-1, x.shape[-1]), forward.reshape(1), sfLayout=SfLayout.layout_128x4,
                                    do_shuffle=False, backend="cuda", enable_pdl=False)
    return packed.view(*x.shape[:-1], x.shape[-1] // 2), scales, 1.0 / float(forward)


def decode(index_q, index_k, lengths):
    batch = len(lengths)
    device = index_q.device
    cu_q = torch.arange(batch + 1, dtype=torch.int32, device=device)
    cu_k = torch.tensor([0, *lengths], device=device).cumsum(0).to(torch.int32)
    q, qs, q_inverse = to_nvfp4(index_q)
    k, ks, k_inverse = to_nvfp4(index_k)
    tiles = -(-max(lengths) // 128)
    scores = msa_proxy_score_fp4(q, k, qs, ks, q_inverse, k_inverse, cu_q, cu_k, causal=True, reduce_heads=True,
                                 max_seqlen_q=1, max_k_tiles=tiles)
    assert scores.shape == (1, tiles, batch)
    valid = torch.tensor([-(-n // 128) for n in lengths], dtype=torch.int32, device=device)
    buffer = torch.empty(64, 1, 16, dtype=torch.int32, device=device)
    msa_topk_select(scores, 16, num_valid_pages=valid, force_begin_blocks=0, force_end_blocks=1, output=buffer[:batch])
    return scores, buffer[:batch], (q, qs, q_inverse, k, ks, k_inverse, cu_q, cu_k)


def prefill(index_q, pages, query_start_loc, seq_lens, block_table, positions, max_query_len, max_seq_len):
    scores = msa_proxy_score(index_q, pages, query_start_loc, page_table=block_table, seqused_k=seq_lens, causal=True,
                             max_seqlen_q=max_query_len, max_k_tiles=(max_seq_len + 127) // 128)
    return scores, msa_topk_select(scores, 16, num_valid_pages=(positions // 128 + 1).to(torch.int32), force_end_blocks=1)
'''


@pytest.fixture
def program():
    module = types.ModuleType("peer_code")
    exec(CODE.format(package="kvscout", module="kvscout"), module.__dict__)
    return module


@pytest.fixture(params=["torch", "cuda"])
def w(request) -> World:
    if request.param == "cuda" and not HAS_CUDA:
        pytest.skip(NO_CUDA)
    return World(request.param)


def test_decode(program, w):
    torch.manual_seed(0)
    lengths = [300, 5, 2560]
    q, k = ((torch.randn(n, heads, 128).bfloat16() / 3).to(w.device) for n, heads in ((3, 4), (sum(lengths), 1)))
    scores, ids, (qc, qs, qi, kc, ks, ki, cu_q, cu_k) = program.decode(q, k, lengths)
    qc, qs, kc, ks, cu_q, cu_k, scores, ids = (w.host(x) for x in (qc, qs, kc, ks, cu_q, cu_k, scores, ids))
    exact, size, _ = oracle.score(oracle.dequantize(qc, qs), oracle.dequantize(kc, ks), cu_q, cu_k, reduce_heads=True)
    oracle.assert_scores(scores, exact, size, w.tolerance, float(np.float32(qi) * np.float32(ki)))
    assert np.array_equal(ids, oracle.select(scores, 16, [3, 1, 20], 0, 1))


def test_prefill(program, w):
    torch.manual_seed(1)
    q, pages = torch.randn(7, 2, 128).half(), torch.randn(6, 1, 128, 128).half()
    starts, lengths = torch.tensor([0, 4, 7], dtype=torch.int32), torch.tensor([300, 130], dtype=torch.int32)
    table = torch.tensor([[5, 0, 3, -1], [1, 4, -1, -1]], dtype=torch.int32)
    positions = torch.tensor([296, 297, 298, 299, 127, 128, 129])
    given = (x.to(w.device) for x in (q, pages, starts, lengths, table, positions))
    scores, ids = (w.host(x) for x in program.prefill(*given, 4, 300))
    exact, size, _ = oracle.score(q.double().numpy(), pages.double().numpy(), starts.numpy(), page_table=table.numpy(),
                                  seqused_k=lengths.numpy())
    oracle.assert_scores(scores, exact, size, w.tolerance)
    assert np.array_equal(ids, oracle.select(scores, 16, positions.numpy() // 128 + 1, 0, 1))
