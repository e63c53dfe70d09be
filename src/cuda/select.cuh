// msa_topk_select: the exact top-k of every row, with no cap on its length. Which kernel selects:
// few rows, many of at most 16 blocks, or any.
#pragma once

#include <algorithm>

#include "cuda/dependent.cuh"
#include "cuda/device.h"
#include "cuda/select_lanes.cuh"
#include "cuda/select_row.cuh"
#include "cuda/select_rows.cuh"

namespace kvscout::cuda {

// The columns of a token, as msa_topk_select is told.
struct GivenColumns {
  static constexpr bool kBeforeScore = false;
  std::int64_t valid;
  const std::int32_t* valids;
  __device__ std::int64_t before_wait(std::int64_t) const { return valid; }
  __device__ std::int64_t operator()(std::int64_t token, std::int64_t early) const {
    return valids ? load_behind(valids + token) : early;
  }
};

template <class Arch, class Columns>
class SelectLaunch {
 public:
  SelectLaunch(const char* operation, const SelectProblem& p, const Columns& columns,
               const Launch& to)
      : operation_(operation), p_(p), columns_(columns), to_(to) {}

  void operator()() const { p_.rule.topk <= 16 ? choose<Room<16>>() : choose<Room<64>>(); }

 private:
  template <class Room>
  void choose() const {
    const std::int64_t rows = p_.tokens * p_.heads, sms = device_info(to_.device.index).sms;
    const auto size = [](std::int64_t stride) { return stride < 0 ? -stride : stride; };
    const bool tokens_inside = p_.tokens > 1 && size(p_.token_stride) < size(p_.tile_stride);
    if (tokens_inside && p_.tokens >= 8 ? rows <= sms : rows <= 16 * sms)
      return run_row<Room::kTopk>();
    if (Room::kTopk == kLaneTopk && p_.tokens >= 32 && rows >= 16 * sms) {
      if (tokens_inside) return run_lanes<false>();
      if (p_.tile_stride == 1) return run_lanes<true>();
    }
    if (!tokens_inside) return run<Room, Team<8, false>, 16>();
    run<Room, Team<8, true>, 16>();
  }

  template <class Room, class Team, int PerThread>
  void run() const {
    const std::int64_t blocks = (p_.tokens + Team::kRows - 1) / Team::kRows * p_.heads;
    void* arguments[] = {const_cast<SelectProblem*>(&p_), const_cast<Columns*>(&columns_)};
    launch(operation_,
           reinterpret_cast<const void*>(select_rows<Arch, Team, PerThread, Room, Columns>),
           {.blocks = blocks, .threads = kSelectThreads, .overlaps = Arch::kOverlaps}, arguments,
           to_);
  }

  template <int Topk>
  void run_row() const {
    void* arguments[] = {const_cast<SelectProblem*>(&p_), const_cast<Columns*>(&columns_)};
    // Blocks of all 32 warps start slowly, and where bounds are loose all but one find nothing.
    const int most = p_.tokens * p_.heads <= 16 ? RowRoom<Topk>::kWarps : 8;
    const std::int64_t warps = clamp((p_.tiles - 1) / kWarpColumns + 1, 1, most);
    launch(operation_, reinterpret_cast<const void*>(select_row<Arch, RowRoom<Topk>, Columns>),
           {.blocks = p_.tokens,
            .blocks_y = p_.heads,
            .threads = std::max(kRowThreads, static_cast<int>(32 * warps)),
            .overlaps = Arch::kOverlaps},
           arguments, to_);
  }

  template <bool TilesInside>
  void run_lanes() const {
    void* arguments[] = {const_cast<SelectProblem*>(&p_), const_cast<Columns*>(&columns_)};
    launch(operation_, reinterpret_cast<const void*>(select_lanes<Arch, TilesInside, Columns>),
           {.blocks = (p_.tokens + 31) / 32 * p_.heads,
            .threads = kSelectThreads,
            .shared_bytes = TilesInside ? 32 * kLanePitch * static_cast<int>(sizeof(float)) : 0,
            .overlaps = Arch::kOverlaps},
           arguments, to_);
  }

  const char* operation_;
  const SelectProblem& p_;
  const Columns& columns_;
  const Launch& to_;
};

template <class Arch>
void select(const SelectProblem& p, const Launch& to) {
  if (p.tokens == 0 || p.heads == 0) return;
  const DeviceGuard guard(to.device.index);
  const GivenColumns columns{p.valid, p.valids};
  SelectLaunch<Arch, GivenColumns>("msa_topk_select", p, columns, to)();
}

}  // namespace kvscout::cuda
