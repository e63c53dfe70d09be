// quantize, append, select and index on a GPU, through the public calls, beside the machine's
// ceilings.
//
//   gpu_operations [backend [section...]]      sections: quantize select step index
#include <cuda_runtime.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <tuple>

#include "gpu_timing.cuh"
#include "kvscout/kvscout.h"

namespace {

using namespace kvscout;
using bench::microseconds;

const Device kGpu{Device::cuda, 0};
std::string backend;

__device__ std::uint32_t hash(std::uint64_t i) {
  i = (i ^ (i >> 30)) * 0xBF58476D1CE4E5B9ull;
  i = (i ^ (i >> 27)) * 0x94D049BB133111EBull;
  return static_cast<std::uint32_t>(i >> 32);
}
enum class Fill { bytes, scales, halves, normals };
__global__ void fill_kernel(std::uint32_t* p, std::int64_t words, Fill what) {
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < words;
       i += static_cast<std::int64_t>(gridDim.x) * blockDim.x) {
    const std::uint32_t h = hash(i + 1);
    if (what == Fill::bytes) p[i] = h;
    if (what == Fill::scales) p[i] = (h & 0x0F0F0F0Fu) | 0x30303030u;  // 2^-1 .. 2^1
    // 16-bit floats of both kinds with exponents near 1
    if (what == Fill::halves) p[i] = (h & 0x807F807Fu) | 0x3F003F00u;
    if (what == Fill::normals) p[i] = __float_as_uint(normcdfinvf((h + 0.5f) * 2.3283064e-10f));
  }
}

struct Memory {
  void* data = nullptr;
  explicit Memory(std::int64_t bytes) {
    bench::require(cudaMalloc(&data, bytes + 256), "cudaMalloc");
  }
  Memory(std::int64_t bytes, Fill what) : Memory(bytes) {
    fill_kernel<<<1024, 256>>>(static_cast<std::uint32_t*>(data), bytes / 4, what);
  }
  explicit Memory(const std::vector<std::int32_t>& v)
      : Memory(static_cast<std::int64_t>(v.size() * 4)) {
    cudaMemcpy(data, v.data(), v.size() * 4, cudaMemcpyHostToDevice);
  }
  Memory(const Memory&) = delete;
  ~Memory() { cudaFree(data); }
};

Options on(cudaStream_t s) {
  Options o;
  o.stream = s;
  if (!backend.empty()) o.backend = backend.c_str();
  return o;
}

void quantize(const bench::Ceilings& c) {
  std::printf("\nquantize, rows of 128, 128x4 scales\n");
  for (const auto& [type, size, name] :
       {std::tuple{DType::bf16, 2, "bf16"}, {DType::f16, 2, "f16"}, {DType::f32, 4, "f32"}})
    for (const std::int64_t rows : {std::int64_t{256}, std::int64_t{1} << 20}) {
      const Memory a(rows * 128 * size, size == 4 ? Fill::normals : Fill::halves), codes(rows * 64),
          scales(rows * 8);
      QuantizeArgs q;
      q.a = Tensor(a.data, type, {rows, 128}, kGpu);
      q.a_global_sf.value = 100;
      q.codes = Tensor(codes.data, DType::u8, {rows, 64}, kGpu);
      q.scales = Tensor(scales.data, DType::u8, {rows, 8}, kGpu);
      const double us =
          microseconds([&](cudaStream_t s) { nvfp4_quantize(q, on(s)); }, rows > 1000 ? 4 : 20);
      const double tb = rows * (128.0 * size + 72) / us / 1e6;
      std::printf("  %-4s %8lld rows  %8.2f us  %5.2f TB/s  %3.0f%% of copy\n", name,
                  static_cast<long long>(rows), us, tb, 100 * tb / c.copy);
    }
}

void select() {
  std::printf("\nselect, topk 16\n");
  struct Shape {
    std::int64_t tokens, heads, tiles;
    bool tiles_inside;
    int topk;
  };
  for (const Shape& x : {Shape{8192, 4, 512, false, 16},
                         {8192, 4, 512, true, 16},
                         {8192, 4, 512, false, 64},
                         {2048, 4, 256, false, 16},
                         {256, 4, 1024, false, 16},
                         {256, 4, 1024, true, 16},
                         {64, 4, 1024, false, 16},
                         {64, 4, 1024, true, 16},
                         {8, 4, 256, false, 16},
                         {1, 4, 64, false, 16},
                         {1, 4, 8192, false, 16}}) {
    const Memory scores(x.tokens * x.heads * x.tiles * 4, Fill::normals),
        ids(x.tokens * x.heads * x.topk * 4);
    SelectArgs a;
    a.max_score = Tensor(scores.data, DType::f32, {x.heads, x.tiles, x.tokens}, kGpu);
    if (x.tiles_inside) a.max_score = a.max_score.strided({x.tiles * x.tokens, 1, x.tiles});
    a.topk = x.topk;
    a.output = Tensor(ids.data, DType::i32, {x.tokens, x.heads, x.topk}, kGpu);
    const double us = microseconds([&](cudaStream_t s) { msa_topk_select(a, on(s)); });
    std::printf(
        "  %5lld tokens x %lld heads x %5lld blocks, %s inside, k %2d  %8.2f us  %5.2f TB/s\n",
        static_cast<long long>(x.tokens), static_cast<long long>(x.heads),
        static_cast<long long>(x.tiles), x.tiles_inside ? "tiles " : "tokens", x.topk, us,
        x.tokens * x.heads * x.tiles * 4 / us / 1e6);
  }
}

// A decode or prefill problem with paged keys, one key head.
struct Problem {
  std::int64_t batch, queries, keys, heads, pages_each, tokens;
  Memory q, qs, k, ks, cu_q, used, table, ids, scores;
  Memory workspace;
  IndexArgs index;
  std::size_t workspace_bytes;

  static std::vector<std::int32_t> steps(std::int64_t n, std::int64_t each) {
    std::vector<std::int32_t> v;
    for (std::int64_t i = 0; i <= n; ++i) v.push_back(static_cast<std::int32_t>(i * each));
    return v;
  }
  static std::vector<std::int32_t> permuted(std::int64_t n) {
    std::vector<std::int32_t> v(n);
    std::uint64_t s = 1;
    for (std::int64_t i = 0; i < n; ++i) v[i] = static_cast<std::int32_t>(i);
    for (std::int64_t i = n - 1; i > 0; --i) {
      s = s * 6364136223846793005ull + 1442695040888963407ull;
      std::swap(v[i], v[(s >> 33) % (i + 1)]);
    }
    return v;
  }

  Problem(std::int64_t b, std::int64_t len_q, std::int64_t len_k, bool causal,
          std::int64_t max_tiles = 0)
      : batch(b),
        queries(len_q),
        keys(len_k),
        heads(4),
        pages_each((len_k + 127) / 128),
        tokens(b * len_q),
        q(tokens * heads * 64, Fill::bytes),
        qs((tokens * heads + 128) * 8, Fill::scales),
        k(b * pages_each * 8192, Fill::bytes),
        ks(b * pages_each * 1024, Fill::scales),
        cu_q(steps(b, len_q)),
        used(std::vector<std::int32_t>(b, static_cast<std::int32_t>(len_k))),
        table(permuted(b * pages_each)),
        ids(tokens * heads * 16 * 4),
        scores(tokens * heads * std::max(max_tiles, pages_each) * 4),
        workspace(std::int64_t{80} << 20) {
    ScoreFp4Args& a = index.score;
    a.q_fp4 = Tensor(q.data, DType::u8, {tokens, heads, 64}, kGpu);
    a.q_scale = Tensor(qs.data, DType::u8, {(tokens * heads + 127) / 128 * 1024}, kGpu);
    a.k_fp4 = Tensor(k.data, DType::u8, {b * pages_each, 1, 128, 64}, kGpu);
    a.k_scale = Tensor(ks.data, DType::u8, {b * pages_each * 1024}, kGpu);
    a.cu_seqlens_q = Tensor(cu_q.data, DType::i32, {b + 1}, kGpu);
    a.seqused_k = Tensor(used.data, DType::i32, {b}, kGpu);
    a.page_table = Tensor(table.data, DType::i32, {b, pages_each}, kGpu);
    a.causal = causal;
    a.max_seqlen_q = len_q;
    a.max_k_tiles = std::max(max_tiles, pages_each);
    a.output = Tensor(scores.data, DType::f32, {heads, a.max_k_tiles, tokens}, kGpu);
    index.output = Tensor(ids.data, DType::i32, {tokens, heads, 16}, kGpu);
    try {
      workspace_bytes = msa_index_select_fp4_workspace(index, on(nullptr));
    } catch (const Error&) {  // not offered: the calls will say so
      workspace_bytes = 0;
    }
  }
  Options with_workspace(cudaStream_t s) const {
    Options o = on(s);
    o.workspace = workspace.data;
    o.workspace_bytes = std::size_t{80} << 20;
    return o;
  }
  void run_score(cudaStream_t s) const { msa_proxy_score_fp4(index.score, with_workspace(s)); }
  void run_index(cudaStream_t s) const { msa_index_select_fp4(index, with_workspace(s)); }
};

void index(float* scratch) {
  std::printf("\nindex, topk 16, 4 query heads, 1 key head, paged\n");
  struct Shape {
    std::int64_t batch, queries, keys, max_tiles;
    bool causal;
  };
  for (const Shape& x : {Shape{1, 1, 8192, 0, true},
                         {1, 1, 32768, 0, true},
                         {8, 1, 8192, 0, true},
                         {8, 1, 32768, 0, true},
                         {1, 1, 1 << 20, 0, true},
                         {64, 1, 131072, 0, true},
                         {64, 4, 131072, 0, true},
                         {8, 1, 2048, 0, true},
                         {8, 1, 2048, 8192, true},
                         {1, 8192, 65536, 0, false},
                         {1, 8192, 8192, 0, true},
                         {1, 2048, 32768, 0, true}}) {
    const Problem p(x.batch, x.queries, x.keys, x.causal, x.max_tiles);
    const bench::InTurn t = bench::in_turn(
        {[&](cudaStream_t s) { p.run_score(s); }, [&](cudaStream_t s) { p.run_index(s); }},
        x.queries > 1000 ? 3 : 20);
    std::printf(
        "  %2lld x %4lld queries x %7lld keys, %4lld columns  score %8.2f us  index %8.2f us "
        "(%+6.2f us, %+5.1f%%; half of the rounds %+.2f to %+.2f)",
        static_cast<long long>(x.batch), static_cast<long long>(x.queries),
        static_cast<long long>(x.keys), static_cast<long long>(p.index.score.max_k_tiles), t.us[0],
        t.us[1], t.more[1], 100 * t.more[1] / t.us[0], t.low[1], t.high[1]);
    if (x.queries == 1)
      std::printf("; between neighbours %6.2f",
                  bench::between_neighbours([&](cudaStream_t s) { p.run_index(s); }, scratch));
    std::printf("; workspace %.1f MB\n", p.workspace_bytes / 1e6);
  }
}

void append_and_step() {
  std::printf("\nappend of one key a request; whole step: append, quantise q, index\n");
  for (const auto& [batch, keys] : {std::pair{1, 8192}, {64, 131072}}) {
    const Problem p(batch, 1, keys, true);
    std::vector<std::int32_t> slots;
    for (int i = 0; i < batch; ++i)
      slots.insert(slots.end(), {static_cast<std::int32_t>(i * p.pages_each * 128 + 77), 0});
    const Memory slot(slots), key(batch * 256, Fill::halves), query(batch * 4 * 256, Fill::halves);
    AppendArgs a;
    a.k = Tensor(key.data, DType::bf16, {batch, 1, 128}, kGpu);
    a.k_cache_fp4 = p.index.score.k_fp4, a.k_cache_scale = p.index.score.k_scale;
    a.slot_mapping = Tensor(slot.data, DType::i64, {batch}, kGpu);
    QuantizeArgs q;
    q.a = Tensor(query.data, DType::bf16, {batch * 4, 128}, kGpu);
    q.codes = Tensor(p.q.data, DType::u8, {batch * 4, 64}, kGpu);
    q.scales = Tensor(p.qs.data, DType::u8, {p.index.score.q_scale.size(0)}, kGpu);
    IndexArgs raw = p.index;  // bf16 queries as they are
    raw.score.q_fp4 = Tensor(query.data, DType::bf16, {batch, 4, 128}, kGpu);
    raw.score.q_scale = {};
    raw.score.q_global_scale = {};
    const double append = microseconds([&](cudaStream_t s) { msa_index_append_fp4(a, on(s)); });
    std::printf("  %2d x %6d keys  append %6.2f us", batch, keys, append);
    try {
      const auto run_append = [&](cudaStream_t s) { msa_index_append_fp4(a, on(s)); };
      const auto run_quantize = [&](cudaStream_t s) { nvfp4_quantize(q, on(s)); };
      const auto run_raw = [&](cudaStream_t s) { msa_index_select_fp4(raw, p.with_workspace(s)); };
      const bench::InTurn t = bench::in_turn({
          [&](cudaStream_t s) { p.run_index(s); },
          [&](cudaStream_t s) { run_append(s), p.run_index(s); },
          [&](cudaStream_t s) { run_quantize(s), p.run_index(s); },
          [&](cudaStream_t s) { run_append(s), run_quantize(s), p.run_index(s); },
          [&](cudaStream_t s) { run_raw(s); },
          [&](cudaStream_t s) { run_append(s), run_raw(s); },
      });
      std::printf("  index %8.2f us", t.us[0]);
      for (const auto& [i, name] : {std::pair{1, "with append"}, {2, "with quantize"}, {3, "step"}})
        std::printf("\n    %-13s %8.2f us (%+.2f us, %+.1f%%; half of the rounds %+.2f to %+.2f)",
                    name, t.us[i], t.more[i], 100 * t.more[i] / t.us[0], t.low[i], t.high[i]);
      std::printf("\n    bf16 queries: index %8.2f us, step %8.2f us", t.us[4], t.us[5]);
    } catch (const Error& e) {
      std::printf("  %s", e.what());
    }
    std::printf("\n");
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc > 1) backend = argv[1];
  const auto asked = [&](const char* section) {
    return argc <= 2 || std::any_of(argv + 2, argv + argc,
                                    [&](const char* a) { return !std::strcmp(a, section); });
  };
  cudaDeviceProp properties;
  bench::require(cudaGetDeviceProperties(&properties, 0), "device");
  bench::Ceilings c;
  {
    const std::int64_t bytes = std::int64_t{1} << 30;
    const Memory a(bytes, Fill::bytes), b(bytes);
    c = bench::ceilings(a.data, b.data, bytes, properties.multiProcessorCount);
  }
  std::printf("%s: read %.2f TB/s, copy %.2f TB/s, empty graph node %.2f us\n", properties.name,
              c.read, c.copy, c.empty_node);
  const Memory scratch(4);
  if (asked("quantize")) quantize(c);
  if (asked("select")) select();
  try {
    if (asked("step")) append_and_step();
    if (asked("index")) index(static_cast<float*>(scratch.data));
  } catch (const Error& e) {
    std::printf("  %s\n", e.what());
  }
  return 0;
}
