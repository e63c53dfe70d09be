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
  if (in.is_scalar("num_valid_pages")) {
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

void add_select_options(Verb& verb, CallOptions& o) {
  verb.scalar("--topk", "N", o.given, "topk", "blocks to choose, 1 to 64 (default: 16)");
  verb.scalar("--force-begin", "N", o.given, "force_begin_blocks",
              "the first blocks that are always chosen");
  verb.scalar("--force-end", "N", o.given, "force_end_blocks",
              "the last blocks that are always chosen");
}

void add_select(CommandLine& line) {
  Verb verb = line.verb(
      "select", "choose the blocks with the best scores",
      "Arguments: max_score [, num_valid_pages]. Result: ids.\n"
      "Example: kvscout select scores.safetensors --topk 16 --skip-masked -o ids.safetensors");
  auto o = std::make_shared<CallOptions>();
  o->add_to(verb);
  add_select_options(verb, *o);
  verb.scalar("--num-valid-pages", "N", o->given, "num_valid_pages",
              "blocks of every query (default: all)");
  verb.scalar_flag("--skip-masked", o->given, "skip_masked", "do not choose blocks of score -inf");
  verb.run([o] { return run_select(*o); });
}

}  // namespace kvscout::tool
