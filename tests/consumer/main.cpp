// Quantises, scores and selects through the installed headers and library; one known answer.
#include <kvscout/kvscout.h>

#include <cstdio>
#include <vector>

int main() {
  using namespace kvscout;
  constexpr int kKeys = 300, kBlocks = 3,
                kPlanted = 200;  // the key that equals the query, in block 1
  std::vector<float> keys(kKeys * 128, 0.25f), query(128);
  for (int d = 0; d < 128; ++d) query[d] = d % 2 ? 1.0f : -1.0f;
  for (int d = 0; d < 128; ++d) keys[kPlanted * 128 + d] = query[d];

  std::vector<std::uint8_t> q(64), q_scale(1024), k(kKeys * 64), k_scale(3 * 1024);
  const float forward = 2688.0f;
  nvfp4_quantize({.a = Tensor(query.data(), DType::f32, {1, 128}),
                  .a_global_sf = {forward},
                  .codes = Tensor(q.data(), DType::u8, {1, 64}),
                  .scales = Tensor(q_scale.data(), DType::u8, {1024})});
  nvfp4_quantize({.a = Tensor(keys.data(), DType::f32, {kKeys, 128}),
                  .a_global_sf = {forward},
                  .codes = Tensor(k.data(), DType::u8, {kKeys, 64}),
                  .scales = Tensor(k_scale.data(), DType::u8, {3 * 1024})});

  const std::int32_t cu_q[] = {0, 1}, cu_k[] = {0, kKeys};
  std::vector<float> scores(kBlocks);
  ScoreFp4Args score{.q_fp4 = Tensor(q.data(), DType::u8, {1, 1, 64}),
                     .k_fp4 = Tensor(k.data(), DType::u8, {kKeys, 1, 64}),
                     .q_scale = Tensor(q_scale.data(), DType::u8, {1024}),
                     .k_scale = Tensor(k_scale.data(), DType::u8, {3 * 1024}),
                     .q_global_scale = {1 / forward},
                     .k_global_scale = {1 / forward},
                     .cu_seqlens_q = Tensor(cu_q, DType::i32, {2}),
                     .cu_seqlens_k = Tensor(cu_k, DType::i32, {2}),
                     .max_seqlen_q = 1,
                     .max_k_tiles = kBlocks,
                     .output = Tensor(scores.data(), DType::f32, {1, kBlocks, 1})};
  std::vector<std::uint8_t> memory(msa_proxy_score_fp4_workspace(score) + 256);
  Options options;
  options.workspace =
      memory.data() + (256 - reinterpret_cast<std::uintptr_t>(memory.data()) % 256) % 256;
  options.workspace_bytes = memory.size() - 256;
  msa_proxy_score_fp4(score, options);

  std::int32_t best = -1;
  msa_topk_select(
      {.max_score = score.output, .topk = 1, .output = Tensor(&best, DType::i32, {1, 1, 1})});
  std::printf("kvscout %s: block %d, score %g\n", version(), best, static_cast<double>(scores[1]));
  return best == kPlanted / 128 && scores[1] > 127 && scores[1] < 129 ? 0 : 1;
}
