// kvscout score, index: scores of blocks, and the blocks with the best scores.

#include <algorithm>

#include "call.h"
#include "verbs.h"

namespace kvscout::tool {
namespace {

void add_score_options(Verb& verb, CallOptions& o) {
  o.add_to(verb);
  const auto scalar = [&](const char* flag, const char* kind, const char* argument,
                          const char* help) { verb.scalar(flag, kind, o.given, argument, help); };
  scalar("--reduce-heads", "{none,all,kv_group}", "reduce_heads", "the maximum over which heads");
  scalar("--causal", "{true,false}", "causal", "whether later keys are hidden (default: true)");
  scalar("--q-offset", "N", "q_offset", "position of the first query of every request");
  scalar("--max-k-tiles", "N", "max_k_tiles", "blocks of the result (default: from the lengths)");
  scalar("--max-seqlen-q", "N", "max_seqlen_q",
         "bound on the queries of a request (default: from the lengths)");
  scalar("--q-global-scale", "X", "q_global_scale",
         "inverse global scale of the queries (default: 1)");
  scalar("--k-global-scale", "X", "k_global_scale",
         "inverse global scale of the keys (default: 1)");
  scalar("--kv-block-start", "N", "kv_block_start", "first block of a subset");
  scalar("--kv-block-step", "N", "kv_block_step", "every n-th block");
}

// The arguments that msa_proxy_score and msa_proxy_score_fp4 share, without bounds and output.
template <class Args>
void read_requests(Inputs& in, Args& a) {
  a.cu_seqlens_q = in.int32("cu_seqlens_q");
  a.page_table = in.int32("page_table");
  a.cu_seqlens_k = a.page_table.defined ? Tensor() : in.int32("cu_seqlens_k");
  a.seqused_k = a.page_table.defined ? in.int32("seqused_k") : Tensor();
  a.causal = in.boolean("causal", true);
  a.reduce_heads = in.reduce();
  if (in.is_scalar("q_offset")) {
    a.has_q_offset = true;
    a.q_offset = *in.integer("q_offset");
  } else {
    a.q_offsets = in.int32("q_offset");
  }
  a.kv_block_start = in.integer("kv_block_start").value_or(0);
  a.kv_block_step = in.integer("kv_block_step").value_or(1);
}

// Bounds that nobody gave follow from the lengths; `expected` has as many blocks as the result
// shall have.
template <class Args>
void resolve_bounds(Inputs& in, Args& a, const Tensor& expected) {
  const auto tiles = in.integer("max_k_tiles"), queries = in.integer("max_seqlen_q");
  const Bounds bounds = tiles && queries ? Bounds{*queries, *tiles} : bounds_of(a);
  a.max_seqlen_q = queries.value_or(bounds.max_seqlen_q);
  a.max_k_tiles = tiles                                    ? *tiles
                  : expected.defined && expected.rank == 3 ? expected.shape[1]
                                                           : bounds.max_k_tiles;
}

template <class Args>
std::int64_t out_heads(const Args& a, const Tensor& q, const Tensor& k) {
  if (q.rank < 2 || k.rank < 2) return 1;  // the operation refuses it by name
  return a.reduce_heads == Reduce::none  ? q.shape[1]
         : a.reduce_heads == Reduce::all ? 1
                                         : k.shape[1];
}

std::int64_t tokens_of(const Tensor& q) { return q.rank > 0 ? q.shape[0] : 0; }

// A copy without signs: scoring it gives the largest sum of |products| of each block.
Tensor without_signs(const Tensor& t, std::vector<std::uint8_t>& copy) {
  const auto bytes = static_cast<std::size_t>(t.count() * bytes_of(t.dtype));
  const auto* from = static_cast<const std::uint8_t*>(t.data);
  copy.assign(from, from + bytes);
  const bool wide = bytes_of(t.dtype) == 2;
  const std::uint8_t mask = t.dtype == DType::e4m3 ? 0x7F : 0x77;
  for (std::size_t i = 0; i < bytes; ++i) copy[i] &= wide ? (i % 2 ? 0x7F : 0xFF) : mask;
  Tensor u = t;
  u.data = copy.data();
  return u;
}

template <class Args>
std::vector<float> magnitudes_of(Args a, Tensor Args::*q, Tensor Args::*k, const Options& options) {
  std::vector<std::uint8_t> q_copy, k_copy;
  a.*q = without_signs(a.*q, q_copy);
  a.*k = without_signs(a.*k, k_copy);
  std::vector<float> result(static_cast<std::size_t>(a.output.count()));
  a.output.data = result.data();
  run_operation(a, options);
  return result;
}

// `q` and `k` name the members that hold the data.
template <class Args>
int score(Call& call, Args a, Tensor Args::*q, Tensor Args::*k) {
  read_requests(call.in, a);
  resolve_bounds(call.in, a, call.expected_for("max_score"));
  a.output = call.result("max_score", DType::f32,
                         {out_heads(a, a.*q, a.*k), std::max<std::int64_t>(a.max_k_tiles, 0),
                          tokens_of(a.*q)});  // the operation refuses others by name
  call.run(a);
  call.magnitudes = [&] { return magnitudes_of(a, q, k, call.options); };
  return call.finish();
}

int run_score(const CallOptions& asked) {
  const bool unquantised = Inputs(asked.files, asked.use, {}).has("q");
  Call call(unquantised ? "msa_proxy_score" : "msa_proxy_score_fp4", asked);
  if (!unquantised)
    return score(call, read_score_fp4(call.in), &ScoreFp4Args::q_fp4, &ScoreFp4Args::k_fp4);
  ScoreArgs a;
  a.q = call.in.tensor("q");
  a.k = call.in.tensor("k");
  return score(call, a, &ScoreArgs::q, &ScoreArgs::k);
}

int run_index(const CallOptions& asked) {
  Call call("msa_index_select_fp4", asked);
  IndexArgs a;
  a.score = read_score_fp4(call.in);
  read_requests(call.in, a.score);
  resolve_bounds(call.in, a.score, {});
  a.topk = call.in.small("topk", 16);
  a.force_begin_blocks = call.in.small("force_begin_blocks", 0);
  a.force_end_blocks = call.in.small("force_end_blocks", 0);
  const std::int64_t tokens = tokens_of(a.score.q_fp4);
  const std::int64_t heads = out_heads(a.score, a.score.q_fp4, a.score.k_fp4);
  const std::int64_t topk = std::clamp(a.topk, 0, kMaxTopk);  // the operation refuses others
  a.output = call.result("ids", DType::i32, {tokens, heads, topk});
  a.scores = call.result("scores", DType::f32, {tokens, heads, topk});
  call.run(a);
  return call.finish();
}

}  // namespace

ScoreFp4Args read_score_fp4(Inputs& in) {
  ScoreFp4Args a;
  a.q_fp4 = in.tensor("q_fp4");
  a.k_fp4 = in.tensor("k_fp4");
  a.q_scale = in.optional("q_scale");
  a.k_scale = in.tensor("k_scale");
  a.q_global_scale = in.scale("q_global_scale");
  a.k_global_scale = in.scale("k_global_scale");
  return a;
}

ScoreFp4Args read_score_problem(Inputs& in) {
  ScoreFp4Args a = read_score_fp4(in);
  read_requests(in, a);
  resolve_bounds(in, a, {});
  return a;
}

std::int64_t heads_of_result(const ScoreFp4Args& a) { return out_heads(a, a.q_fp4, a.k_fp4); }

void add_score(CommandLine& line) {
  Verb verb = line.verb(
      "score", "score every block of keys for every query",
      "Arguments: q_fp4, k_fp4, q_scale, k_scale, q_global_scale, k_global_scale, cu_seqlens_q,\n"
      "  cu_seqlens_k | page_table + seqused_k [, q_offset]; or q, k without scales. Result: "
      "max_score.\n"
      "Example: kvscout score problem.safetensors --reduce-heads all -o scores.safetensors");
  auto o = std::make_shared<CallOptions>();
  add_score_options(verb, *o);
  verb.above_zero(
      "--tolerance", o->tolerance,
      "error that --compare allows, in parts of the products' magnitude (default: 9e-7 = "
      "5e-7 of the CPU back ends + 4e-7 for expected values in fp32)");
  verb.run([o] { return run_score(*o); });
}

void add_index(CommandLine& line) {
  Verb verb = line.verb(
      "index", "score and select in one pass: the blocks that each query reads",
      "Arguments: as for score with q_fp4, k_fp4. Results: ids, scores.\n"
      "Example: kvscout index problem.safetensors --topk 16 --force-end 1 -o ids.safetensors");
  auto o = std::make_shared<CallOptions>();
  add_score_options(verb, *o);
  add_select_options(verb, *o);
  verb.run([o] { return run_index(*o); });
}

}  // namespace kvscout::tool
