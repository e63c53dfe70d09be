// Named scores: what went wrong for users of such libraries, and every edge case of the contract.
#include <limits>

#include "cases.h"

namespace kvscout::cases {

namespace {

using Edit = std::function<void(Problem&)>;

struct List {
  std::vector<Case>& list;
  Case& add(const std::string& name, const ScoreSpec& s, const Edit& edit = {}) {
    Case c;
    c.name = (is_fp4(s.types) ? "score_fp4/" : "score/") + name;
    c.build = [s, edit] {
      Problem p = build_score(s);
      if (edit) edit(p);
      return p;
    };
    c.small = row_products(s) < 40000;
    list.push_back(c);
    return list.back();
  }
};

ScoreFp4Args& fp4(Problem& p) { return std::get<ScoreFp4Args>(p.args); }
std::int32_t& i32(const Tensor& t, std::int64_t i) { return element<std::int32_t>(t, i); }

ScoreSpec paged(std::vector<std::int32_t> q, std::vector<std::int32_t> k) {
  ScoreSpec s;
  s.q_lengths = std::move(q);
  s.k_lengths = std::move(k);
  s.seed = 7;
  return s;
}
ScoreSpec flat(std::vector<std::int32_t> q, std::vector<std::int32_t> k) {
  ScoreSpec s = paged(std::move(q), std::move(k));
  s.paged = false;
  return s;
}
ScoreSpec with(ScoreSpec s, const std::function<void(ScoreSpec&)>& change) {
  change(s);
  return s;
}

void layout_and_bounds(List& l) {
  l.add("poisoned_tail_of_a_half_used_page", paged({4}, {130}));
  for (std::int32_t tiles : {255, 256, 257, 1025}) {  // columns past a power of two are written
    l.add("columns_" + std::to_string(tiles),
          with(paged({1}, {tiles * 128}), [](ScoreSpec& s) { s.q_heads = 1; }));
  }
  l.add("minus_one_in_unused_table_columns",
        with(paged({1}, {100}), [](ScoreSpec& s) { s.max_k_tiles = 4; }));
  l.add("live_lengths_beyond_the_bound",
        with(paged({2}, {4096}), [](ScoreSpec& s) { s.max_k_tiles = 1; }));
  l.add("no_columns_at_all", with(paged({2}, {300}), [](ScoreSpec& s) { s.max_k_tiles = 0; }));
  // Where the CPU stores -inf around the cache.
  l.add("tails_of_megabytes",
        with(paged({37, 150}, {130, 700}), [](ScoreSpec& s) { s.max_k_tiles = 600; }));
  l.add("table_wider_than_the_output", with(paged({1}, {2048 * 128}), [](ScoreSpec& s) {
          s.q_heads = 1;
          s.max_k_tiles = 1555;
        }));
  l.add("length_beyond_the_table", with(paged({60}, {512}), [](ScoreSpec& s) { s.q_heads = 1; }),
        [](Problem& p) {
          ScoreFp4Args& a = fp4(p);
          i32(a.seqused_k, 0) = 1000;
          a.page_table.shape[1] = 4;
        })
      .checked_error = {"seqused_k", "1000"};
  l.add("page_ids_out_of_range",
        with(paged({3, 2}, {1300, 700}), [](ScoreSpec& s) { s.pages = Pages::out_of_range; }))
      .checked_error = {"page_table"};
  l.add("two_requests_share_pages", paged({2, 3}, {384, 384}), [](Problem& p) {
    const Tensor& table = fp4(p).page_table;
    for (int c = 0; c < 2; ++c)
      element<std::int32_t>(table, 1, c) = element<std::int32_t>(table, 0, c);
  });
  l.add("table_with_a_column_stride",
        with(paged({1, 1}, {700, 513}), [](ScoreSpec& s) { s.strides = Strides::interleaved; }));
  for (bool odd : {false, true}) {
    const auto change = [odd](ScoreSpec& s) {
      s.strides = Strides::interleaved;
      s.misaligned = odd;
      s.values = Values::raw;
      s.q_heads = 8, s.k_heads = 2;
    };
    l.add(odd ? "odd_strides_paged" : "pages_of_9216_bytes",
          with(paged({3, 1}, {400, 129}), change));
    l.add(odd ? "odd_strides_flat" : "padded_strides_flat", with(flat({3, 1}, {400, 129}), change));
  }
}

// Groups of heads that are wider than what a back end takes at once.
void wide_groups(List& l) {
  for (Reduce reduce : {Reduce::none, Reduce::all, Reduce::kv_group}) {
    const std::string way = reduce == Reduce::none  ? ""
                            : reduce == Reduce::all ? "_all"
                                                    : "_groups";
    for (Types types : {Types::fp4_fp4, Types::bf16_fp4, Types::f16_f16}) {
      l.add("550_heads_a_key_head_types_" + std::to_string(static_cast<int>(types)) + way,
            with(paged({2, 1}, {200, 70}), [=](ScoreSpec& s) {
              s.q_heads = 1100, s.k_heads = 2, s.reduce = reduce, s.types = types;
            }));
    }
  }
}

void lengths_and_causality(List& l) {
  l.add("warm_up_with_lengths_zero",
        with(paged({1, 1, 1, 1}, {0, 0, 0, 0}), [](ScoreSpec& s) { s.max_k_tiles = 3; }));
  l.add("more_queries_than_keys", paged({4}, {2}));
  l.add("one_key_past_a_block", paged({4}, {129}));
  l.add("prefill_and_decode_in_one_batch", paged({1, 1, 512}, {700, 90, 1024}));
  // A line of its own on some back ends: several tiles for each key head, more tiles than lanes.
  l.add("one_request_of_several_tiles",
        with(paged({200}, {500}), [](ScoreSpec& s) { s.q_heads = 8, s.k_heads = 2; }));
  l.add("one_request_of_several_tiles_all_heads", with(flat({200}, {500}), [](ScoreSpec& s) {
          s.q_heads = 8, s.k_heads = 2, s.reduce = Reduce::all;
        }));
  l.add("one_request_of_many_tiles",
        with(paged({133}, {300}), [](ScoreSpec& s) { s.q_heads = 64, s.max_k_tiles = 5; }));
  l.add("no_requests",
        with(flat({}, {}), [](ScoreSpec& s) { s.rows_before = 3, s.max_k_tiles = 2; }));
  l.add("no_queries", flat({0, 0}, {100, 40}));
  l.add("rows_but_no_queries", with(paged({0, 0}, {100, 40}), [](ScoreSpec& s) {
          s.rows_before = 2, s.rows_after = 1, s.max_k_tiles = 2;
        }));
  l.add("rows_that_no_request_owns", with(flat({2, 0, 3}, {200, 10, 0}), [](ScoreSpec& s) {
          s.rows_before = 2, s.rows_after = 4, s.max_k_tiles = 2;
        }));
  std::vector<std::int32_t> q, k;
  for (std::int32_t n = 0; n <= 130; ++n) q.push_back(n), k.push_back(n % 3 ? n + 20 : 260 - n);
  l.add("query_lengths_0_to_130", with(paged(q, k), [](ScoreSpec& s) { s.q_heads = 1; }));
  l.add("query_lengths_0_to_130",
        with(flat(q, k), [](ScoreSpec& s) { s.q_heads = 2, s.types = Types::bf16_bf16; }));
  q.clear(), k.clear();
  for (std::int32_t n = 0; n <= 260; ++n) q.push_back(1 + n % 2), k.push_back(n);
  l.add("key_lengths_0_to_260", with(paged(q, k), [](ScoreSpec& s) { s.q_heads = 2; }));
  l.add("key_lengths_0_to_260",
        with(flat(q, k), [](ScoreSpec& s) { s.q_heads = 2, s.types = Types::f16_f16; }));
  for (std::int64_t offset : {std::int64_t{-3}, std::int64_t{127}, std::int64_t{128},
                              std::int64_t{1} << 40, -(std::int64_t{1} << 40)}) {
    l.add("offset_" + std::to_string(offset), flat({5, 2}, {300, 140}), [offset](Problem& p) {
      fp4(p).has_q_offset = true;
      fp4(p).q_offset = offset;
    });
  }
  l.add("offsets_at_the_ends_of_int32",
        with(flat({2, 2, 1}, {300, 140, 129}), [](ScoreSpec& s) { s.offset = Offset::tensor; }),
        [](Problem& p) {
          i32(fp4(p).q_offsets, 0) = std::numeric_limits<std::int32_t>::min();
          i32(fp4(p).q_offsets, 1) = std::numeric_limits<std::int32_t>::max();
        });
  l.add("block_subset_beyond_the_keys", with(paged({2}, {300}), [](ScoreSpec& s) {
          s.block_start = 7, s.block_step = 4, s.max_k_tiles = 3;
        }));
  for (std::int32_t tokens : {1, 2}) {  // block * 128 is beyond 32 bits
    const std::string of = "_tokens_" + std::to_string(tokens);
    l.add("blocks_from_2_to_the_26th" + of, with(paged({tokens}, {300}), [](ScoreSpec& s) {
            s.block_start = std::int64_t{1} << 26, s.max_k_tiles = 3;
          }));
    l.add("every_2_to_the_26th_block" + of, with(paged({tokens}, {300}), [](ScoreSpec& s) {
            s.block_step = std::int64_t{1} << 26, s.max_k_tiles = 70;
          }));
  }
  l.add("block_subset_of_rank_3_of_4", with(paged({2, 1}, {2000, 1100}), [](ScoreSpec& s) {
          s.block_start = 3, s.block_step = 4;
        }));
  l.add("negative_length", paged({2, 1}, {100, 300}), [](Problem& p) {
     i32(fp4(p).seqused_k, 0) = -5;
   }).checked_error = {"seqused_k", "-5"};
  l.add("query_prefix_outside_the_queries", flat({4, 6}, {200, 300}), [](Problem& p) {
     i32(fp4(p).cu_seqlens_q, 0) = -3;
     i32(fp4(p).cu_seqlens_q, 2) = 100;
     fp4(p).max_seqlen_q = 200;
   }).checked_error = {"cu_seqlens_q"};
  Case& falls = l.add("query_prefix_that_falls", flat({5, 4, 6}, {200, 100, 300}), [](Problem& p) {
    i32(fp4(p).cu_seqlens_q, 2) = 3;
    fp4(p).max_seqlen_q = 50;
  });
  falls.checked_error = {"cu_seqlens_q"};
  falls.unspecified = true;
  l.add("key_prefix_outside_the_keys", flat({2, 2}, {200, 300}), [](Problem& p) {
     i32(fp4(p).cu_seqlens_k, 2) = 5000;
   }).checked_error = {"cu_seqlens_k"};
  l.add("key_prefix_that_falls", flat({2, 2, 1}, {200, 300, 100}), [](Problem& p) {
     i32(fp4(p).cu_seqlens_k, 2) = 100;
   }).checked_error = {"cu_seqlens_k"};
}

// One token a request at most: the decode step, for which back ends have short cuts, such as that
// request b's token is b.
void single_tokens(List& l) {
  for (Types types : {Types::fp4_fp4, Types::f16_fp4, Types::bf16_fp4}) {
    const std::string of = "_types_" + std::to_string(static_cast<int>(types));
    l.add("single_tokens_beside_none" + of,
          with(paged({1, 0, 1, 1, 0, 1}, {700, 90, 0, 129, 10, 1000}), [=](ScoreSpec& s) {
            s.types = types, s.q_heads = 6, s.k_heads = 2, s.rows_before = 2, s.rows_after = 3;
            s.strides = Strides::interleaved, s.offset = Offset::tensor, s.scale_pointers = true;
          }));
    std::vector<std::int32_t> q, k;
    for (std::int32_t n = 0; n < 40; ++n) q.push_back(n % 5 != 3), k.push_back(n * 28);
    l.add("single_tokens_of_many_requests" + of,
          with(paged(q, k), [=](ScoreSpec& s) { s.types = types, s.q_heads = 8; }));
  }
  l.add("single_tokens_block_subset", with(paged({1, 1}, {2000, 1100}), [](ScoreSpec& s) {
          s.block_start = 3, s.block_step = 4, s.max_k_tiles = 9;
        }));
  l.add("single_tokens_page_ids_out_of_range",
        with(paged({1, 1}, {1300, 700}), [](ScoreSpec& s) { s.pages = Pages::out_of_range; }))
      .checked_error = {"page_table"};
}

// The same, more blocks than threads: a warp has one column or two, if the bounds say so many.
void single_tokens_over_many_columns(List& l) {
  const auto wide = [](std::vector<std::int32_t> k, std::int64_t width) {
    ScoreSpec s = paged({1, 0, 1, 1, 1}, std::move(k));
    s.q_heads = 6, s.k_heads = 2, s.rows_before = 2, s.rows_after = 3;
    s.table_width = width, s.max_k_tiles = width + 30;
    return s;
  };
  for (Types types : {Types::fp4_fp4, Types::f16_fp4, Types::bf16_fp4}) {
    const std::string of = "_types_" + std::to_string(static_cast<int>(types));
    l.add("single_tokens_a_warp_a_column" + of,
          with(wide({700, 90, 0, 129, 1000}, 200), [=](ScoreSpec& s) {
            s.types = types, s.strides = Strides::interleaved, s.offset = Offset::tensor;
            s.scale_pointers = true;
          }));
    for (std::int64_t width : {300, 600})  // a column a warp, and two
      l.add("single_tokens_one_key_head_" + std::to_string(width) + of,
            with(wide({25600, 90, 129, 24001, 20000}, width),
                 [=](ScoreSpec& s) {
                   s.types = types, s.q_lengths = {1, 1, 1, 1, 1}, s.q_heads = 4, s.k_heads = 1;
                   s.rows_before = s.rows_after = 0, s.pages = Pages::out_of_range;
                 }))
          .checked_error = {"page_table"};
    l.add("single_tokens_a_warp_two_columns" + of,
          with(wide({26000, 90, 28001, 129, 51200}, 400),
               [=](ScoreSpec& s) { s.types = types, s.output = OutputStrides::tiles_innermost; }));
  }
  l.add("single_tokens_a_warp_two_columns_of_a_subset",
        with(wide({700, 90, 28001, 129, 60000}, 1600),
             [](ScoreSpec& s) { s.block_start = 1, s.block_step = 4, s.causal = false; }));
  l.add("single_tokens_a_warp_two_columns_page_ids_out_of_range",
        with(wide({1300, 90, 28001, 129, 27000}, 400),
             [](ScoreSpec& s) { s.pages = Pages::out_of_range; }))
      .checked_error = {"page_table"};
}

// Many more columns than the page table or the keys can hold, for one and several tokens a request.
void columns_beyond_the_keys(List& l) {
  for (std::int32_t tokens : {1, 3})
    for (Reduce reduce : {Reduce::none, Reduce::all}) {
      const std::string of =
          "_tokens_" + std::to_string(tokens) + (reduce == Reduce::all ? "_all_heads" : "");
      const auto change = [=](ScoreSpec& s) {
        s.max_k_tiles = 1037, s.q_heads = 2, s.k_heads = 2, s.reduce = reduce;
        s.rows_before = 2, s.rows_after = 3;
      };
      const std::vector<std::int32_t> q{tokens, 0, tokens}, k{200, 90, 400};
      l.add("columns_far_beyond_the_table" + of, with(paged(q, k), change));
      l.add("columns_far_beyond_the_keys" + of, with(flat(q, k), change));
      l.add("columns_innermost_far_beyond_the_table" + of, with(paged(q, k), [=](ScoreSpec& s) {
              change(s);
              s.output = OutputStrides::tiles_innermost;
            }));
    }
  l.add("block_subset_far_beyond_the_table", with(paged({1, 1}, {2000, 1100}), [](ScoreSpec& s) {
          s.block_start = 2, s.block_step = 5, s.max_k_tiles = 600;
        }));
}

// What a launch captured for contexts of 384k is replayed with.
void short_lengths_in_a_long_table(List& l) {
  const auto in = [](ScoreSpec s, std::int32_t tokens) {
    s.max_k_tiles = s.table_width = 3000;
    s.q_lengths = {tokens, 0, tokens};
    return s;
  };
  const ScoreSpec few = paged({}, {200, 90, 400});
  for (Types types : {Types::fp4_fp4, Types::bf16_fp4})
    for (std::int32_t tokens : {1, 4})
      l.add("short_lengths_in_a_long_table_tokens_" + std::to_string(tokens) +
                (types == Types::bf16_fp4 ? "_bf16" : ""),
            with(in(few, tokens), [=](ScoreSpec& s) { s.types = types; }));
  l.add("short_lengths_in_a_long_table_all_heads", with(in(few, 2), [](ScoreSpec& s) {
          s.q_heads = 4, s.k_heads = 1, s.reduce = Reduce::all, s.rows_after = 2;
        }));
  l.add("short_lengths_in_a_long_table_two_key_heads",
        with(in(few, 3), [](ScoreSpec& s) { s.q_heads = 6, s.k_heads = 2, s.causal = false; }));
  l.add("a_block_or_two_a_multiprocessor_in_a_long_table",
        with(in(paged({}, {17000, 900, 17001}), 1), [](ScoreSpec& s) { s.q_heads = 1; }));
  // More than four blocks of keys for each of 132 multiprocessors.
  l.add("several_blocks_a_multiprocessor_in_a_long_table",
        with(in(paged({}, {70000, 900, 40001}), 1), [](ScoreSpec& s) { s.q_heads = 2; }));
  l.add("several_blocks_a_multiprocessor_in_a_long_table_key_heads",
        with(in(paged({}, {19000, 900, 17001}), 3),
             [](ScoreSpec& s) { s.q_heads = 4, s.k_heads = 2; }));
  // More requests than the lanes of a warp, some of them empty, on a line of some 700 blocks.
  std::vector<std::int32_t> singles, several, keys;
  for (std::int32_t n = 0; n < 70; ++n) {
    singles.push_back(n % 7 != 5), several.push_back(n % 4);
    keys.push_back(n * 389 % 71 * 37);
  }
  l.add("many_requests_in_a_long_table", with(in(few, 1), [&](ScoreSpec& s) {
          s.q_lengths = singles, s.k_lengths = keys, s.q_heads = 4, s.rows_before = 2;
        }));
  l.add("many_requests_of_several_blocks_in_a_long_table", with(in(few, 1), [&](ScoreSpec& s) {
          s.q_lengths = singles, s.k_lengths = keys, s.q_heads = 1;
          for (std::int32_t& n : s.k_lengths) n += 700;
        }));
  l.add("many_requests_in_a_long_table_key_heads",
        with(in(few, 1),
             [&](ScoreSpec& s) {
               s.q_lengths = several, s.k_lengths = keys, s.q_heads = 8, s.k_heads = 2;
               s.reduce = Reduce::kv_group, s.pages = Pages::out_of_range;
             }))
      .checked_error = {"page_table"};
  l.add("page_ids_out_of_range_in_a_long_table",
        with(in(few, 2), [](ScoreSpec& s) { s.pages = Pages::out_of_range; }))
      .checked_error = {"page_table"};
}

// More than 4000 blocks of keys: each of 16 warps on each of 132 multiprocessors streams several
// units, over the ends of blocks and requests, by the kernels that decoding calls have and without.
void long_streams(List& l) {
  const auto streamed = [](ScoreSpec s, std::int32_t tokens, std::int64_t heads) {
    s.q_lengths = {tokens, 0, tokens}, s.k_lengths = {300000, 900, 250001}, s.q_heads = heads;
    s.max_k_tiles = s.table_width = 2600;
    return s;
  };
  const auto wrong_pages = [](ScoreSpec& s) { s.pages = Pages::out_of_range; };
  for (Types types : {Types::fp4_fp4, Types::f16_fp4, Types::bf16_fp4, Types::bf16_bf16}) {
    const std::string of = "_types_" + std::to_string(static_cast<int>(types));
    const auto change = [=](ScoreSpec& s) { s.types = types; };
    l.add("long_stream" + of, with(streamed(paged({}, {}), 1, 1), change));
    l.add("long_stream_page_ids_out_of_range" + of,
          with(streamed(paged({}, {}), 1, 1), [=](ScoreSpec& s) { change(s), wrong_pages(s); }))
        .checked_error = {"page_table"};
    l.add("long_stream_of_flat_keys" + of,
          with(streamed(flat({}, {}), 1, 1), [=](ScoreSpec& s) { change(s), s.rows_before = 3; }));
  }
  l.add("long_stream_of_flat_keys_of_two_heads",
        with(streamed(flat({}, {}), 1, 2), [](ScoreSpec& s) { s.k_heads = 2, s.rows_before = 3; }));
  l.add(
       "long_stream_page_ids_out_of_range_not_causal",
       with(streamed(paged({}, {}), 1, 2), [=](ScoreSpec& s) { s.causal = false, wrong_pages(s); }))
      .checked_error = {"page_table"};
  for (std::int32_t tokens : {1, 4, 8})  // 16, 16 and 32 rows
    for (Reduce reduce : {Reduce::none, Reduce::all})
      if (reduce == Reduce::none || tokens == 4)
        l.add("long_stream_of_more_rows_page_ids_out_of_range_tokens_" + std::to_string(tokens) +
                  (reduce == Reduce::all ? "_all_heads" : ""),
              with(streamed(paged({}, {}), tokens, tokens == 1 ? 16 : 4),
                   [=](ScoreSpec& s) { s.reduce = reduce, wrong_pages(s); }))
            .checked_error = {"page_table"};
}

// Sets 16-bit elements of every query or key row.
void set_rows(const Tensor& t, std::uint16_t bits) {
  for (std::int64_t i = 0; i < t.size(0) * t.size(1) * t.size(2); ++i) {
    std::memcpy(static_cast<std::uint8_t*>(t.data) + 2 * i, &bits, 2);
  }
}

void numbers(List& l) {
  l.add("raw_bytes_paged", with(paged({9, 4}, {700, 513}),
                                [](ScoreSpec& s) { s.values = Values::raw, s.q_heads = 16; }));
  l.add("raw_bytes_flat", with(flat({9, 4}, {700, 513}),
                               [](ScoreSpec& s) { s.values = Values::raw, s.q_heads = 3; }));
  l.add("every_scale_nan_in_a_block", paged({2}, {384}), [](Problem& p) {
    const ScoreFp4Args& a = fp4(p);
    const std::int32_t page = element<std::int32_t>(a.page_table, 0, 1);
    std::memset(at(a.k_scale, page, 0), 0xFF, 1024);
  });
  l.add("one_nan_scale_at_a_visible_key", paged({2}, {384}), [](Problem& p) {
    const ScoreFp4Args& a = fp4(p);
    *at(a.k_scale, element<std::int32_t>(a.page_table, 0, 0), scale_place(77, 5)) = 0x7F;
  });
  l.add("nan_scale_at_a_query", paged({3}, {384}), [](Problem& p) {
    *at(fp4(p).q_scale, scale_place(2 * 4 + 1, 0)) = 0xFF;  // token 2, head 1
  });
  for (Types types : {Types::f16_fp4, Types::bf16_fp4}) {
    l.add(types == Types::f16_fp4 ? "nan_in_an_f16_query" : "nan_in_a_bf16_query",
          with(paged({3}, {384}), [types](ScoreSpec& s) { s.types = types; }),
          [](Problem& p) { element<std::uint16_t>(fp4(p).q_fp4, 1, 2, 100) = 0x7FC0; });
  }
  l.add("all_codes_zero", paged({2}, {300}), [](Problem& p) {
    const Tensor& k = fp4(p).k_fp4;
    std::memset(k.data, 0, static_cast<std::size_t>(k.count()));
  });
  l.add("all_codes_minus_zero", paged({2}, {300}), [](Problem& p) {
    const Tensor& k = fp4(p).k_fp4;
    std::memset(k.data, 0x88, static_cast<std::size_t>(k.count()));
  });
  l.add("logits_near_a_million",
        with(flat({2}, {200}), [](ScoreSpec& s) { s.types = Types::f16_f16; }), [](Problem& p) {
          set_rows(std::get<ScoreArgs>(p.args).q, half_bits(Element::f16, 90));
          set_rows(std::get<ScoreArgs>(p.args).k, half_bits(Element::f16, 91));
        });
  l.add("logits_near_a_million",
        with(flat({2}, {200}), [](ScoreSpec& s) { s.types = Types::f16_fp4; }), [](Problem& p) {
          ScoreFp4Args& a = fp4(p);
          set_rows(a.q_fp4, half_bits(Element::f16, 90));
          std::memset(a.k_fp4.data, 0x77, static_cast<std::size_t>(a.k_fp4.count()));
          std::memset(a.k_scale.data, 0x58, static_cast<std::size_t>(a.k_scale.count()));  // 16
        });
  constexpr float inf = std::numeric_limits<float>::infinity(),
                  nan = std::numeric_limits<float>::quiet_NaN();
  const std::pair<const char*, float> scales[] = {
      {"zero", 0.0f}, {"negative", -2.0f}, {"tiny", 1e-30f}, {"inf", inf}, {"nan", nan}};
  for (const auto& [name, value] : scales) {
    l.add(std::string("global_scale_in_memory_") + name,
          with(paged({3}, {300}), [](ScoreSpec& s) { s.scale_pointers = true; }),
          [v = value](Problem& p) {
            *const_cast<float*>(fp4(p).k_global_scale.pointer) = v;
            if (v == 1e-30f)
              *const_cast<float*>(fp4(p).q_global_scale.pointer) = v;  // the product underflows
          });
  }
}

}  // namespace

void add_score_cases(std::vector<Case>& list) {
  List l{list};
  layout_and_bounds(l);
  wide_groups(l);
  lengths_and_causality(l);
  single_tokens(l);
  single_tokens_over_many_columns(l);
  columns_beyond_the_keys(l);
  long_streams(l);
  short_lengths_in_a_long_table(l);
  numbers(l);
}

}  // namespace kvscout::cases
