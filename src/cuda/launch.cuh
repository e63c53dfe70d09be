// From a plan to launches; shared by the architecture folders.
#pragma once

#include <algorithm>

#include "cuda/device.h"
#include "cuda/score_mma.cuh"

namespace kvscout::cuda {

using ScoreFunction = void (*)(const ScoreParams);

struct ScoreEntry {
  ScoreFunction function = nullptr;
  int shared_bytes = 0;
};

template <class Ops>
ScoreEntry register_entry(const ScoreKernel& k, bool aligned) {
  if (!aligned) return {score_registers<Ops, 4, false>, 0};
  if (k.tile.rows == 8) return {score_registers<Ops, 1, true>, shared_bytes<Ops, true>()};
  if constexpr (Ops::kKeyScales)
    if (k.tile.rows == 16) return {score_registers<Ops, 2, true>, shared_bytes<Ops, true>()};
  return {score_registers<Ops, 4, true>, shared_bytes<Ops, true>()};
}

// Calls entry.operator()<Operands<A, Q, K>>() for the problem's pair of types.
template <class A, class Entry>
ScoreEntry for_types(const ScoreProblem& p, Entry entry) {
  using enum Element;
  const auto is = [&](Element q, Element k) { return p.q.type == q && p.k.type == k; };
  if (is(e2m1, e2m1)) return entry.template operator()<Operands<A, e2m1, e2m1>>();
  if (is(bf16, e2m1)) return entry.template operator()<Operands<A, bf16, e2m1>>();
  if (is(f16, e2m1)) return entry.template operator()<Operands<A, f16, e2m1>>();
  if (is(bf16, bf16)) return entry.template operator()<Operands<A, bf16, bf16>>();
  if (is(f16, f16)) return entry.template operator()<Operands<A, f16, f16>>();
  if (is(bf16, e4m3)) return entry.template operator()<Operands<A, bf16, e4m3>>();
  if (is(f16, e4m3)) return entry.template operator()<Operands<A, f16, e4m3>>();
  return entry.template operator()<Operands<A, e4m3, e4m3>>();
}

// Launches what the plan says. entry_of(problem, kernel, aligned) finds a kernel's function.
template <class EntryOf>
void launch_score(const ScoreProblem& problem, const ScorePlan& plan, const Launch& launch, TokenRange range,
                  EntryOf entry_of) {
  for (int i = 0; i < plan.kernels; ++i) {
    const ScoreKernel& k = plan.kernel[i];
    const ScoreEntry entry = entry_of(problem, k, plan.aligned);
    const auto cut = [](std::int64_t n) { return static_cast<int>(std::min<std::int64_t>(n, 1 << 26)); };
    const ScoreParams params{.problem = problem,
                             .range = range,
                             .tile = k.tile,
                             .out_heads = problem.out_heads(),
                             .min_tokens = cut(k.min_tokens),
                             .max_tokens = static_cast<int>(std::min<std::int64_t>(k.max_tokens, INT32_MAX)),
                             .columns = cut(problem.max_k_tiles),
                             .block_start = cut(problem.block_start),
                             .block_step = cut(problem.block_step),
                             .fills = k.fills,
                             .fill_lanes = k.fill_lanes,
                             .fill_columns = k.fill_columns};
    if (entry.shared_bytes > 48 * 1024)
      check(cudaFuncSetAttribute(reinterpret_cast<const void*>(entry.function),
                                 cudaFuncAttributeMaxDynamicSharedMemorySize, entry.shared_bytes),
            "score");
    void* arguments[] = {const_cast<ScoreParams*>(&params)};
    check(cudaLaunchKernel(reinterpret_cast<const void*>(entry.function), dim3(k.blocks), dim3(k.threads), arguments,
                           entry.shared_bytes, static_cast<cudaStream_t>(launch.stream)),
          "score");
  }
}

}  // namespace kvscout::cuda
