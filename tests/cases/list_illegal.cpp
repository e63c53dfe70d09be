// Questions that are refused before anything is written. tests/validate_test.cpp has every error;
// here are those that users ran into.
#include "cases.h"

namespace kvscout::cases {

namespace {

void refuse(std::vector<Case>& list, const std::string& name, std::vector<std::string> error,
            std::function<Problem()> build) {
  Case c;
  c.name = "illegal/" + name;
  c.build = std::move(build);
  c.legal = false;
  c.error = std::move(error);
  list.push_back(c);
}

Problem score(const std::function<void(ScoreSpec&)>& change,
              const std::function<void(Problem&, ScoreFp4Args&)>& edit) {
  ScoreSpec s;
  s.q_lengths = {1, 2, 1, 1, 2};
  s.k_lengths = {100, 200, 300, 5, 0};
  change(s);
  Problem p = build_score(s);
  edit(p, std::get<ScoreFp4Args>(p.args));
  return p;
}

}  // namespace

void add_illegal_cases(std::vector<Case>& list) {
  using A = ScoreFp4Args;
  const auto paged = [](ScoreSpec&) {};
  const auto flat = [](ScoreSpec& s) { s.paged = false; };
  refuse(list, "more_lengths_than_requests", {"msa_proxy_score_fp4", "seqused_k", "8", "5"}, [=] {
    return score(paged, [](Problem& p, A& a) {
      a.seqused_k = p.add_i32({1, 2, 3, 4, 5, 6, 7, 8});
    });
  });
  refuse(list, "prefix_of_length_one", {"msa_proxy_score_fp4", "cu_seqlens_k", "1", "6"},
         [=] { return score(flat, [](Problem& p, A& a) { a.cu_seqlens_k = p.add_i32({0}); }); });
  for (std::int64_t tokens : {64, 256}) {
    refuse(list, "pages_of_" + std::to_string(tokens) + "_tokens",
           {"msa_proxy_score_fp4", "k_fp4", std::to_string(tokens), "128"}, [=] {
             return score(paged, [tokens](Problem& p, A& a) {
               a.k_fp4 = Tensor(p.add_input(9 * tokens * 64), DType::u8, {9, 1, tokens, 64});
             });
           });
  }
  refuse(list, "scale_buffer_too_short", {"msa_proxy_score_fp4", "q_scale", "1023", "1024"},
         [=] { return score(paged, [](Problem&, A& a) { a.q_scale.shape[0] = 1023; }); });
  refuse(list, "scales_of_linear_size", {"msa_proxy_score_fp4", "k_scale", "4840", "5120"},
         [=] { return score(flat, [](Problem&, A& a) { a.k_scale.shape[0] = 605 * 8; }); });
  refuse(list, "bound_below_the_lengths", {"msa_proxy_score_fp4", "max_seqlen_q", "1", "2"},
         [=] { return score(paged, [](Problem&, A& a) { a.max_seqlen_q = 1; }); });
  refuse(list, "heads_that_do_not_divide", {"msa_proxy_score_fp4", "q_fp4", "4", "3"},
         [=] { return score([](ScoreSpec& s) { s.k_heads = 3; }, [](Problem&, A&) {}); });
  for (int topk : {0, 65}) {
    refuse(list, "top" + std::to_string(topk),
           {"msa_topk_select", "topk", std::to_string(topk), "64"}, [=] {
             Problem p = build_select({});
             auto& a = std::get<SelectArgs>(p.args);
             a.topk = topk;
             a.output.shape[2] = topk;
             return p;
           });
  }
  refuse(list, "more_forced_than_chosen",
         {"msa_topk_select", "force_begin_blocks", "force_end_blocks", "topk"}, [] {
           SelectSpec s;
           s.topk = 4, s.force_begin = 3, s.force_end = 2;
           return build_select(s);
         });
  refuse(list, "global_scales_that_underflow", {"msa_proxy_score_fp4", "global_scale"}, [=] {
    return score(paged,
                 [](Problem&, A& a) { a.q_global_scale.value = a.k_global_scale.value = 1e-30f; });
  });
  refuse(list, "overlapping_output", {"msa_proxy_score_fp4", "output"}, [=] {
    return score(paged, [](Problem&, A& a) { a.output.stride[1] = 1, a.output.stride[2] = 1; });
  });
  refuse(list, "forward_scale_of_zero", {"nvfp4_quantize", "a_global_sf"}, [] {
    QuantizeSpec s;
    s.global_scale = 0;
    return build_quantize(s);
  });
}

}  // namespace kvscout::cases
