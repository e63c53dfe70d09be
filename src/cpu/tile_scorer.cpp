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

// Results of a vector, at most: of its lanes, or of a row in several blocks.
int results_of(const Kernels& k) { return std::max(k.lanes, TileScorer::kMostTogether); }

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
                              kScalesCopy + rounded(vectors * k->lanes * 4) +
                              rounded(vectors * results_of(*k) * 4));
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
  best_ = reinterpret_cast<float*>(take(vectors * results_of(k) * 4));
}

TileScorer::~TileScorer() {
  if (entered_) entered_->leave();
}

void TileScorer::begin(const Tile& tile, const Span& span) {
  tile_ = tile;
  span_ = span;
  least_seen_ = span.limit(tile.first, p_.requests.causal);
  most_seen_ = span.limit(tile.first + tile.count - 1, p_.requests.causal);
  next_ = {};
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

TileScorer::Place TileScorer::place_of(std::int64_t block) const {
  const Keys& k = p_.k;
  if (block * kBlock >= span_.k_count) return {};
  if (k.paged) {
    const Requests& r = p_.requests;
    const std::int64_t page =
        r.page_table[tile_.request * r.table_row_stride + block * r.table_column_stride];
    if (page < 0 || page >= k.count) return {{}, block};
    return {{at(k.data, page * k.page_stride + tile_.kv * k.head_stride),
             k.scale ? k.scale + page * k.scale_page_stride + tile_.kv * scale_layout::kPageBytes
                     : nullptr},
            block};
  }
  const std::int64_t token = span_.k_begin + block * kBlock;
  const bool page_form = k.scale && k.heads == 1 && token % kBlock == 0;
  return {{at(k.data, token * k.token_stride + tile_.kv * k.head_stride),
           page_form ? k.scale + token * (scale_layout::kPageBytes / kBlock) : nullptr},
          block};
}

// Flat keys that do not lie as the kernels need them: scales in page form, 128 readable rows.
void TileScorer::copy_keys(std::int64_t first, KeySource* source) {
  const Keys& k = p_.k;
  if (!source->scales) {
    if (source->count < kBlock) std::memset(scales_, 0, kScalesCopy);
    for (int j = 0; j < source->count; ++j) {
      const std::int64_t row = (span_.k_begin + first + j) * k.heads + tile_.kv;
      const std::uint8_t* s = k.scale + scale_layout::row_128x4(row);
      std::uint8_t* to = scales_ + scale_layout::row_128x4(j);
      std::memcpy(to, s, 4);
      std::memcpy(to + scale_layout::kSecondHalf, s + scale_layout::kSecondHalf, 4);
    }
    source->scales = scales_;
  }
  if ((by_keys_ || route_->reads_all_rows) && source->count < kBlock) {
    std::memset(codes_, 0, kCodesCopy);
    for (int j = 0; j < source->count; ++j)
      std::memcpy(codes_ + j * nvfp4::kRowBytes, source->rows + j * source->stride,
                  nvfp4::kRowBytes);
    source->rows = codes_;
    source->stride = nvfp4::kRowBytes;
  }
}

// Where the keys of a block lie. False: no such page.
bool TileScorer::find_keys(std::int64_t block, KeySource* source) {
  const Keys& k = p_.k;
  const Place place = next_.block == block ? next_ : place_of(block);
  if (!place.rows) return false;
  const std::int64_t first = block * kBlock;
  source->type = k.type;
  source->stride = k.token_stride;
  source->count = static_cast<int>(std::min<std::int64_t>(kBlock, span_.k_count - first));
  source->rows = place.rows;
  source->scales = place.scales;
  if (!k.scale) return true;
  if (!k.paged && (!place.scales || source->count < kBlock)) copy_keys(first, source);
  if (route_ == &kernels_.floats) return true;
  // The hardware does not see the next page coming, nor four runs of keys at a time.
  next_ = place_of(block + p_.block_step);
  if (next_.scales) source->next = next_;
  return true;
}

// Keys of the block that each row sees.
const std::int32_t* TileScorer::visible_keys(std::int64_t first_key) {
  const bool causal = p_.requests.causal;
  const auto keys_of = [&](int i) {
    const std::int64_t limit = span_.limit(tile_.first + i, causal);
    return static_cast<std::int32_t>(clamp(limit - first_key, 0, kBlock));
  };
  if (by_keys_) {
    for (int r = 0; r < tile_.rows(); ++r) visible_[r] = keys_of(r % tile_.count);
    return visible_;
  }
  for (int i = 0; i < tile_.count; ++i) visible_[i] = keys_of(i);
  const int padded = vectors_ * kernels_.lanes;
  for (int r = tile_.count; r < tile_.rows(); ++r) visible_[r] = visible_[r - tile_.count];
  for (int r = tile_.rows(); r < padded; ++r) visible_[r] = visible_[tile_.rows() - 1];
  return visible_;
}

TileScorer::Scored TileScorer::score(std::int64_t block, int most) {
  const std::int64_t first_key = block * kBlock;
  if (most_seen_ <= first_key) return {};
  KeySource source;
  if (!find_keys(block, &source)) return {};
  const std::int32_t* visible =
      first_key + kBlock <= least_seen_ ? nullptr : visible_keys(first_key);
  if (by_keys_) {
    KeyPlace keys[kMostTogether + 1] = {source};
    int blocks = 1;
    Place next = next_;  // of the block after the last one
    while (!visible && blocks < most && next.scales && (next.block + 1) * kBlock <= least_seen_) {
      keys[blocks++] = next;
      next = place_of(next.block + p_.block_step);
    }
    if (next.scales) keys[blocks] = next;
    next_ = next;
    kernels_.score_keys(queries_, vectors_, keys, blocks, source.stride, visible, best_);
    return {blocks, best_, tile_.rows()};
  }
  if (route_->takes_keys && !route_->takes_keys(source)) take_floats();  // for the rest
  route_->unpack(source, block_);
  route_->score(queries_, vectors_, block_, visible, best_);
  return {1, best_, tile_.rows()};
}

}  // namespace kvscout::cpu
