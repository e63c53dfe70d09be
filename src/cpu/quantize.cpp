// nvfp4_quantize and msa_index_append_fp4: rows through the kernels, scale bytes to where they
// belong.
//
// Bound: memory, input read once and codes and scales written once.
#include <algorithm>
#include <cstring>

#include "cpu/kernels.h"
#include "cpu/operations.h"
#include "cpu/threads.h"
#include "kvscout/nvfp4.h"
#include "kvscout/scale_layout.h"

namespace kvscout::cpu {
namespace {

constexpr std::int64_t kStep = 256;  // groups at a time, so that their scale bytes fit the stack

const std::uint8_t* at(const void* base, std::int64_t bytes) {
  return static_cast<const std::uint8_t*>(base) + bytes;
}

// Scale bytes of groups [group, group + count) of so many rows to where they belong. More than one
// row: `count` is all of a row.
void place_scales(const QuantizeProblem& p, std::int64_t row, std::int64_t rows, std::int64_t group,
                  std::int64_t count, const std::uint8_t* bytes) {
  const std::int64_t groups = p.columns / 16;
  if (p.layout == SfLayout::layout_linear) {
    std::memcpy(p.scales + row * groups + group, bytes, static_cast<std::size_t>(rows * count));
    return;
  }
  // Four groups are neighbours in both tiled layouts, and rows of a run lie equally far apart.
  const std::int64_t step = scale_layout::offset(p.layout, 0, 4, groups);
  const std::int64_t apart = scale_layout::offset(p.layout, 1, 0, groups);
  const std::int64_t run = scale_layout::even_rows(p.layout);
  for (const std::int64_t end = row + rows; row < end;) {
    const std::int64_t n = std::min(end - row, run - row % run);
    std::uint8_t* to = p.scales + scale_layout::offset(p.layout, row, group, groups);
    for (std::int64_t g = 0; g < count; g += 4, to += step)
      for (std::int64_t i = 0; i < n; ++i) std::memcpy(to + i * apart, bytes + i * count + g, 4);
    row += n, bytes += n * count;
  }
}

// Rows [first, last) of the padded scale buffer.
void quantize_rows(const QuantizeProblem& p, float global, const Kernels& kernels,
                   std::int64_t first, std::int64_t last) {
  const std::int64_t groups = p.columns / 16;
  const std::int64_t all_groups = scale_layout::padded_groups(p.layout, groups);
  const std::int64_t group_bytes = 16 * bits_per_element(p.type) / 8;
  const bool legal = nvfp4::is_legal_global(global);
  // Dense short rows are one long row to the kernel.
  const bool joined = legal && groups == all_groups && p.row_stride == groups * group_bytes;
  const std::int64_t together = joined && groups > 0 ? kStep / groups : 0;
  std::int64_t row = first;
  for (; together > 1 && row + together <= std::min(last, p.rows); row += together) {
    std::uint8_t bytes[kStep];
    kernels.quantize(at(p.data, row * p.row_stride), p.type, together * groups, global,
                     p.codes + row * (p.columns / 2), bytes);
    place_scales(p, row, together, 0, groups, bytes);
  }
  for (; row < last; ++row) {
    for (std::int64_t g0 = 0; g0 < all_groups; g0 += kStep) {
      const std::int64_t count = std::min(kStep, all_groups - g0);
      std::uint8_t bytes[kStep] = {};
      if (row < p.rows && g0 < groups) {
        const std::int64_t real = std::min(count, groups - g0);
        std::uint8_t* codes = p.codes + row * (p.columns / 2) + g0 * 8;
        if (legal) {
          kernels.quantize(at(p.data, row * p.row_stride + g0 * group_bytes), p.type, real, global,
                           codes, bytes);
        } else {
          std::memset(codes, 0, static_cast<std::size_t>(real) * 8);
        }
      }
      place_scales(p, row, 1, g0, count, bytes);
    }
  }
}

}  // namespace

void quantize(const QuantizeProblem& p, const Launch& l) {
  const Kernels& kernels = chosen_kernels("nvfp4_quantize");
  const float global = value_of(p.global);
  const std::int64_t rows = scale_layout::padded_rows(p.layout, p.rows);
  const std::int64_t step =
      std::clamp<std::int64_t>((1 << 16) / std::max<std::int64_t>(p.columns, 1), 1, 512);
  for_each_task(thread_count(l.threads), (rows + step - 1) / step, [&](int, std::int64_t task) {
    quantize_rows(p, global, kernels, task * step, std::min(rows, (task + 1) * step));
  });
}

void append(const AppendProblem& p, const Launch& l) {
  const Kernels& kernels = chosen_kernels("msa_index_append_fp4");
  const float global = value_of(p.global);
  const bool legal = nvfp4::is_legal_global(global);
  const std::int64_t step = 128;
  for_each_task(thread_count(l.threads), (p.count + step - 1) / step, [&](int, std::int64_t task) {
    for (std::int64_t n = task * step; n < std::min(p.count, (task + 1) * step); ++n) {
      const std::int64_t slot = p.slots[n], page = slot / kBlock, position = slot % kBlock;
      if (slot < 0 || page >= p.pages) continue;
      for (std::int64_t h = 0; h < p.heads; ++h) {
        std::uint8_t bytes[nvfp4::kRowScales] = {};
        std::uint8_t* codes =
            p.codes + page * p.page_stride + h * p.cache_head_stride + position * p.slot_stride;
        if (legal) {
          kernels.quantize(at(p.data, n * p.token_stride + h * p.head_stride), p.type,
                           nvfp4::kRowScales, global, codes, bytes);
        } else {
          std::memset(codes, 0, nvfp4::kRowBytes);
        }
        std::uint8_t* scales = p.scales + page * p.scale_page_stride +
                               h * scale_layout::kPageBytes + scale_layout::row_128x4(position);
        std::memcpy(scales, bytes, 4);
        std::memcpy(scales + scale_layout::kSecondHalf, bytes + 4, 4);
      }
    }
  });
}

}  // namespace kvscout::cpu
