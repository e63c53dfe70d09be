// Named cases of the selection, the fused index, the quantiser and append.
#include <limits>

#include "cases.h"

namespace kvscout::cases {

namespace {

template <class Spec>
Spec with(Spec s, const std::function<void(Spec&)>& change) {
  change(s);
  return s;
}

void select(std::vector<Case>& list, const std::string& name,
            const std::function<void(SelectSpec&)>& change) {
  SelectSpec s;
  s.seed = list.size();
  change(s);
  Case c;
  c.name = "select/" + name;
  c.build = [s] { return build_select(s); };
  c.small = s.heads * s.tiles * s.tokens < 300000;
  list.push_back(c);
}

void index(std::vector<Case>& list, const std::string& name,
           const std::function<void(IndexSpec&)>& change,
           const std::function<void(IndexArgs&)>& edit = {}) {
  IndexSpec s;
  s.score.seed = list.size();
  change(s);
  Case c;
  c.name = "index/" + name;
  c.build = [s, edit] {
    Problem p = build_index(s);
    if (edit) edit(std::get<IndexArgs>(p.args));
    return p;
  };
  c.small = row_products(s.score) < 40000;
  list.push_back(c);
}

}  // namespace

void add_select_cases(std::vector<Case>& list) {
  using S = SelectSpec;
  // The layout is decided by strides, never guessed from sizes.
  select(list, "output_with_heads_first",
         [](S& s) { s.heads = 4, s.tokens = 7, s.heads_first = true; });
  select(list, "as_many_tokens_as_heads",
         [](S& s) { s.heads = 4, s.tokens = 4, s.heads_first = true; });
  select(list, "tiles_innermost",
         [](S& s) { s.heads = 3, s.tokens = 5, s.strides = OutputStrides::tiles_innermost; });
  select(list, "padded_scores",
         [](S& s) { s.heads = 3, s.tokens = 5, s.strides = OutputStrides::padded; });
  select(list, "extent_of_each_token",
         [](S& s) { s.tokens = 9, s.valid = Offset::tensor, s.force_end = 1; });
  for (std::int64_t n : {-3, 0, 5, 16, 31, 32, 1000}) {
    select(list, "extent_" + std::to_string(n),
           [n](S& s) { s.valid = Offset::number, s.valid_number = n, s.force_begin = 2; });
  }
  select(list, "fewer_tiles_than_topk", [](S& s) { s.tiles = 3, s.force_end = 1; });
  select(list, "no_tiles", [](S& s) { s.tiles = 0; });
  select(list, "no_tokens", [](S& s) { s.tokens = 0; });
  for (int topk : {1, 2, 8, 15, 16, 17, 32, 64}) {
    select(list, "top" + std::to_string(topk),
           [topk](S& s) { s.topk = topk, s.tiles = 300, s.scores = S::ties; });
  }
  for (std::int64_t tiles :
       {1, 2, 15, 16, 17, 31, 33, 63, 64, 65, 127, 128, 129, 255, 256, 257, 511, 513, 1025, 2049}) {
    select(list, "specials_in_" + std::to_string(tiles) + "_tiles",
           [tiles](S& s) { s.tiles = tiles, s.tokens = 9, s.scores = S::specials, s.heads = 2; });
    select(list, "ties_in_" + std::to_string(tiles) + "_tiles", [tiles](S& s) {
      s.tiles = tiles, s.tokens = 3, s.scores = S::ties, s.force_begin = 1, s.force_end = 1;
    });
  }
  select(list, "8192_equal_scores", [](S& s) { s.tiles = 8192, s.scores = S::equal; });
  select(list, "8192_ascending_scores",
         [](S& s) { s.tiles = 8192, s.scores = S::ascending, s.topk = 64; });
  select(list, "8192_normals", [](S& s) { s.tiles = 8192, s.tokens = 20, s.heads = 4; });
  select(list, "100000_tiles", [](S& s) { s.tiles = 100000, s.tokens = 2, s.scores = S::ties; });
  select(list, "causal_pattern", [](S& s) { s.scores = S::masked, s.tokens = 40; });
  for (int end : {0, 2}) {
    select(list, "masked_skipped_forced_" + std::to_string(end), [end](S& s) {
      s.scores = S::masked, s.tokens = 40, s.skip_masked = true, s.force_end = end;
    });
  }
  select(list, "specials_masked_skipped", [](S& s) {
    s.scores = S::specials, s.tokens = 30, s.skip_masked = true, s.force_begin = 1, s.force_end = 2;
  });
  select(list, "everything_forced", [](S& s) { s.topk = 8, s.force_begin = 3, s.force_end = 5; });
  select(list, "forced_ranges_meet", [](S& s) {
    s.tokens = 12, s.valid = Offset::tensor, s.topk = 8, s.force_begin = 4, s.force_end = 4;
  });
  // Thousands of rows, where a GPU takes them side by side.
  for (std::int64_t tiles : {1, 17, 40, 100, 300, 511, 513, 1100}) {
    const auto many = [&](const std::string& name, const std::function<void(SelectSpec&)>& change) {
      select(list, "many_rows_" + std::to_string(tiles) + "_" + name, [&](S& s) {
        s.tiles = tiles, s.heads = 2, s.tokens = 1070;
        change(s);
      });
    };
    many("specials", [](S& s) { s.scores = S::specials; });
    many("ties", [](S& s) { s.scores = S::ties, s.valid = Offset::tensor, s.force_end = 2; });
    if (tiles == 100 || tiles > 512) {
      many("normals", [](S& s) { s.topk = 7, s.force_begin = 1; });
      many("ascending_tiles_inside",
           [](S& s) { s.scores = S::ascending, s.strides = OutputStrides::tiles_innermost; });
      many("specials_tiles_inside", [](S& s) {
        s.scores = S::specials, s.strides = OutputStrides::tiles_innermost, s.skip_masked = true;
      });
      many("masked_padded", [](S& s) {
        s.scores = S::masked, s.strides = OutputStrides::padded, s.force_begin = 1, s.topk = 3;
      });
    }
  }
  select(list, "only_the_end_is_forced", [](S& s) { s.topk = 4, s.force_end = 4, s.tiles = 200; });
}

void add_index_cases(std::vector<Case>& list) {
  using I = IndexSpec;
  const auto lengths = [](I& s, std::vector<std::int32_t> q, std::vector<std::int32_t> k) {
    s.score.q_lengths = std::move(q);
    s.score.k_lengths = std::move(k);
  };
  index(list, "warm_up_with_lengths_zero", [&](I& s) {
    lengths(s, {1, 1, 1, 1}, {0, 0, 0, 0}), s.score.max_k_tiles = 3;
  });
  index(list, "fewer_tiles_than_topk", [&](I& s) { lengths(s, {2}, {300}), s.force_end = 1; });
  index(list, "no_columns_at_all", [&](I& s) { lengths(s, {2}, {300}), s.score.max_k_tiles = 0; });
  index(list, "more_queries_than_keys", [&](I& s) { lengths(s, {4}, {2}); });
  index(list, "prefill_and_decode_in_one_batch", [&](I& s) {
    lengths(s, {1, 1, 512}, {700, 90, 1024}), s.topk = 3;
  });
  index(list, "rows_that_no_request_owns", [&](I& s) {
    lengths(s, {2, 0, 3}, {2000, 10, 0});
    s.score.rows_before = 2, s.score.rows_after = 4, s.topk = 4;
  });
  const auto zero_codes = [](IndexArgs& a) {
    std::memset(a.score.k_fp4.data, 0, static_cast<std::size_t>(a.score.k_fp4.count()));
  };
  index(
      list, "ties_across_the_last_place", [&](I& s) { lengths(s, {3}, {128 * 40}); }, zero_codes);
  for (int topk : {1, 8, 32, 64}) {
    index(list, "top" + std::to_string(topk), [&](I& s) {
      lengths(s, {2, 1}, {128 * 70 + 5, 900});
      s.topk = topk, s.force_end = 1, s.force_begin = topk > 1;
    });
  }
  index(
      list, "every_block_masked_by_nan", [&](I& s) { lengths(s, {2}, {128 * 20}); },
      [](IndexArgs& a) {
        std::memset(a.score.k_scale.data, 0x7F, static_cast<std::size_t>(a.score.k_scale.count()));
      });
  index(list, "live_lengths_beyond_the_bound",
        [&](I& s) { lengths(s, {2}, {4096}), s.score.max_k_tiles = 9, s.topk = 4; });
  index(list, "decode_of_one_long_context",
        [&](I& s) { lengths(s, {1}, {2100 * 128 + 17}), s.score.q_heads = 1, s.force_end = 1; });
  for (Reduce reduce : {Reduce::all, Reduce::kv_group}) {
    index(list, reduce == Reduce::all ? "reduced_over_all_heads" : "reduced_over_groups",
          [&](I& s) {
            lengths(s, {5, 2}, {128 * 33, 700});
            s.score.q_heads = 8, s.score.k_heads = 2, s.score.reduce = reduce, s.topk = 8;
          });
    index(list, reduce == Reduce::all ? "550_heads_a_key_head_all" : "550_heads_a_key_head_groups",
          [&](I& s) {
            lengths(s, {2, 1}, {400, 70});
            s.score.q_heads = 1100, s.score.k_heads = 2, s.score.reduce = reduce, s.topk = 2;
          });
  }
  index(list, "block_subset_of_rank_1_of_3", [&](I& s) {
    lengths(s, {2, 1}, {128 * 50, 128 * 7});
    s.score.block_start = 1, s.score.block_step = 3, s.topk = 5, s.force_end = 1;
  });
  index(list, "mixed_types", [&](I& s) {
    lengths(s, {2, 1}, {128 * 30, 128 * 7}), s.score.types = Types::bf16_fp4;
  });
}

void add_storage_cases(std::vector<Case>& list) {
  const auto quantize = [&](const std::string& name, const QuantizeSpec& s) {
    Case c;
    c.name = "quantize/" + name;
    c.build = [s] { return build_quantize(s); };
    c.small = s.rows * s.columns < 100000;
    list.push_back(c);
  };
  using Q = QuantizeSpec;
  const std::pair<const char*, Element> types[] = {
      {"bf16", Element::bf16}, {"f16", Element::f16}, {"f32", Element::f32}};
  const std::pair<const char*, SfLayout> layouts[] = {{"128x4", SfLayout::layout_128x4},
                                                      {"8x4", SfLayout::layout_8x4},
                                                      {"linear", SfLayout::layout_linear}};
  const std::pair<const char*, Q::Input> inputs[] = {
      {"normals", Q::normals},       {"zeros", Q::zeros}, {"some_zero", Q::some_zero},
      {"minus_five", Q::minus_five}, {"ties", Q::ties},   {"specials", Q::specials}};
  std::uint64_t seed = 0;
  for (const auto& [type, element] : types) {
    for (const auto& [input, kind] : inputs) {
      Q s;
      s.type = element, s.input = kind, s.rows = 130, s.seed = ++seed;
      s.global_scale = kind == Q::ties ? 64.0f : 448.0f;
      quantize(std::string(type) + "_" + input, s);
    }
    for (const auto& [layout, where] : layouts) {
      for (std::int64_t rows : {0, 1, 5, 33, 128, 257}) {
        for (std::int64_t columns : {16, 48, 80, 128, 256}) {
          if ((rows + columns + static_cast<std::int64_t>(element)) % 3 == 1)
            continue;  // two in three
          Q s;
          s.type = element, s.layout = where, s.rows = rows, s.columns = columns, s.seed = ++seed;
          s.row_gap = rows % 2 * 16 + (rows == 33 ? 3 : 0);
          s.scale_pointer = rows == 5;
          quantize(std::string(type) + "_" + layout + "_" + std::to_string(rows) + "x" +
                       std::to_string(columns),
                   s);
        }
      }
    }
    for (float scale : {1.0f, 44.8f, 1e-3f, 1e-30f, 3e-39f, 1e30f, 3e38f}) {
      for (std::int64_t first : {0, 32768}) {  // 2 x 32768 patterns; the sign is bit 15
        Q s;
        s.type = element, s.input = Q::patterns, s.rows = 256, s.first_pattern = first,
        s.global_scale = scale;
        char text[16];
        std::snprintf(text, sizeof text, "%g", static_cast<double>(scale));
        quantize(std::string(type) + "_patterns_from_" + std::to_string(first) + "_scale_" + text,
                 s);
      }
    }
  }
  constexpr float inf = std::numeric_limits<float>::infinity();
  for (float bad :
       {0.0f, -1.0f, inf, std::numeric_limits<float>::quiet_NaN()}) {  // in memory: zeros, no error
    Q s;
    s.global_scale = bad, s.scale_pointer = true, s.rows = 5;
    quantize("global_scale_in_memory_" + std::to_string(bad), s);
  }

  const auto append = [&](const std::string& name, const std::function<void(AppendSpec&)>& change) {
    AppendSpec s;
    s.seed = list.size();
    change(s);
    Case c;
    c.name = "append/" + name;
    c.build = [s] { return build_append(s); };
    list.push_back(c);
    return &list.back();
  };
  using A = AppendSpec;
  append("nine_tokens", [](A&) {});
  append("negative_slot", [](A& s) { s.tokens = 2, s.slots = {5, -1}; });
  append("fewer_slots_than_tokens", [](A& s) { s.slots = {3, 200}; });
  append("no_slots", [](A& s) { s.slots = {}; });
  append("slots_beyond_the_pool", [](A& s) {
    s.slots = {512, 3, std::int64_t{1} << 40, 511};
  })->checked_error = {"slot_mapping"};
  append("a_full_page", [](A& s) {
    s.tokens = 256, s.slots.clear();
    for (std::int64_t i = 0; i < 256; ++i)
      s.slots.push_back((i * 37) % 128 + (i < 128 ? 128 : 384));
  });
  for (const auto& [type, element] : types) {
    for (bool odd : {false, true}) {
      for (Strides strides : {Strides::dense, Strides::interleaved}) {
        append(std::string(type) + (strides == Strides::dense ? "_dense" : "_pages_of_9216_bytes") +
                   (odd ? "_odd" : ""),
               [&, e = element](A& s) {
                 s.type = e, s.misaligned = odd, s.strides = strides, s.heads = odd ? 3 : 1,
                 s.scale_pointer = odd;
               });
      }
    }
  }
  append("global_scale_in_memory_zero", [](A& s) { s.scale_pointer = true, s.global_scale = 0; });
}

}  // namespace kvscout::cases
