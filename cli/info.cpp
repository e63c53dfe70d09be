// kvscout info: what was built, what runs here, and what a call would do.
#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <thread>

#include "verbs.h"

namespace kvscout::tool {
namespace {

struct InfoOptions {
  std::vector<std::string> files, use;
  std::string backend;
  bool plan = false, json = false;
  int threads = 0;
  std::int64_t queries = 1, keys = 131072, q_heads = 4, k_heads = 1, batch = 1;
};

// The plan of a file's problem, or of a paged problem of the given shape (which is never read).
std::string plan_of(const InfoOptions& o) {
  Options options;
  options.backend = o.backend.empty() ? nullptr : o.backend.c_str();
  options.threads = o.threads;
  if (!o.files.empty()) {
    Inputs in(o.files, o.use, {});
    return explain(read_score_problem(in), options);
  }
  const std::int64_t pages = (o.keys + kBlock - 1) / kBlock * o.batch, tokens = o.queries * o.batch;
  const auto zeros = [](std::int64_t bytes) {
    return std::vector<std::uint8_t>(static_cast<std::size_t>(bytes));
  };
  const auto q = zeros(tokens * o.q_heads * 64),
             q_scale = zeros((tokens * o.q_heads + 127) / 128 * 1024);
  const auto k = zeros(pages * o.k_heads * 8192), k_scale = zeros(pages * o.k_heads * 1024);
  std::vector<std::int32_t> cu_q,
      used(static_cast<std::size_t>(o.batch), static_cast<std::int32_t>(o.keys));
  for (std::int64_t b = 0; b <= o.batch; ++b)
    cu_q.push_back(static_cast<std::int32_t>(b * o.queries));
  const std::vector<std::int32_t> table(static_cast<std::size_t>(pages));
  ScoreFp4Args a;
  a.q_fp4 = Tensor(q.data(), DType::u8, {tokens, o.q_heads, 64});
  a.k_fp4 = Tensor(k.data(), DType::u8, {pages, o.k_heads, 128, 64});
  a.q_scale = Tensor(q_scale.data(), DType::u8, {static_cast<std::int64_t>(q_scale.size())});
  a.k_scale = Tensor(k_scale.data(), DType::u8, {static_cast<std::int64_t>(k_scale.size())});
  a.cu_seqlens_q = Tensor(cu_q.data(), DType::i32, {o.batch + 1});
  a.seqused_k = Tensor(used.data(), DType::i32, {o.batch});
  a.page_table = Tensor(table.data(), DType::i32, {o.batch, o.batch ? pages / o.batch : 0});
  a.max_seqlen_q = o.queries;
  a.max_k_tiles = (o.keys + kBlock - 1) / kBlock;
  return explain(a, options);
}

int run_info(const InfoOptions& o) {
  const std::string plan = o.plan ? plan_of(o) : "";
  if (o.json) {
    nlohmann::ordered_json report{{"version", version()},
                                  {"threads", std::thread::hardware_concurrency()},
                                  {"backends", nlohmann::json::array()}};
    for (const BackendInfo& b : backends())
      report["backends"].push_back({{"name", b.name},
                                    {"built_for", b.built_for},
                                    {"available", b.available},
                                    {"status", b.status}});
    if (o.plan) report["plan"] = plan;
    fmt::print("{}\n", report.dump(2));
    return kOk;
  }
  fmt::print("kvscout {}, {} hardware threads\n", version(), std::thread::hardware_concurrency());
  for (const BackendInfo& b : backends())
    fmt::print("{} {:<12} {:<36} {}\n", b.available ? "*" : "-", b.name, b.built_for, b.status);
  fmt::print(
      "* runs here; a call takes the first that fits, or the one that --backend or KVSCOUT_BACKEND "
      "names\n");
  if (o.plan) fmt::print("plan: {}\n", plan);
  return kOk;
}

}  // namespace

void add_info(CLI::App& app, int& exit_code) {
  CLI::App* verb =
      app.add_subcommand("info", "back ends, devices, what was built; the plan of a call");
  verb->footer(
      "Example: kvscout info --plan --queries 4 --keys 1000000 --q-heads 8 --k-heads 1 --batch 2");
  auto o = std::make_shared<InfoOptions>();
  verb->add_option("FILE", o->files,
                   "the problem to plan (default: the shape given by the options)");
  verb->add_option("--use", o->use,
                   "ARGUMENT=NAME: read the argument from the tensor or metadata key NAME")
      ->allow_extra_args(false);
  verb->add_flag("--plan", o->plan, "what msa_proxy_score_fp4 would do");
  const auto count = [&](const char* flag, std::int64_t& value, const char* help) {
    verb->add_option(flag, value, help)
        ->check(CLI::Range(std::int64_t{1}, std::int64_t{1} << 24))
        ->capture_default_str();
  };
  count("--batch", o->batch, "requests");
  count("--queries", o->queries, "queries of a request");
  count("--keys", o->keys, "keys of a request");
  count("--q-heads", o->q_heads, "query heads");
  count("--k-heads", o->k_heads, "key heads");
  verb->add_option("--backend", o->backend, "plan for this back end");
  verb->add_option("--threads", o->threads, "host threads (default: all)")
      ->check(CLI::NonNegativeNumber);
  verb->add_flag("--json", o->json, "report as one JSON object");
  verb->callback([o, &exit_code] { exit_code = run_info(*o); });
}

}  // namespace kvscout::tool
