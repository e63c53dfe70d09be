// Problems of the CPU benchmark: one request, flat keys of one key head.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

#include "kvscout/kvscout.h"
#include "kvscout/scale_layout.h"

namespace bench {

using namespace kvscout;

inline std::uint64_t random_bits() {
  static std::uint64_t s = 88172645463325252ull;
  s ^= s << 13, s ^= s >> 7, s ^= s << 17;
  return s;
}

// Page-aligned and touched, so that no first access is measured.
template <class T>
struct Buffer {
  std::size_t count;
  std::unique_ptr<T, void (*)(void*)> data;
  explicit Buffer(std::int64_t n)
      : count(static_cast<std::size_t>(n)),
        data(static_cast<T*>(
                 std::aligned_alloc(1 << 21, (count * sizeof(T) + (1 << 21)) >> 21 << 21)),
             std::free) {
    std::memset(data.get(), 0, count * sizeof(T));
  }
  T* get() const { return data.get(); }
  std::size_t bytes() const { return count * sizeof(T); }
};

inline void fill_codes(Buffer<std::uint8_t>& b) {
  for (std::size_t i = 0; i < b.count; ++i)
    b.get()[i] = static_cast<std::uint8_t>(random_bits() >> 20);
}
inline void fill_scales(Buffer<std::uint8_t>& b) {  // numbers near 1, as a quantiser gives them
  for (std::size_t i = 0; i < b.count; ++i)
    b.get()[i] = static_cast<std::uint8_t>(0x30 + (random_bits() >> 20) % 32);
}

// One request: `queries` x `heads` rows against `keys` flat keys of one key head.
struct Problem {
  std::int64_t queries, heads, keys, blocks, rows;
  Buffer<std::uint8_t> q, qs, k, ks;
  Buffer<float> out;
  Buffer<std::uint8_t> workspace;
  std::vector<std::int32_t> cu_q, cu_k;
  ScoreFp4Args args;

  Problem(std::int64_t q_count, std::int64_t head_count, std::int64_t key_count, bool causal,
          bool bf16 = false)
      : queries(q_count),
        heads(head_count),
        keys(key_count),
        blocks((keys + 127) / 128),
        rows(queries * heads),
        q(rows * (bf16 ? 256 : 64)),
        qs(scale_layout::bytes(SfLayout::layout_128x4, rows, 8)),
        k(keys * 64),
        ks(scale_layout::bytes(SfLayout::layout_128x4, keys, 8)),
        out(rows * blocks),
        workspace(64 << 20),
        cu_q{0, static_cast<std::int32_t>(queries)},
        cu_k{0, static_cast<std::int32_t>(keys)} {
    fill_codes(q), fill_codes(k), fill_scales(qs), fill_scales(ks);
    if (bf16)  // numbers in [1, 2)
      for (std::size_t i = 0; i < q.count; i += 2) q.get()[i + 1] = 0x3F, q.get()[i] |= 0x80;
    args.q_fp4 = bf16 ? Tensor(q.get(), DType::bf16, {queries, heads, 128})
                      : Tensor(q.get(), DType::u8, {queries, heads, 64});
    args.k_fp4 = Tensor(k.get(), DType::u8, {keys, 1, 64});
    if (!bf16) args.q_scale = Tensor(qs.get(), DType::u8, {static_cast<std::int64_t>(qs.count)});
    args.k_scale = Tensor(ks.get(), DType::u8, {static_cast<std::int64_t>(ks.count)});
    args.cu_seqlens_q = Tensor(cu_q.data(), DType::i32, {2});
    args.cu_seqlens_k = Tensor(cu_k.data(), DType::i32, {2});
    args.causal = causal;
    args.max_seqlen_q = queries;
    args.max_k_tiles = blocks;
    args.output = Tensor(out.get(), DType::f32, {heads, blocks, queries});
  }
  Options options(int threads) const {
    Options o;
    o.backend = "cpu";
    o.threads = threads;
    o.workspace = workspace.get();
    o.workspace_bytes = workspace.count;
    return o;
  }
  void score(int threads) const { msa_proxy_score_fp4(args, options(threads)); }
  double operations() const {
    return 256.0 * static_cast<double>(rows) * static_cast<double>(keys);
  }
};

}  // namespace bench
