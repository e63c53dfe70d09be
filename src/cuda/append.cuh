// msa_index_append_fp4: new keys, quantised into the slots of a paged cache.
//
// Bound: latency, since a step appends one key a request: a load, a dependent store. A thread takes
// a group of 16, eight threads a key. Slots and keys are loaded at the same time. Four scale bytes
// of a key lie side by side and leave as one word.
#pragma once

#include "cuda/quantize.cuh"

namespace kvscout::cuda {

inline constexpr int kAppendThreads = 128;

template <class Arch, Element E, bool Aligned>
__global__ void __launch_bounds__(kAppendThreads)
    append_keys(const __grid_constant__ AppendProblem p) {
  using Load = GroupLoad<E>;
  constexpr int kGroups = kHeadDim / nvfp4::kGroup;
  const int g = threadIdx.x % kGroups;
  const std::int64_t row =
      std::int64_t{blockIdx.x} * (kAppendThreads / kGroups) + threadIdx.x / kGroups;
  const std::int64_t n = p.heads == 1 ? row : row / p.heads, head = row - n * p.heads;
  const bool exists = n < p.count;
  const auto* slot_at = reinterpret_cast<const long long*>(p.slots) + n;
  const std::uint8_t* from = static_cast<const std::uint8_t*>(p.data) + n * p.token_stride +
                             head * p.head_stride + g * (nvfp4::kGroup * Load::kBytes);
  Ready ready;
  ready.add(exists), ready.add(slot_at), ready.add(from);
  ready.wait_for_previous();
  release_next();

  typename Load::Raw raw;
  std::int64_t slot = -1;
  if (exists) {
    slot = __ldg(slot_at);
    Load::template load<Aligned>(from, raw);
  }
  Quantized q;
  if (exists) {
    const float global = value_of(p.global);
    q = Load::quantize(raw, global, __frcp_rn(global));
  }
  const std::uint32_t scales = four_scales(q.scale);

  const std::int64_t page = slot / kBlock;
  if (slot < 0 || page >= p.pages) return;
  const std::int64_t position = slot - page * kBlock;
  std::uint8_t* codes = p.codes + page * p.page_stride + head * p.cache_head_stride +
                        position * p.slot_stride + g * 8;
  std::uint8_t* to = p.scales + page * p.scale_page_stride + head * scale_layout::kPageBytes +
                     scale_layout::row_128x4(position) + g / 4 * scale_layout::kSecondHalf;
  if constexpr (Aligned) {
    *reinterpret_cast<uint2*>(codes) = q.codes;
    if (g % 4 == 0) *reinterpret_cast<std::uint32_t*>(to) = scales;
  } else {
    store_bytes(codes, q.codes);
    to[g % 4] = q.scale;
  }
}

template <class Arch, Element E>
const void* append_kernel(bool aligned) {
  return aligned ? reinterpret_cast<const void*>(append_keys<Arch, E, true>)
                 : reinterpret_cast<const void*>(append_keys<Arch, E, false>);
}

template <class Arch>
void append(const AppendProblem& p, const Launch& to) {
  if (p.count == 0 || p.heads == 0) return;
  const DeviceGuard guard(to.device.index);
  const auto address = [](const void* a) { return reinterpret_cast<std::uintptr_t>(a); };
  const std::uint64_t source =
      address(p.data) | static_cast<std::uint64_t>(p.token_stride | p.head_stride);
  const std::uint64_t cache =
      address(p.codes) |
      static_cast<std::uint64_t>(p.page_stride | p.cache_head_stride | p.slot_stride);
  const std::uint64_t scales = address(p.scales) | static_cast<std::uint64_t>(p.scale_page_stride);
  const bool aligned = source % 16 == 0 && cache % 8 == 0 && scales % 4 == 0;
  const void* kernel = p.type == Element::bf16  ? append_kernel<Arch, Element::bf16>(aligned)
                       : p.type == Element::f16 ? append_kernel<Arch, Element::f16>(aligned)
                                                : append_kernel<Arch, Element::f32>(aligned);
  const std::int64_t threads = p.count * p.heads * (kHeadDim / nvfp4::kGroup);
  void* arguments[] = {const_cast<AppendProblem*>(&p)};
  launch("msa_index_append_fp4", kernel,
         {.blocks = (threads + kAppendThreads - 1) / kAppendThreads,
          .threads = kAppendThreads,
          .overlaps = Arch::kOverlaps},
         arguments, to);
}

}  // namespace kvscout::cuda
