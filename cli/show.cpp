// kvscout show: a heat map of scores, blocks by queries, in the terminal and as SVG.
#include <sys/ioctl.h>
#include <unistd.h>

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>

#include "file_writer.h"
#include "heat_map.h"
#include "json.h"
#include "text.h"
#include "verbs.h"

namespace kvscout::tool {
namespace {

struct ShowOptions {
  std::vector<std::string> files, use;
  std::string svg, backend, color = "auto";
  std::int64_t head = -1, width = 0, height = 0;
  int threads = 0;
  bool json = false;
};

// Scores of the file, or of the problem in the file.
Tensor scores_of(Inputs& in, const ShowOptions& o, std::vector<float>& computed) {
  if (in.has("max_score")) {
    Tensor t = in.tensor("max_score");
    if (t.dtype != DType::f32 || t.rank != 3)
      throw Failure(kBadInput, "max_score: expected f32 (heads, blocks, queries)");
    return t;
  }
  ScoreFp4Args a = read_score_problem(in);
  const std::int64_t heads = heads_of_result(a);
  computed.resize(static_cast<std::size_t>(heads * a.max_k_tiles * a.q_fp4.shape[0]));
  a.output = Tensor(computed.data(), DType::f32, {heads, a.max_k_tiles, a.q_fp4.shape[0]});
  Options options;
  options.backend = o.backend.empty() ? nullptr : o.backend.c_str();
  options.threads = o.threads;
  run_operation(a, options);
  return a.output;
}

HeatMap map_of(const Tensor& scores, std::int64_t head, const Tensor& ids) {
  const std::int64_t heads = scores.shape[0], blocks = scores.shape[1], queries = scores.shape[2];
  HeatMap map{queries, blocks, {}, {}};
  map.values.assign(static_cast<std::size_t>(queries * blocks),
                    -std::numeric_limits<float>::infinity());
  const auto* from = static_cast<const float*>(scores.data);
  for (std::int64_t h = head < 0 ? 0 : head; h < (head < 0 ? heads : head + 1); ++h)
    for (std::int64_t b = 0; b < blocks; ++b)
      for (std::int64_t q = 0; q < queries; ++q) {
        float& to = map.values[static_cast<std::size_t>(q * blocks + b)];
        to = std::fmax(to, from[(h * blocks + b) * queries + q]);
      }
  if (!ids.defined) return map;
  if (ids.dtype != DType::i32 || ids.rank != 3 || ids.shape[0] != queries || ids.shape[1] != heads)
    throw Failure(kBadInput, formatted("ids: got {}, expected i32 ({}, {}, topk)", shape_text(ids),
                                       queries, heads));
  map.marked.assign(map.values.size(), false);
  const auto* id = static_cast<const std::int32_t*>(ids.data);
  for (std::int64_t i = 0; i < ids.count(); ++i) {
    const std::int64_t q = i / ids.shape[2] / heads, h = i / ids.shape[2] % heads;
    if ((head < 0 || h == head) && id[i] >= 0 && id[i] < blocks)
      map.marked[static_cast<std::size_t>(q * blocks + id[i])] = true;
  }
  return map;
}

int run_show(const ShowOptions& o) {
  Inputs in(o.files, o.use, {});
  std::vector<float> computed;
  const Tensor scores = scores_of(in, o, computed);
  const std::int64_t heads = scores.shape[0];
  if (o.head >= heads)
    throw Failure(kUsage, formatted("--head: got {}, the scores have {} heads", o.head, heads));
  const HeatMap map = map_of(scores, o.head, in.int32("ids"));
  const std::string title = formatted("{} blocks by {} queries, {}", map.columns, map.rows,
                                      heads == 1   ? "one head"
                                      : o.head < 0 ? formatted("maximum over {} heads", heads)
                                                   : formatted("head {} of {}", o.head, heads));
  if (!o.svg.empty()) {
    const std::string text = svg_text(map.reduced(256, 256), title, 8);
    const Chunk chunk{text.data(), text.size()};
    if (!write_file(o.svg, {&chunk, 1}))
      throw Failure(kSystem, formatted("cannot write '{}': {}", o.svg, std::strerror(errno)));
  }
  const auto [low, high] = map.range();
  if (o.json) {
    Json::Object report{{"heads", heads},
                        {"blocks", map.columns},
                        {"queries", map.rows},
                        {"least", low},
                        {"greatest", high}};
    if (!o.svg.empty()) report.emplace_back("svg", o.svg);
    print("{}\n", Json(report).text());
    return kOk;
  }
  winsize window{};
  const bool terminal =
      ::isatty(STDOUT_FILENO) && ::ioctl(STDOUT_FILENO, TIOCGWINSZ, &window) == 0 && window.ws_col;
  const bool color =
      o.color == "always" || (o.color == "auto" && terminal && !std::getenv("NO_COLOR"));
  const std::int64_t width = o.width ? o.width : terminal ? window.ws_col : 100;
  const HeatMap small = map.reduced(o.height ? o.height : 40, width);
  print("{}; scores {:.4g} to {:.4g}; down: queries, across: blocks{}\n{}", title, low, high,
        map.marked.empty() ? "" : ", \u2022 chosen", terminal_text(small, color));
  return kOk;
}

}  // namespace

void add_show(CommandLine& line) {
  Verb verb =
      line.verb("show", "a heat map of scores: blocks by queries",
                "Arguments: max_score, or a problem as for score [, ids: chosen blocks to mark].\n"
                "Example: kvscout show scores.safetensors ids.safetensors --svg map.svg");
  auto o = std::make_shared<ShowOptions>();
  verb.files(o->files, ".safetensors files with scores or a problem");
  verb.text("--svg", "FILE", o->svg, "also draw to this SVG file");
  verb.count("--head", o->head, 0, 1 << 20, "one head (default: the maximum over heads)");
  verb.count("--width", o->width, 1, 10000, "columns (default: the terminal's, or 100)");
  verb.count("--height", o->height, 1, 10000, "rows at most (default: 40)");
  verb.choice("--color", {"auto", "always", "never"}, o->color,
              "colours in the terminal (default: auto)");
  verb.use(o->use);
  verb.backend(o->backend);
  verb.threads(o->threads);
  verb.json(o->json);
  verb.run([o] { return run_show(*o); });
}

}  // namespace kvscout::tool
