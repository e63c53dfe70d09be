// kvscout select: the blocks with the best scores.
#include <algorithm>

#include "verbs.h"

namespace kvscout::tool {
namespace {

int run_select(const CallOptions& asked) {
  Call call("msa_topk_select", asked);
  Inputs& in = call.in;
  SelectArgs a;
  a.max_score = in.tensor("max_score");
  a.topk = in.small("topk", 16);
  a.force_begin_blocks = in.small("force_begin_blocks", 0);
  a.force_end_blocks = in.small("force_end_blocks", 0);
  a.skip_masked = in.boolean("skip_masked", false);
  if (in.text("num_valid_pages")) {
    a.has_num_valid_pages = true;
    a.num_valid_pages = *in.integer("num_valid_pages");
  } else {
    a.num_valid_pages_tensor = in.int32("num_valid_pages");
  }
  const Tensor& s = a.max_score;
  const bool legal = s.rank == 3;  // otherwise the operation says what is wrong
  a.output = call.result(
      "ids", DType::i32,
      {legal ? s.shape[2] : 0, legal ? s.shape[0] : 0, std::clamp(a.topk, 0, kMaxTopk)});
  call.run(a);
  return call.finish();
}

}  // namespace

void add_select_options(CLI::App& verb, CallOptions& o) {
  o.scalar(verb, "--topk", "topk", "blocks to choose, 1 to 64 (default: 16)");
  o.scalar(verb, "--force-begin", "force_begin_blocks", "the first blocks that are always chosen");
  o.scalar(verb, "--force-end", "force_end_blocks", "the last blocks that are always chosen");
}

void add_select(CLI::App& app, int& exit_code) {
  CLI::App* verb = app.add_subcommand("select", "choose the blocks with the best scores");
  verb->footer(
      "Arguments: max_score [, num_valid_pages]. Result: ids.\n"
      "Example: kvscout select scores.safetensors --topk 16 --skip-masked -o ids.safetensors");
  auto options = std::make_shared<CallOptions>();
  options->add_to(*verb);
  add_select_options(*verb, *options);
  options->scalar(*verb, "--num-valid-pages", "num_valid_pages",
                  "blocks of every query (default: all)");
  verb->add_flag_callback(
      "--skip-masked", [o = options.get()] { o->given["skip_masked"] = "1"; },
      "do not choose blocks of score -inf");
  verb->callback([options, &exit_code] { exit_code = run_select(*options); });
}

}  // namespace kvscout::tool
