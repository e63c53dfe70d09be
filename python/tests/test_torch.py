"""torch.compile, opcheck, threads, gradients."""

from __future__ import annotations

import threading

import numpy as np
import pytest

import kvscout
import oracle
import problems
from conftest import HAS_CUDA, NO_CUDA, World, needs_torch, torch

pytestmark = needs_torch

if torch is not None:
    from kvscout import _torch_ops


@pytest.fixture(params=["torch", "cuda"])
def w(request):
    if request.param == "cuda" and not HAS_CUDA:
        pytest.skip(NO_CUDA)
    return World(request.param)


def compiled(function):
    torch._dynamo.reset()
    return torch.compile(function, fullgraph=True, backend="aot_eager")


def arguments(w, rng):
    p = problems.make(rng, [2, 3], [300, 500], heads=4, key_heads=2)
    data = [w.array(x) for x in (p.q_fp4, p.k_fp4, p.q_scale, p.k_scale)]
    return p, data, w.array(p.cu_seqlens_q), {k: w.array(v) for k, v in p.keywords.items()}


def test_the_whole_pipeline_in_one_graph(w, rng):
    _, _, cu, keywords = arguments(w, rng)
    q, k = w.array(rng.standard_normal((5, 4, 128)), "float32"), w.array(rng.standard_normal((9, 2, 128, 128)), "float32")

    def pipeline(q, k, cu, page_table, seqused_k, out, ids):
        gq, gk = kvscout.global_scale_of(q), kvscout.global_scale_of(k)
        q_fp4, q_scale = kvscout.nvfp4_quantize(q, gq)
        k_fp4, k_scale = kvscout.nvfp4_quantize(k, gk)
        arrays = (q_fp4, k_fp4, q_scale, k_scale, 1 / gq, 1 / gk, cu)
        paged = dict(page_table=page_table, seqused_k=seqused_k, max_seqlen_q=3)
        scores = kvscout.msa_proxy_score_fp4(*arrays, **paged, max_k_tiles=4, reduce_heads="kv_group")
        kvscout.msa_proxy_score_fp4(*arrays, **paged, output=out)
        kvscout.msa_topk_select(scores, 3, None, ids, force_end_blocks=1)
        top = kvscout.msa_topk_select(scores * 2, 3)
        chosen, values = kvscout.msa_index_select_fp4(*arrays, **paged, max_k_tiles=4, topk=3, return_scores=True)
        plain = kvscout.msa_proxy_score(q.bfloat16(), k.bfloat16(), cu, **paged, max_k_tiles=4)
        return scores, top, chosen, values, plain

    def run(function):
        out, ids = w.empty((4, 4, 5)), w.empty((5, 2, 3), "int32")
        return (*function(q, k, cu, keywords["page_table"], keywords["seqused_k"], out, ids), out, ids)

    for a, b in zip(run(compiled(pipeline)), run(pipeline)):
        assert torch.equal(a, b)


def test_bounds_that_are_not_given_stay_open_in_the_graph(w, rng):
    _, data, cu, keywords = arguments(w, rng)
    function = lambda: kvscout.msa_proxy_score_fp4(*data, 0.5, 0.25, cu, **keywords) + 1  # noqa: E731
    assert torch.equal(compiled(function)(), function())


def test_append_in_a_graph_with_codes_and_scales_in_one_pool(w, rng):
    k, slots = w.array(rng.standard_normal((4, 1, 128)), "bfloat16"), w.array(np.array([3, 130, -1, 255]))

    def append(pool, k, slots):
        codes = pool.as_strided((2, 1, 128, 64), (9216, 8192, 64, 1))
        kvscout.msa_index_append_fp4(k, codes, pool[:, 8192:], slots, 300.0)
        return pool.sum()

    pools = [w.empty((2, 9216), "uint8") for _ in range(2)]
    assert compiled(append)(pools[0], k, slots) == append(pools[1], k, slots)
    assert torch.equal(*pools) and pools[0].any()


def test_opcheck(w, rng):
    _, data, cu, keywords = arguments(w, rng)
    score = (*data, 0.5, None, None, w.array(np.float32([0.25])), cu, None, keywords["page_table"], keywords["seqused_k"],
             True, 3, 4, 0, None, w.int32([1, 2]), 0, 1)
    check = torch.library.opcheck
    check(_torch_ops._score_fp4, score)
    check(_torch_ops._score_fp4_out, (*score, w.empty((4, 4, 5))))
    ids, values = w.empty((5, 4, 3), "int32"), w.empty((5, 4, 3))
    check(_torch_ops._index_out, (*score[:-2], 3, 0, 1, 0, 1, ids, values, None))
    q, k = w.array(rng.standard_normal((5, 4, 128)), "float16"), w.array(rng.standard_normal((9, 2, 128, 128)), "float16")
    plain = (q, k, cu, None, keywords["page_table"], keywords["seqused_k"], True, 3, 4, 2, 5, None, 0, 1)
    check(_torch_ops._score, plain)
    check(_torch_ops._score_out, (*plain, w.empty((2, 4, 5))))
    scores = w.array(rng.standard_normal((2, 9, 5)), "float32")
    check(_torch_ops._select, (scores, 3, None, w.int32([1, 2, 3, 9, 0]), 0, 1, False))
    check(_torch_ops._select_out, (scores, 3, 4, None, 0, 1, True, w.empty((5, 2, 3), "int32")))
    check(_torch_ops._quantize, (q, 4.0, None, 0))
    check(_torch_ops._append, (k[0, 0, :, None], w.empty((2, 1, 128, 64), "uint8"), w.empty((2, 1024), "uint8"),
                               w.array(np.arange(128)), 4.0, None))


def test_import_before_torch_and_first_call_in_a_graph():
    import subprocess
    import sys

    code = ("import kvscout, torch\n"
            "f = torch.compile(lambda s: kvscout.msa_topk_select(s, 2), fullgraph=True, backend='eager')\n"
            "print(f(torch.tensor([[[1.], [3.], [2.]]])).tolist())")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.strip() == "[[[1, 2]]]", done.stderr


def test_two_threads(w, rng):
    sets = [arguments(w, np.random.default_rng(seed)) for seed in range(2)]
    call = lambda s: s[0].call(kvscout.msa_proxy_score_fp4, w)  # noqa: E731
    expected = [call(s) for s in sets]
    wrong = []

    def work(i):
        for _ in range(50):
            if not torch.equal(call(sets[i]), expected[i]):
                wrong.append(i)

    threads = [threading.Thread(target=work, args=(i,)) for i in (0, 1)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    assert not wrong


def test_tensors_that_require_gradients(w, rng):
    q = w.array(rng.standard_normal((2, 1, 128)), "float32").requires_grad_()
    codes, _ = kvscout.nvfp4_quantize(q * 2, kvscout.global_scale_of(q))
    assert np.array_equal(w.host(codes).reshape(2, 64),
                          oracle.quantize(w.host(q.detach()).reshape(2, 128) * 2, float(kvscout.global_scale_of(q)))[0])
    parameter = torch.nn.Parameter(q.detach())
    assert torch.equal(kvscout.nvfp4_quantize(parameter, 1.0)[0], kvscout.nvfp4_quantize(q.detach(), 1.0)[0])


def test_tensors_without_memory_are_refused_by_name(w, rng):
    _, data, cu, keywords = arguments(w, rng)
    bounds = dict(max_seqlen_q=3, max_k_tiles=4)
    for at, name in ((0, "q_fp4"), (1, "k_fp4")):
        changed = [x.to("meta") if i == at else x for i, x in enumerate(data)]
        for known in (bounds, {}):
            with pytest.raises(ValueError, match=f"^msa_proxy_score_fp4: {name}: got Tensor .*meta.*expected") as error:
                kvscout.msa_proxy_score_fp4(*changed, 0.5, 0.25, cu, **keywords, **known)
            assert "\n" not in str(error.value)
    with pytest.raises(ValueError, match="^msa_proxy_score_fp4: output: got Tensor .*meta"):
        kvscout.msa_proxy_score_fp4(*data, 0.5, 0.25, cu, **keywords, **bounds, output=w.empty((4, 4, 5)).to("meta"))
    with pytest.raises(ValueError, match="^nvfp4_quantize: a: got Tensor "):
        kvscout.nvfp4_quantize(w.array(np.eye(16), "float32").to_sparse(), 1.0)


def test_tensors_that_only_trace(w, rng):
    """Outside of torch.compile, too: shapes without values."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    _, data, cu, keywords = arguments(w, rng)
    with FakeTensorMode() as mode:
        fake = [mode.from_tensor(x) for x in data]
        paged = {k: mode.from_tensor(v) for k, v in keywords.items()}
        scores = kvscout.msa_proxy_score_fp4(*fake, 0.5, 0.25, mode.from_tensor(cu), **paged, max_seqlen_q=3, max_k_tiles=4)
        ids = kvscout.msa_topk_select(scores, 3)
    assert type(ids).__name__ == "FakeTensor" and ids.shape == (5, 4, 3) and scores.shape == (4, 4, 5)
    assert kvscout.msa_topk_select(w.empty((2, 9, 5)), 3).device.type == w.device  # plain tensors go their own way
