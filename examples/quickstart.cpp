// 1000 keys and one query to NVFP4; which 3 of the 8 blocks of 128 keys are worth reading?
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <vector>

#include "kvscout/kvscout.h"

using namespace kvscout;

int main() {
  std::vector<float> keys(1000 * 128);  // values in [-1, 1]; the query is a copy of key 700
  for (std::size_t i = 0; i < keys.size(); ++i) keys[i] = std::sin(float(i * i % 7919));
  const float* query = &keys[700 * 128];

  // A row becomes 64 bytes of codes and 8 of scales; scales come in tiles of 128 rows.
  std::vector<std::uint8_t> k(1000 * 64), k_scale(1024 * 8), q(1 * 64), q_scale(128 * 8);
  const Tensor k_fp4(k.data(), DType::u8, {1000, 1, 64}), k_sf(k_scale.data(), DType::u8, {8192});
  const Tensor q_fp4(q.data(), DType::u8, {1, 1, 64}), q_sf(q_scale.data(), DType::u8, {1024});
  const GlobalScale forward{2688.0f / 1}, inverse{1 / forward.value};  // 2688 / largest magnitude
  nvfp4_quantize({.a = {keys.data(), DType::f32, {1000, 1, 128}},
                  .a_global_sf = forward,
                  .codes = k_fp4,
                  .scales = k_sf});
  nvfp4_quantize({.a = {query, DType::f32, {1, 1, 128}},
                  .a_global_sf = forward,
                  .codes = q_fp4,
                  .scales = q_sf});

  // One request: its only query is the last position, so it sees all 1000 keys.
  const std::int32_t cu_q[] = {0, 1}, cu_k[] = {0, 1000};
  std::int32_t ids[3];
  float scores[3];
  const IndexArgs index{.score = {.q_fp4 = q_fp4,
                                  .k_fp4 = k_fp4,
                                  .q_scale = q_sf,
                                  .k_scale = k_sf,
                                  .q_global_scale = inverse,
                                  .k_global_scale = inverse,
                                  .cu_seqlens_q = {cu_q, DType::i32, {2}},
                                  .cu_seqlens_k = {cu_k, DType::i32, {2}},
                                  .max_seqlen_q = 1,
                                  .max_k_tiles = 8},
                        .topk = 3,
                        .output = {ids, DType::i32, {1, 1, 3}},
                        .scores = {scores, DType::f32, {1, 1, 3}}};

  // A call allocates nothing: it says how much memory it wants, and the caller brings it.
  struct alignas(256) Line {
    std::byte bytes[256];
  };
  std::vector<Line> workspace(msa_index_select_fp4_workspace(index) / 256 + 1);
  msa_index_select_fp4(
      index, {.workspace = workspace.data(), .workspace_bytes = workspace.size() * sizeof(Line)});
  for (int i = 0; i < 3; ++i) std::printf("block %d, score %.1f\n", ids[i], scores[i]);
}
