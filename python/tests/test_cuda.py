"""What only a GPU can show: streams, graphs, devices, the host's part. All of it is "not run" without one."""

from __future__ import annotations

import threading

import numpy as np
import pytest

import kvscout
import problems
from conftest import HAS_CUDA, World, needs_cuda, torch

pytestmark = needs_cuda

W = World("cuda")


class Call:
    """A score with everything given, on the device."""

    def __init__(self, rng, k_lengths=(300, 900), width=10):
        self.problem = problems.make(rng, [1] * len(k_lengths), list(k_lengths), width=width)
        self.arrays = [W.array(x) for x in (self.problem.q_fp4, self.problem.k_fp4, self.problem.q_scale, self.problem.k_scale)]
        self.cu = W.array(self.problem.cu_seqlens_q)
        self.keywords = {k: W.array(v) for k, v in self.problem.keywords.items()}
        self.out = W.empty((4, width, len(k_lengths)))

    def __call__(self, **changes):
        options = {"max_seqlen_q": 1, "max_k_tiles": self.out.shape[1], "output": self.out, **self.keywords, **changes}
        return kvscout.msa_proxy_score_fp4(*self.arrays, 0.5, 0.25, changes.pop("cu", self.cu),
                                           **{k: v for k, v in options.items() if k != "cu"})


def capture(function, warm=True):
    if warm:
        function()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        function()
    return graph


def test_a_graph_replays_with_other_lengths_and_tables(rng):
    call = Call(rng, (512, 512))
    graph = capture(call)
    for lengths in ([900, 1], [0, 1280], [129, 640]):
        call.keywords["seqused_k"].copy_(torch.tensor(lengths))
        call.keywords["page_table"].copy_(torch.from_numpy(rng.integers(0, len(call.arrays[1]), (2, 10))))
        call.out.fill_(7)
        graph.replay()
        got = call.out.clone()
        assert torch.equal(call(output=None), got)


def test_bounds_under_capture_are_a_clear_error_and_the_capture_goes_on(rng):
    call = Call(rng)
    expected = call().clone()
    on_host, wide = call.keywords["seqused_k"].cpu(), call.keywords["page_table"].long()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        with pytest.raises(ValueError, match="max_seqlen_q and max_k_tiles"):
            call(max_seqlen_q=None, max_k_tiles=None, output=None)
        with pytest.raises(ValueError, match="seqused_k.*under stream capture"):
            call(seqused_k=on_host)
        with pytest.raises(ValueError, match="page_table.*under stream capture"):
            call(page_table=wide)
        call()
    call.out.fill_(7)
    graph.replay()
    assert torch.equal(call.out, expected)


def test_select_append_and_quantize_in_a_graph(rng):
    scores = W.array(rng.standard_normal((2, 300, 5)), "float32")
    ids, valid = W.empty((5, 2, 16), "int32"), W.int32([300, 2, 0, 17, 299])
    graph = capture(lambda: kvscout.msa_topk_select(scores, 16, valid, ids, 0, 1))
    valid.copy_(torch.tensor([5, 300, 1, 0, 20]))
    scores.copy_(torch.randn_like(scores))
    ids.fill_(7)
    graph.replay()
    assert torch.equal(kvscout.msa_topk_select(scores, 16, valid, None, 0, 1), ids)

    k, slots = W.array(rng.standard_normal((3, 1, 128)), "bfloat16"), W.array(np.array([0, 130, -1]))
    pool = W.empty((2, 9216), "uint8")
    codes = pool.as_strided((2, 1, 128, 64), (9216, 8192, 64, 1))
    graph = capture(lambda: kvscout.msa_index_append_fp4(k, codes, pool[:, 8192:], slots, 300.0))
    pool.zero_()
    slots.copy_(torch.tensor([5, -1, 200]))
    graph.replay()
    again = torch.zeros_like(pool)
    kvscout.msa_index_append_fp4(k, again.as_strided(codes.shape, codes.stride()), again[:, 8192:], slots, 300.0)
    assert torch.equal(pool, again) and pool.any()


def test_no_allocation_and_no_synchronisation_when_everything_is_given(rng):
    call = Call(rng)
    call()
    torch.cuda.synchronize()
    before = torch.cuda.memory_stats()["allocation.all.allocated"]
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(10):
            call()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert torch.cuda.memory_stats()["allocation.all.allocated"] == before


def test_the_current_stream_is_used(rng):
    """Inputs are written on a side stream behind a long wait: a call on any other stream would read the old ones."""
    call = Call(rng)
    expected = call(output=None).clone()
    good = call.arrays[1].clone()
    call.arrays[1].zero_()
    torch.cuda.synchronize()
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        torch.cuda._sleep(200_000_000)
        call.arrays[1].copy_(good)
        got = call(output=torch.full_like(call.out, 7))
    side.synchronize()
    assert torch.equal(got, expected)


def test_two_streams_in_two_threads(rng):
    calls = [Call(np.random.default_rng(i)) for i in range(2)]
    expected = [c(output=None).clone() for c in calls]
    torch.cuda.synchronize()
    wrong = []

    def work(i):
        with torch.cuda.stream(torch.cuda.Stream()):
            for _ in range(200):
                if not torch.equal(calls[i](), expected[i]):
                    wrong.append(i)

    threads = [threading.Thread(target=work, args=(i,)) for i in (0, 1)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    assert not wrong


def test_lengths_on_the_host_and_pinned(rng):
    call = Call(rng)
    expected = call(output=None).clone()
    for move in (lambda x: x.cpu(), lambda x: x.cpu().numpy(), lambda x: x.cpu().pin_memory(), lambda x: x.cpu().long()):
        got = call(output=None, cu=move(call.cu), **{k: move(v) for k, v in call.keywords.items()})
        assert torch.equal(got, expected)
        bounds = call(output=None, max_seqlen_q=None, max_k_tiles=None, cu=move(call.cu),
                      **{k: move(v) for k, v in call.keywords.items()})
        assert torch.equal(bounds, expected[:, : bounds.shape[1]])


def test_data_on_two_devices_is_refused(rng):
    call = Call(rng)
    call.arrays[3] = call.arrays[3].cpu()
    with pytest.raises(ValueError, match="k_scale.*host.*CUDA device 0"):
        call()
    with pytest.raises(ValueError, match="output.*host"):
        Call(rng)(output=call.out.cpu())


@pytest.mark.skipif(HAS_CUDA and torch.cuda.device_count() < 2, reason="not run: one GPU only")
def test_another_device_is_current(rng):
    call = Call(rng)
    expected = call(output=None)
    for name in ("arrays",):
        setattr(call, name, [x.to("cuda:1") for x in getattr(call, name)])
    call.cu, call.out = call.cu.to("cuda:1"), call.out.to("cuda:1")
    call.keywords = {k: v.to("cuda:1") for k, v in call.keywords.items()}
    assert torch.cuda.current_device() == 0
    got = call()
    assert got.device.index == 1 and torch.equal(got.cpu(), expected.cpu()) and torch.cuda.current_device() == 0


def test_cupy_arrays_on_their_current_stream(rng):
    cupy = pytest.importorskip("cupy", reason="not run: cupy is not installed")
    call = Call(rng)
    expected = call(output=None).cpu().numpy()
    put = lambda x: cupy.from_dlpack(x)  # noqa: E731
    with cupy.cuda.Stream(non_blocking=True):
        got = kvscout.msa_proxy_score_fp4(*[put(x) for x in call.arrays], 0.5, 0.25, put(call.cu), max_seqlen_q=1,
                                          max_k_tiles=10, **{k: put(v) for k, v in call.keywords.items()})
        assert isinstance(got, cupy.ndarray) and np.array_equal(got.get(), expected)
        ids = kvscout.msa_topk_select(got, 4)
        assert np.array_equal(ids.get(), kvscout.msa_topk_select(expected, 4))


def test_jax_arrays_on_the_device(rng):
    jax = pytest.importorskip("jax", reason="not run: jax is not installed")
    if not any(d.platform == "gpu" for d in jax.devices()):
        pytest.skip("not run: jax sees no GPU")
    call = Call(rng)
    expected = call().clone()
    put = lambda x: jax.dlpack.from_dlpack(x.contiguous())  # noqa: E731
    out = torch.empty_like(expected)
    got = kvscout.msa_proxy_score_fp4(*[put(x) for x in call.arrays], 0.5, 0.25, put(call.cu), max_seqlen_q=1, output=out,
                                      **{k: put(v) for k, v in call.keywords.items()})
    torch.cuda.synchronize()
    assert got is out and torch.equal(out, expected)


def test_backends_name_the_device():
    assert any(b.available and b.name.startswith("sm") for b in kvscout.backends())
