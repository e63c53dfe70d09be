#include "cpu/tile_scorer.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "kvscout/nvfp4.h"
#include "kvscout/scale_layout.h"

namespace kvscout::cpu {
namespace {

const std::uint8_t* at(const void* base, std::int64_t bytes) {
  return static_cast<const std::uint8_t*>(base) + bytes;
}

const Route& route_of(const ScoreProblem& p, const Kernels& k) {
  if (p.q.type == Element::e2m1) return k.nvfp4;
  const Route& bf16 = p.k.type == Element::e2m1   ? k.bf16_e2m1
                      : p.k.type == Element::e4m3 ? k.bf16_e4m3
                                                  : k.bf16_bf16;
  return p.q.type == Element::bf16 && bf16.pack ? bf16 : k.floats;
}

std::size_t rounded(std::size_t bytes) { return (bytes + 63) / 64 * 64; }

// Vectors that `rows` rows may need: one each where lanes are keys.
int vectors_for(const Kernels& k, int rows) {
  return std::max((rows + k.lanes - 1) / k.lanes, std::min(rows, k.max_rows_of_score_keys));
}

// Bytes of a query vector and of a key block: the route's, and those of the one that takes all
// rows.
struct Sizes {
  std::size_t vector, block;
};
Sizes sizes_of(const Route& route, const Kernels& k) {
  if (!route.takes) return {route.vector_bytes, route.block_bytes};
  return {std::max(route.vector_bytes, k.floats.vector_bytes),
          std::max(route.block_bytes, k.floats.block_bytes)};
}

// Some kernels care how tiles and blocks lie within pages (amx/layout.h).
constexpr std::size_t kAlignment = 4096;
constexpr std::size_t kCodesCopy = kBlock * nvfp4::kRowBytes,
                      kScalesCopy = scale_layout::kPageBytes;

}  // namespace

std::size_t TileScorer::scratch_bytes(const ScoreProblem& p, int rows) {
  std::size_t most = 0;
  for (const Kernels* k : available_kernels()) {
    const Sizes size = sizes_of(route_of(p, *k), *k);
    const auto vectors = static_cast<std::size_t>(vectors_for(*k, rows));
    most = std::max(most, rounded(vectors * size.vector) + rounded(size.block) + kCodesCopy +
                              kScalesCopy + 2 * rounded(vectors * k->lanes * 4));
  }
  return most + kAlignment;
}

TileScorer::TileScorer(const ScoreProblem& p, const Kernels& k, void* scratch, int rows)
    : p_(p), kernels_(k), first_(route_of(p, k)), route_(&first_) {
  auto* next = static_cast<std::byte*>(scratch);
  next += (kAlignment - reinterpret_cast<std::uintptr_t>(next) % kAlignment) % kAlignment;
  const auto take = [&](std::size_t bytes) { return std::exchange(next, next + rounded(bytes)); };
  const auto vectors = static_cast<std::size_t>(vectors_for(k, rows));
  const Sizes size = sizes_of(first_, k);
  queries_ = take(vectors * size.vector);
  block_ = take(size.block);
  codes_ = reinterpret_cast<std::uint8_t*>(take(kCodesCopy));
  scales_ = reinterpret_cast<std::uint8_t*>(take(kScalesCopy));
  visible_ = reinterpret_cast<std::int32_t*>(take(vectors * k.lanes * 4));
  best_ = reinterpret_cast<float*>(take(vectors * k.lanes * 4));
}

TileScorer::~TileScorer() {
  if (entered_) entered_->leave();
}

void TileScorer::begin(const Tile& tile, const Span& span) {
  tile_ = tile;
  span_ = span;
  by_keys_ = &first_ == &kernels_.nvfp4 && kernels_.score_keys &&
             tile.rows() <= kernels_.max_rows_of_score_keys;
  vectors_ = by_keys_ ? tile.rows() : (tile.rows() + kernels_.lanes - 1) / kernels_.lanes;
  route_ = &first_;
  if (!pack()) take_floats();
  if (!by_keys_ && route_->enter) {
    route_->enter(tile.rows(), block_);
    entered_ = route_;
  }
}

void TileScorer::take_floats() {
  route_ = &kernels_.floats;
  pack();
}

// False: the route does not take these rows.
bool TileScorer::pack() {
  QuerySource source;
  source.type = p_.q.type;
  source.repeated = by_keys_;
  const std::size_t bytes = by_keys_ ? kernels_.row_bytes : route_->vector_bytes;
  const std::int64_t first = span_.q_begin + tile_.first, end = first + tile_.count;
  std::int64_t token = first, head = tile_.head;
  int rows_left = tile_.rows();
  for (int v = 0; v < vectors_; ++v) {
    for (int lane = 0; lane < (by_keys_ ? 1 : kernels_.lanes); ++lane) {
      source.rows[lane] = at(p_.q.data, token * p_.q.token_stride + head * p_.q.head_stride);
      if (p_.q.scale) {
        const std::uint8_t* s = p_.q.scale + scale_layout::row_128x4(token * p_.q.heads + head);
        std::memcpy(&source.scales[lane], s, 4);
        std::memcpy(reinterpret_cast<char*>(&source.scales[lane]) + 4,
                    s + scale_layout::kSecondHalf, 4);
      }
      // Without a division; the last row repeats.
      if (--rows_left > 0 && ++token == end) token = first, ++head;
    }
    if (route_->takes && !route_->takes(source)) return false;
    route_->pack(source, queries_ + static_cast<std::size_t>(v) * bytes);
  }
  return true;
}

// Where the page of a block lies. False: no such page.
bool TileScorer::find_page(std::int64_t block, const std::uint8_t** rows,
                           const std::uint8_t** scales) const {
  const Keys& k = p_.k;
  const Requests& r = p_.requests;
  const std::int64_t page =
      r.page_table[tile_.request * r.table_row_stride + block * r.table_column_stride];
  if (page < 0 || page >= k.count) return false;
  *rows = at(k.data, page * k.page_stride + tile_.kv * k.head_stride);
  if (k.scale) *scales = k.scale + page * k.scale_page_stride + tile_.kv * scale_layout::kPageBytes;
  return true;
}

// Where the keys of a block lie; copies what the kernels cannot use in place. False: no such page.
bool TileScorer::find_keys(std::int64_t block, KeySource* source) {
  const Keys& k = p_.k;
  const std::int64_t first = block * kBlock;
  source->type = k.type;
  source->stride = k.token_stride;
  source->count = static_cast<int>(std::min<std::int64_t>(kBlock, span_.k_count - first));
  if (k.paged) return find_page(block, &source->rows, &source->scales);
  const std::int64_t token = span_.k_begin + first;
  source->rows = at(k.data, token * k.token_stride + tile_.kv * k.head_stride);
  if (!k.scale) return true;
  if (k.heads == 1 && token % kBlock == 0) {
    source->scales = k.scale + scale_layout::row_128x4(token);
  } else {
    for (int j = 0; j < source->count; ++j) {
      const std::uint8_t* s = k.scale + scale_layout::row_128x4((token + j) * k.heads + tile_.kv);
      std::uint8_t* to = scales_ + scale_layout::row_128x4(j);
      std::memcpy(to, s, 4);
      std::memcpy(to + scale_layout::kSecondHalf, s + scale_layout::kSecondHalf, 4);
    }
    for (int j = source->count; j < kBlock; ++j) {
      std::memset(scales_ + scale_layout::row_128x4(j), 0, 4);
      std::memset(scales_ + scale_layout::row_128x4(j) + scale_layout::kSecondHalf, 0, 4);
    }
    source->scales = scales_;
  }
  if ((by_keys_ || route_->reads_all_rows) && source->count < kBlock) {
    for (int j = 0; j < source->count; ++j)
      std::memcpy(codes_ + j * nvfp4::kRowBytes, source->rows + j * source->stride,
                  nvfp4::kRowBytes);
    std::memset(codes_ + source->count * nvfp4::kRowBytes, 0,
                static_cast<std::size_t>(kBlock - source->count) * nvfp4::kRowBytes);
    source->rows = codes_;
    source->stride = nvfp4::kRowBytes;
  }
  return true;
}

// The hardware does not see the next page coming, nor four runs of keys at a time.
void TileScorer::find_next(std::int64_t block, KeySource* source) const {
  const Keys& k = p_.k;
  const std::int64_t next = block + p_.block_step;
  if (next * kBlock >= span_.k_count) return;
  if (k.paged) {
    find_page(next, &source->next_rows, &source->next_scales);
  } else if (k.heads == 1 && (span_.k_begin + next * kBlock) % kBlock == 0) {
    const std::int64_t token = span_.k_begin + next * kBlock;
    source->next_rows = at(k.data, token * k.token_stride + tile_.kv * k.head_stride);
    source->next_scales = k.scale + scale_layout::row_128x4(token);
  }
}

// Keys of the block that each row sees; null where all rows see all 128.
const std::int32_t* TileScorer::visible_keys(std::int64_t first_key) {
  const bool causal = p_.requests.causal;
  if (span_.limit(tile_.first, causal) - first_key >= kBlock) return nullptr;
  const auto keys_of = [&](int i) {
    const std::int64_t limit = span_.limit(tile_.first + i, causal);
    return static_cast<std::int32_t>(clamp(limit - first_key, 0, kBlock));
  };
  if (by_keys_) {
    for (int r = 0; r < tile_.rows(); ++r) visible_[r * kernels_.lanes] = keys_of(r % tile_.count);
    return visible_;
  }
  for (int i = 0; i < tile_.count; ++i) visible_[i] = keys_of(i);
  const int padded = vectors_ * kernels_.lanes;
  for (int r = tile_.count; r < tile_.rows(); ++r) visible_[r] = visible_[r - tile_.count];
  for (int r = tile_.rows(); r < padded; ++r) visible_[r] = visible_[tile_.rows() - 1];
  return visible_;
}

const float* TileScorer::score(std::int64_t block) {
  const std::int64_t first_key = block * kBlock;
  if (span_.limit(tile_.first + tile_.count - 1, p_.requests.causal) <= first_key) return nullptr;
  KeySource source;
  if (!find_keys(block, &source)) return nullptr;
  if (p_.k.scale && route_ != &kernels_.floats) find_next(block, &source);
  const std::int32_t* visible = visible_keys(first_key);
  if (by_keys_) {
    kernels_.score_keys(queries_, vectors_, source, visible, best_);
  } else {
    if (route_->takes_keys && !route_->takes_keys(source)) take_floats();  // for the rest
    route_->unpack(source, block_);
    route_->score(queries_, vectors_, block_, visible, best_);
  }
  return best_;
}

}  // namespace kvscout::cpu
