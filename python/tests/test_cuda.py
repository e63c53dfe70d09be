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
    """A score, or score and selection, with everything given, on the device."""

    def __init__(self, rng, k_lengths=(300, 900), width=10):
        self.problem = problems.make(rng, [1] * len(k_lengths), list(k_lengths), width=width)
        self.arrays = [W.array(x) for x in (self.problem.q_fp4, self.problem.k_fp4, self.problem.q_scale, self.problem.k_scale)]
        self.cu = W.array(self.problem.cu_seqlens_q)
        self.keywords = {k: W.array(v) for k, v in self.problem.keywords.items()}
        self.out = W.empty((4, width, len(k_lengths)))
        self.ids = W.empty((len(k_lengths), 4, 8), "int32")

    def __call__(self, **changes):
        options = {"max_seqlen_q": 1, "max_k_tiles": self.out.shape[1], "output": self.out, **self.keywords, **changes}
        return kvscout.msa_proxy_score_fp4(*self.arrays, 0.5, 0.25, changes.pop("cu", self.cu),
                                           **{k: v for k, v in options.items() if k != "cu"})


    def index(self, **changes):
        options = {"max_seqlen_q": 1, "max_k_tiles": self.out.shape[1], "topk": 8, "force_end_blocks": 1, "output": self.ids,
                   **self.keywords, **changes}
        return kvscout.msa_index_select_fp4(*self.arrays, 0.5, 0.25, self.cu, **options)

    def workspace(self):
        bounds = {"max_seqlen_q": 1, "max_k_tiles": self.out.shape[1], "topk": 8, "force_end_blocks": 1}
        needed = kvscout.msa_index_select_fp4_workspace(*self.arrays, 0.5, 0.25, self.cu, **bounds, **self.keywords)
        return W.array(np.full(max(needed, 256), 0xA5, np.uint8))


def capture(function):
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


@pytest.mark.parametrize("own", [True, False])
def test_the_fused_index_in_a_graph(rng, own):
    """With a workspace of the caller, which may hold anything, or one out of the graph's pool."""
    call = Call(rng, (512, 512))
    workspace = call.workspace() if own else None
    graph = capture(lambda: call.index(workspace=workspace))
    for lengths in ([900, 1], [0, 1280], [129, 640]):
        call.keywords["seqused_k"].copy_(torch.tensor(lengths))
        call.keywords["page_table"].copy_(torch.from_numpy(rng.integers(0, len(call.arrays[1]), (2, 10))))
        call.ids.fill_(-7)
        if own:
            workspace.fill_(0x5A)
        graph.replay()
        valid = (call.keywords["seqused_k"] + 127) // 128
        assert torch.equal(call.ids, kvscout.msa_topk_select(call(output=None), 8, valid, None, 0, 1))


def test_a_workspace_that_is_too_small_is_refused(rng):
    call = Call(rng, width=600)
    workspace = call.workspace()
    if workspace.numel() == 256:
        pytest.skip("not run: the back end needs no workspace for this call")
    with pytest.raises(ValueError, match="workspace: got 256 bytes"):
        call.index(workspace=workspace[:256])
    with pytest.raises(ValueError, match="workspace: got address"):
        call.index(workspace=torch.zeros(workspace.numel() + 512, dtype=torch.uint8, device="cuda")[8:])


def test_errors_under_capture_are_clear_and_the_capture_goes_on(rng, monkeypatch):
    call = Call(rng)
    expected, chosen = call().clone(), call.index().clone()
    on_host, wide = call.keywords["seqused_k"].cpu(), call.keywords["page_table"].long()
    scores, slots = call.out.clone(), W.int32([0, 1])
    k, codes, scales = W.array(np.ones((2, 1, 128)), "bfloat16"), W.empty((1, 1, 128, 64), "uint8"), W.empty((1, 1024), "uint8")
    workspace = call.workspace()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for function in (call, call.index):
            with pytest.raises(ValueError, match="max_seqlen_q and max_k_tiles"):
                function(max_seqlen_q=None, max_k_tiles=None, output=None)
            with pytest.raises(ValueError, match="seqused_k.*under stream capture"):
                function(seqused_k=on_host)
            with pytest.raises(ValueError, match="page_table.*under stream capture"):
                function(page_table=wide)
        with pytest.raises(ValueError, match="num_valid_pages.*under stream capture"):
            kvscout.msa_topk_select(scores, 4, torch.tensor([1, 2]))
        with pytest.raises(ValueError, match="slot_mapping.*under stream capture"):
            kvscout.msa_index_append_fp4(k, codes, scales, slots, 1.0)
        with monkeypatch.context() as m:
            m.setenv("KVSCOUT_CHECK", "1")
            with pytest.raises(ValueError, match="captur"):
                call()
            with pytest.raises(ValueError, match="captur"):
                call.index(workspace=workspace)
        call()
        call.index(workspace=workspace)
    call.out.fill_(7), call.ids.fill_(7)
    graph.replay()
    assert torch.equal(call.out, expected) and torch.equal(call.ids, chosen)


def test_checked_mode_on_the_device(rng, monkeypatch):
    call = Call(rng)
    monkeypatch.setenv("KVSCOUT_CHECK", "1")
    call(), call.index()
    call.keywords["page_table"][1, 2] = 99
    for function in (call, call.index):
        with pytest.raises(ValueError, match="page 99 in column 2 of request 1"):
            function()


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

    x, scale = W.array(rng.standard_normal((5, 128)), "float32"), W.array(np.float32([300]))
    made = []
    graph = capture(lambda: made.append(kvscout.nvfp4_quantize(x, scale)))
    x.mul_(-2), scale.mul_(0.5)
    graph.replay()
    for got, expected in zip(made[-1], kvscout.nvfp4_quantize(x, scale)):
        assert torch.equal(got, expected) and expected.any()


def test_no_allocation_and_no_synchronisation_when_everything_is_given(rng):
    call = Call(rng)
    workspace, valid = call.workspace(), W.int32([3, 8])
    k, slots = W.array(rng.standard_normal((2, 1, 128)), "bfloat16"), W.array(np.array([5, 200]))
    codes, scales = torch.zeros_like(call.arrays[1]), torch.zeros_like(call.arrays[3])

    def everything():
        call()
        call.index(workspace=workspace)
        kvscout.msa_topk_select(call.out, 8, valid, call.ids, 0, 1)
        kvscout.msa_index_append_fp4(k, codes, scales, slots, 300.0)

    everything()
    torch.cuda.synchronize()
    before = torch.cuda.memory_stats()["allocation.all.allocated"]
    torch.cuda.set_sync_debug_mode("error")
    torch.cuda._sleep(1_000_000_000)  # half a second of work ahead: nobody waits for it
    ahead = torch.cuda.Event()
    ahead.record()
    try:
        for _ in range(10):
            everything()
        assert not ahead.query(), "a call waited for the device"
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert torch.cuda.memory_stats()["allocation.all.allocated"] == before


def test_the_current_stream_is_used(rng):
    """Inputs are written on a side stream behind a long wait: a call on any other stream would read the old ones."""
    call = Call(rng)
    k, slots = W.array(rng.standard_normal((2, 1, 128)), "bfloat16"), W.array(np.array([5, 200]))

    def everything():
        codes, scales = torch.zeros_like(call.arrays[1]), torch.zeros_like(call.arrays[3])
        kvscout.msa_index_append_fp4(k, codes, scales, slots, 300.0)
        scores = call(output=torch.full_like(call.out, 7))
        return (scores, kvscout.msa_topk_select(scores, 4), call.index(output=torch.full_like(call.ids, -7)), codes, scales,
                *kvscout.nvfp4_quantize(k, 300.0))

    expected = everything()
    changed = [call.arrays[1], k]
    good = [x.clone() for x in changed]
    [x.zero_() for x in changed]
    torch.cuda.synchronize()
    with torch.cuda.stream(torch.cuda.Stream()):
        torch.cuda._sleep(200_000_000)
        [x.copy_(y) for x, y in zip(changed, good)]
        got = everything()
        torch.cuda.current_stream().synchronize()
    assert all(torch.equal(a, b) for a, b in zip(got, expected))


def test_two_streams_in_two_threads(rng):
    calls = [Call(np.random.default_rng(i)) for i in range(2)]
    workspaces = [c.workspace() for c in calls]  # one a stream
    expected = [(c(output=None), c.index(output=None)) for c in calls]
    torch.cuda.synchronize()
    wrong = []

    def work(i):
        with torch.cuda.stream(torch.cuda.Stream()):
            for _ in range(200):
                got = calls[i](), calls[i].index(workspace=workspaces[i])
                if not all(torch.equal(a, b) for a, b in zip(got, expected[i])):
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
    expected, chosen = call(output=None).cpu(), call.index(output=None).cpu()
    there = lambda x: x.to("cuda:1")  # noqa: E731
    call.arrays, call.keywords = [there(x) for x in call.arrays], {k: there(v) for k, v in call.keywords.items()}
    call.cu, call.out, call.ids = there(call.cu), there(call.out), there(call.ids)
    assert torch.cuda.current_device() == 0
    got, ids, made = call(), call.index(), call(output=None, max_seqlen_q=None, max_k_tiles=None)
    assert {x.device.index for x in (got, ids, made)} == {1} and torch.cuda.current_device() == 0
    assert torch.equal(got.cpu(), expected) and torch.equal(ids.cpu(), chosen)
    assert torch.equal(made.cpu(), expected[:, : made.shape[1]])
    scores = got.clone()
    assert torch.equal(kvscout.msa_topk_select(scores, 4).cpu(), kvscout.msa_topk_select(expected, 4))
    x = torch.randn(3, 128, device="cuda:1")
    for a, b in zip(kvscout.nvfp4_quantize(x, 300.0), kvscout.nvfp4_quantize(x.cpu(), 300.0)):
        assert torch.equal(a.cpu(), b)
    call.arrays[3] = call.arrays[3].to("cuda:0")
    with pytest.raises(ValueError, match="k_scale.*CUDA device 0.*CUDA device 1"):
        call()


def test_cupy_arrays_on_their_current_stream(rng):
    cupy = pytest.importorskip("cupy", reason="not run: cupy is not installed")
    call = Call(rng)
    expected, chosen = call(output=None).cpu().numpy(), call.index(output=None).cpu().numpy()
    put = lambda x: cupy.from_dlpack(x)  # noqa: E731
    data, cu, keywords = [put(x) for x in call.arrays], put(call.cu), {k: put(v) for k, v in call.keywords.items()}
    torch.cuda.synchronize()
    with cupy.cuda.Stream(non_blocking=True) as stream:
        score = lambda **more: kvscout.msa_proxy_score_fp4(*data, 0.5, 0.25, cu, **keywords, **more)  # noqa: E731
        got = score(max_seqlen_q=1, max_k_tiles=10)
        assert isinstance(got, cupy.ndarray) and np.array_equal(got.get(), expected)
        assert np.array_equal(score().get(), expected[:, :8])
        ids = kvscout.msa_topk_select(got, 4)
        assert np.array_equal(ids.get(), kvscout.msa_topk_select(expected, 4))
        fused = kvscout.msa_index_select_fp4(*data, 0.5, 0.25, cu, **keywords, max_seqlen_q=1, max_k_tiles=10, topk=8,
                                             force_end_blocks=1)
        assert isinstance(fused, cupy.ndarray) and np.array_equal(fused.get(), chosen)
        k = cupy.asarray(rng.standard_normal((2, 1, 128)).astype(np.float32))
        pools = [cupy.zeros((2, 1, 128, 64), np.uint8), cupy.zeros((2, 1024), np.uint8)]
        kvscout.msa_index_append_fp4(k, *pools, cupy.asarray(np.array([5, 200])), 300.0)
        on_host = [np.zeros(x.shape, np.uint8) for x in pools]
        kvscout.msa_index_append_fp4(k.get(), *on_host, np.array([5, 200]), 300.0)
        assert all(np.array_equal(a.get(), b) for a, b in zip(pools, on_host))
        for a, b in zip(kvscout.nvfp4_quantize(k, 300.0), kvscout.nvfp4_quantize(k.get(), 300.0)):
            assert np.array_equal(a.get(), b)
        out = cupy.zeros(expected.shape, np.float32)
        stream.synchronize()
        stream.begin_capture()
        with pytest.raises(ValueError, match="max_seqlen_q and max_k_tiles"):
            score()
        score(max_seqlen_q=1, output=out)
        graph = stream.end_capture()
        out.fill(7)
        graph.launch(stream)
        stream.synchronize()
        assert np.array_equal(out.get(), expected)


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


def test_compiled_with_inductor(rng):
    call = Call(rng)

    def step(scale):
        scores = kvscout.msa_proxy_score_fp4(*call.arrays, scale * 0.5, 0.25, call.cu, max_seqlen_q=1, max_k_tiles=10,
                                             **call.keywords)
        return kvscout.msa_topk_select(scores * 2, 4), call.index(output=None, return_scores=True)[1].sqrt()

    torch._dynamo.reset()
    scale = W.array(np.float32([0.5]))
    for a, b in zip(torch.compile(step, fullgraph=True)(scale), step(scale)):
        assert torch.equal(a.nan_to_num(-1), b.nan_to_num(-1))


def test_backends_name_the_device():
    assert any(b.available and b.name.startswith("sm") for b in kvscout.backends())
