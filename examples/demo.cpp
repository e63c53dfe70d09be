// The main job on real input: for each question, which 16 blocks of a long text are worth reading?
//
//   kvscout_demo [FOLDER]     FOLDER: where bible.safetensors, blocks.tsv and questions.tsv are
//
// Quantises keys and queries to NVFP4, scores every block, selects 16, and compares with the same
// in float and with a random choice. Ends with 1 if anything contradicts itself. Uses nothing but
// the public calls; examples/README.md says what the data are.
#include <cmath>
#include <cstdio>
#include <exception>
#include <string>
#include <vector>

#include "demo_data.h"
#include "demo_judge.h"
#include "demo_memory.h"
#include "demo_show.h"
#include "kvscout/kvscout.h"

namespace {

using namespace kvscout;
using demo::Choice, demo::Data, demo::kTopk, demo::Quantized, demo::Scores, demo::time_of,
    demo::Workspace;

struct Result {
  Scores nvfp4, exact;  // exact: the fp16 values, added in float
  Choice chosen{}, fused{}, in_float{}, at_random{};
  std::size_t key_bytes = 0;
  double quantize_keys_ms = 0, quantize_queries_ms = 0, score_ms = 0, select_ms = 0, index_ms = 0,
         float_ms = 0;
  std::string plan{};
};

Result do_the_job(const Data& data) {
  const std::int64_t questions = data.q.size(0), blocks = std::ssize(data.blocks);
  Result r{.nvfp4{questions, blocks}, .exact{questions, blocks}};
  for (Choice* ids : {&r.chosen, &r.fused, &r.in_float})
    ids->resize(static_cast<std::size_t>(questions * kTopk));
  const auto ids_view = [&](Choice& ids) {
    return Tensor(ids.data(), DType::i32, {questions, 1, kTopk});
  };

  const Quantized k(data.k), q(data.q);
  r.quantize_keys_ms = k.ms, r.quantize_queries_ms = q.ms;
  r.key_bytes = k.code_bytes.size() + k.scale_bytes.size();

  const ScoreFp4Args score{.q_fp4 = q.codes,
                           .k_fp4 = k.codes,
                           .q_scale = q.scales,
                           .k_scale = k.scales,
                           .q_global_scale = {q.inverse_global},
                           .k_global_scale = {k.inverse_global},
                           .cu_seqlens_q = data.cu_q,
                           .cu_seqlens_k = data.cu_k,
                           .causal = false,
                           .max_seqlen_q = questions,
                           .max_k_tiles = blocks,
                           .output = r.nvfp4.view};
  r.plan = explain(score);
  Workspace for_score(msa_proxy_score_fp4_workspace(score));
  r.score_ms = time_of([&] { msa_proxy_score_fp4(score, for_score.options()); });

  const SelectArgs select{.max_score = r.nvfp4.view, .topk = kTopk, .output = ids_view(r.chosen)};
  r.select_ms = time_of([&] { msa_topk_select(select); });

  const IndexArgs index{.score = score, .topk = kTopk, .output = ids_view(r.fused)};
  Workspace for_index(msa_index_select_fp4_workspace(index));
  r.index_ms = time_of([&] { msa_index_select_fp4(index, for_index.options()); });

  // What it is compared with.
  const ScoreArgs exact{.q = data.q,
                        .k = data.k,
                        .cu_seqlens_q = data.cu_q,
                        .cu_seqlens_k = data.cu_k,
                        .causal = false,
                        .max_seqlen_q = questions,
                        .max_k_tiles = blocks,
                        .output = r.exact.view};
  Workspace for_exact(msa_proxy_score_workspace(exact));
  r.float_ms = time_of([&] { msa_proxy_score(exact, for_exact.options()); });
  msa_topk_select({.max_score = r.exact.view, .topk = kTopk, .output = ids_view(r.in_float)});
  r.at_random = demo::random_choice(data.questions.size(), data.blocks.size());
  return r;
}

struct Tally {
  int nvfp4_hits = 0, float_hits = 0, random_hits = 0, nvfp4_best = 0, float_best = 0;
  int shared = 0, all_shared = 0;
  double expected_random_hits = 0;
  std::vector<bool> found;
  std::vector<std::string> contradictions;
};

void show_question(const Data& data, const Result& r, std::size_t i, Tally& tally) {
  const demo::Question& question = data.questions[i];
  const std::size_t blocks = data.blocks.size();
  const float* exact = &r.exact.values[i * blocks];
  const std::int32_t *row = &r.chosen[i * kTopk], *float_row = &r.in_float[i * kTopk];
  const auto order = demo::ranking(&r.nvfp4.values[i * blocks], blocks);
  const int rank = demo::rank_of(question, order);
  const int float_rank = demo::rank_of(question, demo::ranking(exact, blocks));
  const bool hit = demo::finds(question, row), float_hit = demo::finds(question, float_row),
             random_hit = demo::finds(question, &r.at_random[i * kTopk]);
  const int shared = static_cast<int>(
      std::count_if(row, row + kTopk, [&](int n) { return demo::holds(float_row, n); }));

  tally.nvfp4_hits += hit, tally.float_hits += float_hit, tally.random_hits += random_hit;
  tally.nvfp4_best += rank == 1, tally.float_best += float_rank == 1;
  tally.shared += shared, tally.all_shared += shared == kTopk;
  tally.expected_random_hits += demo::random_chance(question, blocks);
  tally.found.push_back(hit);
  const std::string name = "question " + std::to_string(i + 1);
  if (hit != (rank <= kTopk) || float_hit != (float_rank <= kTopk))
    tally.contradictions.push_back(name + ": the selection is not the best 16");

  std::printf("%2zu  %s\n", i + 1, demo::bold(demo::wrapped(question.text, 96, 4)).c_str());
  std::printf(
      "    %-16s NVFP4 %s rank %-3d  float %s rank %-3d  random %s   %2d of 16 as in float\n",
      question.passage.c_str(), demo::yes_no(hit).c_str(), rank, demo::yes_no(float_hit).c_str(),
      float_rank, demo::yes_no(random_hit).c_str(), shared);
  for (std::size_t place = 0; place < 2; ++place) {
    const int n = order[place];
    const demo::Block& block = data.blocks[static_cast<std::size_t>(n)];
    const demo::BestKey best = demo::best_key(data, i, n);
    if (std::fabs(best.product - exact[n]) > 1e-6)
      tally.contradictions.push_back(name + ": float score differs from a plain loop in double");
    const bool answer = std::count(question.blocks.begin(), question.blocks.end(), n) > 0;
    std::printf("  %c %-22s %s\n", answer ? '*' : ' ', demo::range_of(block).c_str(),
                demo::excerpt(block, best.share, 72).c_str());
  }
}

void show_summary(const Data& data, const Result& r, const Tally& t) {
  const int n = static_cast<int>(data.questions.size());
  std::printf("\n%s\n", demo::bold("Summary").c_str());
  std::printf("  %-37s%-14s%-14s%s\n", "", "NVFP4", "float", "random");
  std::printf("  %-37s%2d of %-8d%2d of %-8d%2d of %d (%.1f expected)\n",
              "answer's block among the 16", t.nvfp4_hits, n, t.float_hits, n, t.random_hits, n,
              t.expected_random_hits);
  std::printf("  %-37s%2d of %-8d%2d of %d\n", "answer's block is the best of all", t.nvfp4_best, n,
              t.float_best, n);
  std::printf("  %-37s%.2f of 16 on average (%.1f %%); all 16 for %d of %d questions\n",
              "blocks that NVFP4 and float share", static_cast<double>(t.shared) / n,
              100.0 * t.shared / (n * double{kTopk}), t.all_shared, n);
  std::printf("  %-37s%.2f MB; %.2f MB in fp16\n", "keys in memory, NVFP4",
              static_cast<double>(r.key_bytes) / 1e6,
              static_cast<double>(data.k.count()) * 2 / 1e6);

  const double keys = static_cast<double>(data.k.size(0)), products = keys * n;
  const auto line = [](const char* what, double ms, double count, const char* unit) {
    std::printf("  %-28s%9.3f ms%10.2f million %s a second\n", what, ms, count / ms / 1e3, unit);
  };
  std::printf("\n%s\n", demo::bold("Time").c_str());
  line("quantise the keys", r.quantize_keys_ms, keys, "keys");
  line("quantise the queries", r.quantize_queries_ms, n, "queries");
  line("score every block", r.score_ms, products, "(query, key) pairs");
  line("select 16", r.select_ms, static_cast<double>(r.nvfp4.values.size()), "scores");
  line("score and select in one", r.index_ms, products, "(query, key) pairs");
  line("score in float, to compare", r.float_ms, products, "(query, key) pairs");
  std::printf("  The fastest of several calls each, by this back end and plan:\n  %s\n",
              r.plan.c_str());
}

int run(const std::string& folder) {
  const Data data(folder);
  const Result r = do_the_job(data);

  std::printf("%s\n\n", demo::bold("Which 16 blocks of a long text are worth reading?").c_str());
  std::printf(
      "  text      Ruth, Esther, Daniel, Jonah (King James Version): %lld tokens, %zu blocks\n",
      static_cast<long long>(data.k.size(0)), data.blocks.size());
  std::printf(
      "  keys      token embeddings of all-MiniLM-L6-v2, 128 elements; not keys of MiniMax-M3\n");
  std::printf("  queries   %zu questions whose answers are known\n\n", data.questions.size());
  std::printf(
      "Under each question: where its answer is and whether a block of it is among the 16;\n");
  std::printf("the two best blocks in NVFP4, round their best key. * holds the answer.\n\n");

  Tally tally;
  if (r.fused != r.chosen)
    tally.contradictions.push_back("msa_index_select_fp4 disagrees with score and select");
  for (std::size_t i = 0; i < data.questions.size(); ++i) show_question(data, r, i, tally);

  std::printf("\n%s\n", demo::bold("Scores of all blocks in NVFP4").c_str());
  std::printf(
      "Each row from its median block (empty) to its best. A: the answer, chosen; a: missed.\n");
  demo::heat_map(data, r.nvfp4.values, tally.found);
  show_summary(data, r, tally);

  for (const std::string& line : tally.contradictions)
    std::printf("CONTRADICTION: %s\n", line.c_str());
  if (tally.contradictions.empty())
    std::printf(
        "\nChecked: score and select in one call chose the same blocks as one after the other.\n");
  return tally.contradictions.empty() ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(argc > 1 ? argv[1] : KVSCOUT_DEMO_DATA);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "kvscout_demo: %s\n", error.what());
    return 2;
  }
}
