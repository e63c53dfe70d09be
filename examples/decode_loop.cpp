// The decode loop in C++: at every step a new key goes into the paged cache, and the index says
// which 4 blocks of 128 keys the new query should read. decode_loop.c is the same in C.
#include <cmath>
#include <cstdio>
#include <vector>

#include "kvscout/float_types.h"
#include "kvscout/kvscout.h"

using namespace kvscout;

// Values in [-1, 1]: the forward scale is 2688, the inverse one 1/2688.
float element(int step, int d) { return std::sin(float(step * step % 977 * (d + 3))); }

int main() {
  constexpr int kPages = 16, kSteps = 1500, kTopk = 4;
  std::vector<std::uint8_t> codes(kPages * 128 * 64), scales(kPages * 1024);  // 72 bytes a key
  float key[128];
  std::uint16_t query[128];
  std::int64_t slot = 0;
  std::int32_t page_table[kPages], keys_so_far = 0, ids[kTopk], cu_q[] = {0, 1};
  for (int p = 0; p < kPages; ++p) page_table[p] = kPages - 1 - p;  // pages come from an allocator

  // What stays the same from step to step is set once.
  const Tensor cache(codes.data(), DType::u8, {kPages, 1, 128, 64});
  const Tensor cache_scales(scales.data(), DType::u8, {kPages, 1024});
  const AppendArgs append{.k = {key, DType::f32, {1, 1, 128}},
                          .k_cache_fp4 = cache,
                          .k_cache_scale = cache_scales,
                          .slot_mapping = {&slot, DType::i64, {1}},
                          .global_scale = {2688.0f}};
  const IndexArgs index{.score = {.q_fp4 = {query, DType::bf16, {1, 1, 128}},  // not quantised
                                  .k_fp4 = cache,
                                  .k_scale = cache_scales,
                                  .q_global_scale = {1.0f},
                                  .k_global_scale = {1 / 2688.0f},
                                  .cu_seqlens_q = {cu_q, DType::i32, {2}},
                                  .page_table = {page_table, DType::i32, {1, kPages}},
                                  .seqused_k = {&keys_so_far, DType::i32, {1}},
                                  .max_seqlen_q = 1,
                                  .max_k_tiles = kPages},
                        .topk = kTopk,
                        .force_end_blocks = 1,  // the last block is always read
                        .output = {ids, DType::i32, {1, 1, kTopk}}};
  struct alignas(256) Line {
    unsigned char bytes[256];
  };
  std::vector<Line> workspace(msa_index_select_fp4_workspace(index) / 256 + 1);
  const Options options{.workspace = workspace.data(),
                        .workspace_bytes = workspace.size() * sizeof(Line)};

  for (int step = 0; step < kSteps; ++step) {
    const int asks_for = step / 3;  // the query of this step is the key of that one
    for (int d = 0; d < 128; ++d) key[d] = element(step, d);
    for (int d = 0; d < 128; ++d) query[d] = float_to_bf16(element(asks_for, d));
    slot = page_table[step / 128] * 128 + step % 128;
    keys_so_far = step + 1;
    msa_index_append_fp4(append);
    msa_index_select_fp4(index, options);
    if (step % 250 == 249)
      std::printf("%4d keys, asks for block %d: reads %d %d %d %d\n", keys_so_far, asks_for / 128,
                  ids[0], ids[1], ids[2], ids[3]);
  }
}
