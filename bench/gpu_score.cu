// Score on a GPU beside the streaming read of the same run: medians of graph replays.
//   kvscout_gpu_score [BACK_END] [TFLOP/s of the compute ceiling] [all|decode|prefill]
// Small calls are also timed between two dependent kernels whose time is subtracted, and with a
// cold L2 cache: after a kernel that reads 256 MB, whose time is subtracted too.
#include <cmath>
#include <string>

#include "backend.h"
#include "gpu_timing.cuh"
#include "registry.h"

using namespace kvscout;
using bench::microseconds;
using bench::require;

namespace {

__global__ void fill_kernel(unsigned* p, std::size_t n, unsigned mask, unsigned seed) {
  for (std::size_t i = blockIdx.x * static_cast<std::size_t>(blockDim.x) + threadIdx.x; i < n;
       i += static_cast<std::size_t>(gridDim.x) * blockDim.x) {
    unsigned x = static_cast<unsigned>(i) * 2654435761u + seed;
    x ^= x >> 16, x *= 0x85ebca6bu, x ^= x >> 13, x *= 0xc2b2ae35u, x ^= x >> 16;
    p[i] = x & mask;
  }
}

template <class T>
T* device(std::size_t count) {
  void* p = nullptr;
  require(cudaMalloc(&p, count * sizeof(T)), "memory");
  return static_cast<T*>(p);
}

// One pool that all problems share: 65536 pages of NVFP4 keys, or fewer of wider ones.
struct Pool {
  static constexpr std::int64_t kPages = 65536, kKeyBytes = kPages * 8192,
                                kScaleBytes = kPages * 1024;
  std::uint8_t *k = device<std::uint8_t>(kKeyBytes), *ks = device<std::uint8_t>(kScaleBytes),
               *q = device<std::uint8_t>(64 << 20), *qs = device<std::uint8_t>(64 << 20),
               *other = device<std::uint8_t>(256 << 20);
  std::int32_t *cu_q = device<std::int32_t>(4096), *cu_k = device<std::int32_t>(4096),
               *used = device<std::int32_t>(4096), *table = device<std::int32_t>(2 << 20);
  float* out = device<float>(1 << 28);

  Pool() {  // patterns that keep bf16, e4m3 and e2m1 finite alike
    const auto fill = [](void* p, std::int64_t bytes, unsigned mask, unsigned seed) {
      fill_kernel<<<1024, 256>>>(static_cast<unsigned*>(p), bytes / 4, mask, seed);
    };
    fill(k, kKeyBytes, 0xBFFFBFFFu, 1), fill(ks, kScaleBytes, 0x3F3F3F3Fu, 2);
    fill(q, 64 << 20, 0xBFFFBFFFu, 3), fill(qs, 64 << 20, 0x3F3F3F3Fu, 4);
    fill(other, 256 << 20, ~0u, 5);
    require(cudaDeviceSynchronize(), "fill");
  }
};

struct Shape {
  std::string name;
  std::vector<int> q_len, k_len;
  int k_heads = 1, group = 4;
  Element q = Element::e2m1, k = Element::e2m1;
  bool causal = true, paged = true, tiles_inside = false;
  std::int64_t max_tiles = 0, table_width = 0;  // 0: as the longest request needs
};

struct Sizes {
  double bytes = 0, flops = 0;
};

// The problem in the pool; pages in random order.
ScoreProblem problem_of(const Shape& s, const Pool& m, Sizes& sizes) {
  const int batch = static_cast<int>(s.q_len.size());
  std::vector<std::int32_t> cu_q{0}, cu_k{s.paged ? 0 : 5};
  std::int64_t width = s.table_width, next = 0;
  const std::int64_t row = row_bytes(s.k);
  for (int b = 0; b < batch; ++b) {
    cu_q.push_back(cu_q.back() + s.q_len[b]), cu_k.push_back(cu_k.back() + s.k_len[b]);
    const std::int64_t blocks = (s.k_len[b] + kBlock - 1) / kBlock;
    width = std::max(width, blocks);
    sizes.bytes += static_cast<double>(blocks * s.k_heads * kBlock) *
                   static_cast<double>(row + (s.k == Element::e2m1 ? 8 : 0));
    for (int i = 0; i < s.q_len[b]; ++i)
      sizes.flops += 256.0 * s.k_heads * s.group *
                     (s.causal ? std::max(0, s.k_len[b] - s.q_len[b] + i + 1) : s.k_len[b]);
  }
  std::vector<std::int32_t> ids(Pool::kPages * 64 / row / s.k_heads), table(batch * width, -1);
  std::uint64_t random = 9;
  for (std::size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<std::int32_t>(i);
  for (std::size_t i = ids.size() - 1; i > 0; --i) {
    random = random * 6364136223846793005ull + 1442695040888963407ull;
    std::swap(ids[i], ids[(random >> 33) % (i + 1)]);
  }
  for (int b = 0; b < batch; ++b)
    for (int i = 0; i < (s.k_len[b] + kBlock - 1) / kBlock; ++i)
      table[b * width + i] = ids[static_cast<std::size_t>(next++) % ids.size()];
  const auto upload = [](std::int32_t* to, const std::vector<std::int32_t>& v) {
    require(cudaMemcpy(to, v.data(), v.size() * 4, cudaMemcpyHostToDevice), "upload");
  };
  upload(m.cu_q, cu_q), upload(m.cu_k, cu_k), upload(m.used, s.k_len), upload(m.table, table);

  ScoreProblem p;
  p.q.data = m.q, p.q.scale = s.q == Element::e2m1 ? m.qs : nullptr, p.q.type = s.q;
  p.q.tokens = cu_q.back(), p.q.heads = s.k_heads * s.group;
  p.q.head_stride = row_bytes(s.q), p.q.token_stride = p.q.head_stride * p.q.heads;
  p.k.data = m.k, p.k.scale = s.k == Element::e2m1 ? m.ks : nullptr, p.k.type = s.k;
  p.k.paged = s.paged, p.k.heads = s.k_heads;
  if (s.paged) {
    p.k.count = static_cast<std::int64_t>(ids.size()), p.k.token_stride = row;
    p.k.head_stride = row * kBlock, p.k.page_stride = p.k.head_stride * s.k_heads;
    p.k.scale_page_stride = 1024 * s.k_heads;
    p.requests.used_k = m.used, p.requests.page_table = m.table;
    p.requests.table_width = width, p.requests.table_row_stride = width;
    p.requests.table_column_stride = 1;
  } else {
    p.k.count = cu_k.back(), p.k.token_stride = row * s.k_heads, p.k.head_stride = row;
    p.requests.cu_k = m.cu_k;
  }
  p.requests.batch = batch, p.requests.cu_q = m.cu_q, p.requests.causal = s.causal;
  p.requests.max_seqlen_q = *std::max_element(s.q_len.begin(), s.q_len.end());
  p.max_k_tiles = s.max_tiles ? s.max_tiles : width;
  p.out = {m.out, p.q.tokens * p.max_k_tiles, p.q.tokens, 1};
  if (s.tiles_inside) p.out.tile_stride = 1, p.out.token_stride = p.max_k_tiles;
  return p;
}

class Bench {
 public:
  Bench(const Backend& backend, double tflops) : backend_(backend), tflops_(tflops) {
    int sms = 0;
    require(cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, 0), "device");
    ceilings_ = bench::ceilings(pool_.k, pool_.out, std::int64_t{512} << 20, sms);
    std::printf(
        "streaming read %.2f TB/s, empty node %.2f us; compute is compared with %.0f TFLOP/s\n",
        ceilings_.read, ceilings_.empty_node, tflops);
  }

  // Bound by memory: share of the streaming read. Small calls in three ways.
  void decode(const Shape& s) {
    Sizes sizes;
    const ScoreProblem p = problem_of(s, pool_, sizes);
    const bench::Work call = work(p);
    const bool small = sizes.bytes < 4e7;
    const double us = microseconds(call, small ? 40 : 4);
    std::printf("%-38s %9.2f us %6.1f%% of read", s.name.c_str(), us,
                sizes.bytes / us * 1e-6 / ceilings_.read * 100);
    if (small) {
      const bench::Work flush = [&](cudaStream_t stream) {
        bench::read_kernel<<<2048, 256, 0, stream>>>(
            reinterpret_cast<uint4*>(pool_.other), (256 << 20) / 16,
            reinterpret_cast<std::uint32_t*>(pool_.cu_q) + 4095);
      };
      const double cold = microseconds([&](cudaStream_t stream) { flush(stream), call(stream); }) -
                          microseconds(flush);
      std::printf("; between neighbours %.2f us, cold L2 %.2f us",
                  bench::between_neighbours(call, pool_.out + (1 << 28) - 1), cold);
    }
    std::printf("\n");
  }

  // Bound by arithmetic: share of the compute ceiling.
  void prefill(const Shape& s) {
    Sizes sizes;
    const double us = microseconds(work(problem_of(s, pool_, sizes)), 4);
    std::printf("%-38s %9.2f us %6.0f TFLOP/s %5.1f%%\n", s.name.c_str(), us,
                sizes.flops / us * 1e-6, sizes.flops / us * 1e-4 / tflops_);
  }

 private:
  bench::Work work(const ScoreProblem& p) const {
    return [this, p](cudaStream_t stream) {
      Launch launch;
      launch.device = {Device::cuda, 0};
      launch.stream = stream;
      backend_.score(p, launch);
    };
  }

  const Backend& backend_;
  double tflops_;
  Pool pool_;
  bench::Ceilings ceilings_;
};

std::vector<int> many(int n, int value) { return std::vector<int>(n, value); }

void all_decode(Bench& bench) {
  using enum Element;
  const auto uniform = [](const char* name, int batch, int context, int tokens = 1, int group = 4) {
    return Shape{
        .name = name, .q_len = many(batch, tokens), .k_len = many(batch, context), .group = group};
  };
  bench.decode(uniform("64 x 131k", 64, 131072));
  bench.decode(uniform("32 x 131k", 32, 131072));
  bench.decode(uniform("8 x 131k", 8, 131072));
  bench.decode(uniform("1 x 1M", 1, 1 << 20));
  bench.decode(uniform("8 x 64k", 8, 65536));
  bench.decode(uniform("8 x 32k", 8, 32768));
  bench.decode(uniform("8 x 16k", 8, 16384));
  bench.decode({.name = "7 x 8k, 1 x 64k",
                .q_len = many(8, 1),
                .k_len = {8192, 8192, 8192, 65536, 8192, 8192, 8192, 8192}});
  bench.decode(uniform("1 x 131k", 1, 131072));
  bench.decode(uniform("1 x 32k", 1, 32768));
  bench.decode(uniform("8 x 8k", 8, 8192));
  bench.decode(uniform("1 x 8k", 1, 8192));
  bench.decode(uniform("64 x 131k, 4 tokens", 64, 131072, 4));
  bench.decode(uniform("64 x 131k, Hq 1", 64, 131072, 1, 1));
  bench.decode(uniform("64 x 131k, Hq 2", 64, 131072, 1, 2));
  bench.decode(uniform("64 x 131k, Hq 16", 64, 131072, 1, 16));
  std::vector<int> ragged;
  for (int i = 0; i < 32; ++i)
    ragged.push_back(11000 + static_cast<int>(225000 * std::pow(i / 31.0, 2)));
  std::int64_t sum = 0;
  for (int n : ragged) sum += n;
  bench.decode({.name = "ragged, 32 x 11k to 236k", .q_len = many(32, 1), .k_len = ragged});
  bench.decode(uniform("uniform, the same bytes", 32, static_cast<int>(sum / 32)));
  Shape flat = uniform("flat, odd starts, 64 x 131k", 64, 131070);
  flat.paged = false;
  bench.decode(flat);
  Shape inside = uniform("tiles innermost, 64 x 131k", 64, 131072);
  inside.tiles_inside = true;
  bench.decode(inside);
  for (const int tiles : {16, 8192}) {
    Shape live =
        uniform(tiles == 16 ? "8 x 2k, max_k_tiles 16" : "8 x 2k, max_k_tiles 8192", 8, 2048);
    live.max_tiles = tiles;
    bench.decode(live);
  }
  Shape wide = uniform("8 x 2k, table and max_k_tiles 8192", 8, 2048);
  wide.max_tiles = wide.table_width = 8192;
  bench.decode(wide);
  Shape mixed = uniform("bf16 queries, 64 x 131k", 64, 131072);
  mixed.q = bf16;
  bench.decode(mixed);
  mixed.name = "bf16 queries and keys, 64 x 131k", mixed.k = bf16;
  bench.decode(mixed);
}

void all_prefill(Bench& bench) {
  using enum Element;
  Shape s{.name = "8192 x 65536", .q_len = {8192}, .k_len = {65536}, .causal = false};
  bench.prefill(s);
  s.name = "8192 x 65536, 1 head", s.group = 1;
  bench.prefill(s);
  bench.prefill({.name = "30 x 67584, 8 tokens, 64/4 heads",
                 .q_len = many(30, 8),
                 .k_len = many(30, 67584),
                 .k_heads = 4,
                 .group = 16});
  bench.prefill({.name = "causal 8192 x 8192", .q_len = {8192}, .k_len = {8192}});
  bench.prefill({.name = "causal 2048 x 32768", .q_len = {2048}, .k_len = {32768}});
  bench.prefill({.name = "causal 512 x 131072", .q_len = {512}, .k_len = {131072}});
  s = {.name = "bf16 queries, 8192 x 65536",
       .q_len = {8192},
       .k_len = {65536},
       .q = bf16,
       .causal = false};
  bench.prefill(s);
  s.name = "bf16 queries and keys, 8192 x 65536", s.k = bf16;
  bench.prefill(s);
  s = {.name = "512 tokens beside 31 x 1, 65k", .q_len = many(32, 1), .k_len = many(32, 65536)};
  s.q_len[7] = 512;
  bench.prefill(s);
}

}  // namespace

int main(int argc, char** argv) {
  const std::string name = argc > 1 ? argv[1] : "sm90", part = argc > 3 ? argv[3] : "all";
  const Backend* backend = nullptr;
  std::string why = "no such back end";
  for (const Backend* b : all_backends())
    if (name == b->name && b->runs_on(0, &why)) backend = b;
  if (!backend) {
    std::printf("%s: %s\n", name.c_str(), why.c_str());
    return 77;
  }
  Bench bench(*backend, argc > 2 ? std::atof(argv[2]) : 750);
  if (part != "prefill") all_decode(bench);
  if (part != "decode") all_prefill(bench);
  return 0;
}
