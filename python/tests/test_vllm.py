"""The engine adapter driven as vLLM would: chunked prefill, decode with drafts that are rejected, pages that another
request used before, padding, mixed batches. After every step everything is compared with a plain float model,
which keeps a list of vectors for each request and knows neither pages nor slots.
"""

from __future__ import annotations

import types

import numpy as np
import pytest

import oracle
from conftest import HAS_CUDA, NO_CUDA, needs_torch, torch

pytestmark = needs_torch

if torch is not None:
    from kvscout.integrations.vllm import PAGE_BYTES, Indexer, NvFp4IndexCache, Step

SCALE = 2688.0 / 8.0
HEADS, TOPK = 4, 4


@pytest.fixture(params=["cpu", "cuda"])
def device(request):
    if request.param == "cuda" and not HAS_CUDA:
        pytest.skip(NO_CUDA)
    return request.param


class Engine:
    """The scheduler's side: requests, pages, slots; and the float model beside it."""

    def __init__(self, device, pages=24, width=16, padding_bytes=112):
        self.device, self.width = device, width
        self.rng = np.random.default_rng(3)
        pool = torch.full((pages, PAGE_BYTES + padding_bytes), 0xFF, dtype=torch.uint8, device=device)
        self.cache = NvFp4IndexCache(pool, 1, SCALE)
        self.buffer = torch.full((4096, HEADS, TOPK), -7, dtype=torch.int32, device=device)
        self.indexer = Indexer(HEADS, self.buffer)
        self.free = list(self.rng.permutation(pages))
        self.pages: dict[str, list[int]] = {}
        self.keys: dict[str, list[np.ndarray]] = {}  # the float model

    def start(self, name):
        self.pages[name], self.keys[name] = [], []

    def finish(self, name):
        self.free = self.pages.pop(name) + self.free  # dirty pages are the first to be used again
        del self.keys[name]

    def reject(self, name, tokens):
        """Drafts that were not accepted: the next tokens overwrite their slots."""
        if tokens:
            del self.keys[name][-tokens:]

    def store(self, name, key):
        """The slot of a request's next token, whose key the float model keeps."""
        position = len(self.keys[name])
        if position % 128 == 0 and position // 128 == len(self.pages[name]):
            self.pages[name].append(self.free.pop(0))
        self.keys[name].append(key)
        return self.pages[name][position // 128] * 128 + position % 128

    def vectors(self, *shape):
        x = torch.from_numpy(self.rng.standard_normal(shape).astype(np.float32)).bfloat16()
        return x, x.float().numpy().astype(np.float64)

    def step(self, work, pad_requests=0, pad_tokens=0):
        """`work`: [(request, tokens)]. Appends keys, selects, compares. Returns the ids."""
        tokens = sum(n for _, n in work)
        k, k_exact = self.vectors(tokens + pad_tokens, 128)
        q, q_exact = self.vectors(tokens + pad_tokens, HEADS, 128)
        slots, starts, lengths = [], [0], []
        table = np.full((len(work) + pad_requests, self.width), -1, np.int32)
        for row, (name, n) in enumerate(work):
            slots += [self.store(name, k_exact[starts[-1] + i]) for i in range(n)]
            starts.append(starts[-1] + n)
            lengths.append(len(self.keys[name]))
            table[row, : len(self.pages[name])] = self.pages[name]
        per_pad = pad_tokens // pad_requests if pad_requests else 0
        for _ in range(pad_requests):
            starts.append(starts[-1] + per_pad)
            lengths.append(0)
        slots += [-1] * pad_tokens
        put = lambda x, t=torch.int32: torch.tensor(np.array(x), dtype=t, device=self.device)  # noqa: E731
        common = types.SimpleNamespace(
            num_reqs=len(lengths), query_start_loc=put(starts + [starts[-1]] * 3), seq_lens=put(lengths + [5]),
            block_table_tensor=put(np.concatenate([table, table[:1]])), max_query_len=max(n for _, n in work),
            max_seq_len=max(lengths))
        step = Step.from_metadata(common)
        self.cache.append(k.to(self.device), put(slots, torch.int64))
        self.buffer.fill_(-7)
        ids = self.indexer.select(q.to(self.device).flatten(1), self.cache, step)
        assert ids.data_ptr() == self.buffer.data_ptr() and (self.buffer[len(ids):] == -7).all()
        assert (ids[tokens:] == -1).all(), "padding chose blocks"
        self.compare(work, ids.cpu().numpy(), q_exact)
        self.compare_context_parallel(ids, q.to(self.device), step, tokens)
        return ids

    def compare(self, work, ids, q):
        at = 0
        for name, n in work:
            keys = np.stack(self.keys[name])
            codes, linear = oracle.quantize(keys.astype(np.float32), SCALE)
            # The float model of the keys as they were stored: rounded to 4 bits once, no pages.
            stored = (oracle.unpack_codes(codes).reshape(len(keys), 8, 16) * oracle.E4M3[linear][:, :, None]
                      ).reshape(len(keys), 128) / SCALE
            assert np.abs(stored - keys).mean() < 0.1 * np.abs(keys).mean(), "rounding is not what 4 bits cost"
            for i in range(n):
                position = len(keys) - n + i
                visible = position + 1
                blocks = -(-visible // 128)
                for h in range(HEADS):
                    logits = stored[:visible] @ q[at + i, h]
                    best = np.array([logits[b * 128 : b * 128 + 128].max() for b in range(blocks)])
                    row = ids[at + i, h]
                    chosen = row[row >= 0]
                    assert len(chosen) == min(TOPK, blocks) and (np.diff(chosen) > 0).all()
                    assert (row[len(chosen):] == -1).all() and chosen[-1] == blocks - 1, "the local block"
                    others = np.setdiff1d(np.arange(blocks), chosen)
                    free = chosen[:-1]
                    if len(others) and len(free):
                        assert best[free].min() >= best[others].max() - 1e-4
            at += n

    def compare_context_parallel(self, ids, q, step, tokens, ranks=3):
        """Every rank scores its blocks; the merge is exactly the selection on one rank."""
        ids = ids.clone()
        parts = [self.indexer.candidates(q, self.cache, step, r, ranks) for r in range(ranks)]
        lengths, starts = step.seq_lens.tolist(), step.cu_seqlens_q.tolist()
        visible = np.zeros(len(q), np.int32)
        for b, length in enumerate(lengths):
            for i in range(starts[b], starts[b + 1]):
                position = length - (starts[b + 1] - i)
                visible[i] = position // 128 + 1 if length else 0
        merged = self.indexer.merge(torch.stack([p[0] for p in parts]), torch.stack([p[1] for p in parts]),
                                    torch.from_numpy(visible).to(q.device))
        assert torch.equal(merged, ids)


def test_an_engine_from_start_to_end(device):
    engine = Engine(device)
    engine.start("a")
    for chunk in (256, 256, 189):  # prefill in chunks, each sees the ones before
        engine.step([("a", chunk)])
    for rejected in (0, 3, 1, 2, 3):  # one token and three drafts
        engine.step([("a", 4)])
        engine.reject("a", rejected)
    engine.start("b")
    engine.step([("a", 1), ("b", 130)])  # decode and prefill in one batch
    engine.start("c")
    engine.step([("a", 1), ("b", 1), ("c", 40)])
    engine.finish("a")  # its pages, full of its keys, go to whoever comes next
    engine.start("d")
    engine.step([("b", 1), ("d", 300), ("c", 1)])
    for rejected in (1, 0):
        engine.step([("b", 2), ("c", 2), ("d", 2)], pad_requests=2, pad_tokens=4)
        for name in "bcd":
            engine.reject(name, rejected)
    engine.finish("c")
    engine.finish("b")
    engine.start("e")
    engine.step([("d", 1), ("e", 128)])
    engine.step([("d", 1), ("e", 1)], pad_requests=6, pad_tokens=6)


@pytest.mark.parametrize("tokens", range(1, 9))
def test_uniform_decode_of_1_to_8_tokens(device, tokens):
    engine = Engine(device)
    for name, n in (("x", 300), ("y", 127)):
        engine.start(name)
        engine.step([(name, n)])
    engine.step([("x", tokens), ("y", tokens)], pad_requests=1, pad_tokens=tokens)


@pytest.mark.parametrize("ranks", [1, 2, 5])
@pytest.mark.parametrize("init,local", [(0, 1), (2, 0), (1, 2), (0, 0)])
def test_context_parallel_ties_go_to_the_lower_block(device, ranks, init, local):
    """Keys of three values, so that many blocks have one score, on either side of every rank."""
    torch.manual_seed(ranks)
    cache = NvFp4IndexCache(torch.zeros(26, PAGE_BYTES, dtype=torch.uint8, device=device), 1, SCALE)
    keys = torch.randint(-1, 2, (26, 1)).repeat_interleave(128, 0).expand(-1, 128).bfloat16().contiguous().to(device)
    cache.append(keys, torch.arange(26 * 128, device=device))
    indexer = Indexer(HEADS, torch.full((8, HEADS, TOPK), -7, dtype=torch.int32, device=device), init, local)
    lengths = torch.tensor([13 * 128, 700], dtype=torch.int32, device=device)
    step = Step.decode(lengths, torch.arange(26, dtype=torch.int32, device=device).view(2, 13), 2, 13 * 128)
    q = torch.ones(4, HEADS, 128, device=device).bfloat16()
    chosen = indexer.select(q, cache, step).clone()
    parts = [indexer.candidates(q, cache, step, r, ranks) for r in range(ranks)]
    visible = torch.tensor([13, 13, 6, 6], dtype=torch.int32, device=device)
    merged = indexer.merge(torch.stack([p[0] for p in parts]), torch.stack([p[1] for p in parts]), visible)
    assert torch.equal(merged, chosen)


def test_decode_steps_in_their_short_form(device):
    engine = Engine(device)
    engine.start("x")
    engine.step([("x", 200)])
    lengths = torch.tensor([200, 0], dtype=torch.int32, device=device)
    table = torch.tensor([engine.pages["x"] + [-1], [-1, -1, -1]], dtype=torch.int32, device=device)
    step = Step.decode(lengths, table, 2, 384)
    assert step.cu_seqlens_q.tolist() == [0, 2, 4] and step.tiles == 3
    q = torch.randn(4, HEADS, 128, device=device).bfloat16()
    assert engine.indexer.reserve(q, engine.cache, step) >= 0
    ids = engine.indexer.select(q, engine.cache, step)
    assert ids[0, 0].tolist() == [0, 1, -1, -1] and (ids[2:] == -1).all()


def test_slots_longer_and_shorter_than_the_keys(device):
    engine = Engine(device)
    k = torch.randn(3, 128, device=device).bfloat16()
    before = engine.cache.pool.clone()
    engine.cache.append(k, torch.tensor([-1, -1, -1, 7, 8], device=device))
    assert torch.equal(engine.cache.pool, before)
    engine.cache.append(k, torch.tensor([9], device=device))
    changed = (engine.cache.pool != before).any(1)
    assert changed.tolist() == [True] + [False] * (len(before) - 1)
    assert torch.equal(engine.cache.pool[:, PAGE_BYTES:], before[:, PAGE_BYTES:]), "bytes that belong to others"


def test_heads_are_never_taken_for_tokens():
    cache = NvFp4IndexCache(torch.zeros(3, 2 * PAGE_BYTES, dtype=torch.uint8), key_heads=2)
    buffer = torch.empty(8, 4, 16, dtype=torch.int32)
    indexer = Indexer(4, buffer)
    step = Step.decode(torch.tensor([5, 9], dtype=torch.int32), torch.zeros(2, 3, dtype=torch.int32), 1, 384)
    for wrong in (torch.ones(4, 2, 128), torch.ones(4, 256), torch.ones(1, 8, 128), torch.ones(1024)):
        with pytest.raises(ValueError, match="index_q: got shape .*expected .tokens, 4, 128."):
            indexer.select(wrong.bfloat16(), cache, step)
    with pytest.raises(ValueError, match="index_k: got shape .4, 128., expected .tokens, 2, 128."):
        cache.append(torch.ones(4, 128).bfloat16(), torch.arange(2))
    assert torch.equal(indexer.select(torch.ones(2, 512).bfloat16(), cache, step).clone(),
                       indexer.select(torch.ones(2, 4, 128).bfloat16(), cache, step))
    with pytest.raises(ValueError, match="buffer: got shape"):
        Indexer(4, buffer[0])
    for rank, ranks in ((2, 2), (-1, 2), (0, 0)):
        with pytest.raises(ValueError, match="rank, ranks"):
            indexer.candidates(torch.ones(2, 4, 128).bfloat16(), cache, step, rank, ranks)
    for scale in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="global_scale"):
            NvFp4IndexCache(cache.pool, 2, scale)


def test_page_size():
    assert NvFp4IndexCache.page_bytes() == 9216 and 128 * 128 * 2 / 9216 > 3.5
    with pytest.raises(ValueError, match="9216"):
        NvFp4IndexCache(torch.zeros(3, 9000, dtype=torch.uint8))


@pytest.mark.parametrize("tokens", [1, 4])
def test_decode_in_place(device, tokens):
    """What an engine captures: one append and one selection over buffers that stay where they are, at the model's
    largest context. On a GPU captured once and replayed; on the host called. Every step has other keys, lengths,
    tables and requests, and padding."""
    engine = Engine(device)
    for name, n in (("x", 700), ("y", 90)):
        engine.start(name)
        engine.step([(name, n)])
    put = lambda shape, dtype: torch.zeros(shape, dtype=dtype, device=device)  # noqa: E731
    lengths, table = put(3, torch.int32), put((3, 16), torch.int32)
    q, k = put((3 * tokens, HEADS, 128), torch.bfloat16), put((3 * tokens, 128), torch.bfloat16)
    slots = put(3 * tokens, torch.int64) - 1
    step = Step.decode(lengths, table, tokens, 16 * 128)
    engine.indexer.reserve(q, engine.cache, step)

    def replay():
        engine.cache.append(k, slots)
        engine.indexer.select(q, engine.cache, step)

    replay()
    if device == "cuda":
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            replay()
        replay = graph.replay
    engine.start("z")
    for names in ("xy", "yx", "", "zxy", "xz", "y"):
        k_new, k_exact = engine.vectors(3 * tokens, 128)
        q_new, q_exact = engine.vectors(3 * tokens, HEADS, 128)
        used, new_slots, rows = [0] * 3, [-1] * (3 * tokens), np.full((3, 16), -1, np.int32)
        work = [(name, tokens) for name in names]
        for row, (name, _) in enumerate(work):
            for at in range(row * tokens, (row + 1) * tokens):
                new_slots[at] = engine.store(name, k_exact[at])
            used[row] = len(engine.keys[name])
            rows[row, : len(engine.pages[name])] = engine.pages[name]
        for static, new in ((k, k_new), (q, q_new), (slots, torch.tensor(new_slots)), (lengths, torch.tensor(used)),
                            (table, torch.from_numpy(rows))):
            static.copy_(new)
        engine.buffer.fill_(-7)
        if engine.indexer.workspace is not None:
            engine.indexer.workspace.fill_(0xA5)  # may hold anything
        replay()
        ids = engine.buffer[: 3 * tokens].cpu().numpy()
        engine.compare(work, ids, q_exact)
        assert (ids[len(work) * tokens :] == -1).all() and (engine.buffer[3 * tokens :] == -7).all()
        if names:
            engine.reject(names[0], tokens - 1)
