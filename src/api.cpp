// "What was asked": every public call, as validate -> choose back end -> check -> run.

#include <cstdlib>

#include "ieee_floats.h"
#include "kvscout/kvscout.h"
#include "message.h"
#include "registry.h"
#include "validate.h"

namespace kvscout {
namespace {

Launch launch_of(const Options& o, Device device) {
  return {device, o.stream, o.workspace, o.workspace_bytes, o.threads};
}

bool checked(const Options& o) {
  if (o.check) return true;
  const char* text = std::getenv("KVSCOUT_CHECK");
  return text && *text && !(text[0] == '0' && text[1] == 0);
}

void require_workspace(const char* operation, std::size_t needed, const Options& o) {
  if (needed == 0) return;
  if (!o.workspace || o.workspace_bytes < needed)
    throw Error(Error::invalid_argument,
                message("{}: workspace: got {} bytes, expected at least {}", operation,
                        o.workspace ? o.workspace_bytes : 0, needed));
  if (reinterpret_cast<std::uintptr_t>(o.workspace) % 256 != 0)
    throw Error(Error::invalid_argument,
                message("{}: workspace: got address {}, expected a multiple of 256", operation,
                        o.workspace));
}

bool offers_quantize(const Backend& b) { return b.quantize != nullptr; }
bool offers_score(const Backend& b) { return b.score != nullptr; }
bool offers_select(const Backend& b) { return b.select != nullptr; }
bool offers_index(const Backend& b) { return b.index != nullptr; }
bool offers_append(const Backend& b) { return b.append != nullptr; }

std::size_t score_workspace(const Backend& b, const ScoreProblem& p, const Launch& l) {
  return b.score_workspace ? b.score_workspace(p, l) : 0;
}
std::size_t index_workspace(const Backend& b, const IndexProblem& p, const Launch& l) {
  return b.index_workspace ? b.index_workspace(p, l) : 0;
}

template <class Args>
void score(const Args& args, const Options& options) {
  const IeeeFloats ieee;
  ScoreProblem p;
  const Accepted a = validate(args, p);
  const Backend& b = choose_backend(a.operation, a.device, options.backend, offers_score);
  const Launch launch = launch_of(options, a.device);
  require_workspace(a.operation, score_workspace(b, p, launch), options);
  if (checked(options)) check_values(a.operation, p, b, launch);
  b.score(p, launch);
}

template <class Args>
std::size_t score_workspace(const Args& args, const Options& options) {
  ScoreProblem p;
  const Accepted a = validate_inputs(args, p);
  const Backend& b = choose_backend(a.operation, a.device, options.backend, offers_score);
  return score_workspace(b, p, launch_of(options, a.device));
}

}  // namespace

void nvfp4_quantize(const QuantizeArgs& args, const Options& options) {
  const IeeeFloats ieee;
  QuantizeProblem p;
  const Accepted a = validate(args, p);
  const Backend& b = choose_backend(a.operation, a.device, options.backend, offers_quantize);
  b.quantize(p, launch_of(options, a.device));
}

void msa_proxy_score_fp4(const ScoreFp4Args& args, const Options& options) { score(args, options); }
void msa_proxy_score(const ScoreArgs& args, const Options& options) { score(args, options); }

std::size_t msa_proxy_score_fp4_workspace(const ScoreFp4Args& args, const Options& options) {
  return score_workspace(args, options);
}
std::size_t msa_proxy_score_workspace(const ScoreArgs& args, const Options& options) {
  return score_workspace(args, options);
}

void msa_topk_select(const SelectArgs& args, const Options& options) {
  const IeeeFloats ieee;
  SelectProblem p;
  const Accepted a = validate(args, p);
  const Backend& b = choose_backend(a.operation, a.device, options.backend, offers_select);
  b.select(p, launch_of(options, a.device));
}

void msa_index_select_fp4(const IndexArgs& args, const Options& options) {
  const IeeeFloats ieee;
  IndexProblem p;
  const Accepted a = validate(args, p);
  const Backend& b = choose_backend(a.operation, a.device, options.backend, offers_index);
  const Launch launch = launch_of(options, a.device);
  require_workspace(a.operation, index_workspace(b, p, launch), options);
  if (checked(options)) check_values(a.operation, p.score, b, launch);
  b.index(p, launch);
}

std::size_t msa_index_select_fp4_workspace(const IndexArgs& args, const Options& options) {
  IndexProblem p;
  const Accepted a = validate_inputs(args, p);
  const Backend& b = choose_backend(a.operation, a.device, options.backend, offers_index);
  return index_workspace(b, p, launch_of(options, a.device));
}

void msa_index_append_fp4(const AppendArgs& args, const Options& options) {
  const IeeeFloats ieee;
  AppendProblem p;
  const Accepted a = validate(args, p);
  const Backend& b = choose_backend(a.operation, a.device, options.backend, offers_append);
  const Launch launch = launch_of(options, a.device);
  if (checked(options)) check_values(a.operation, p, b, launch);
  b.append(p, launch);
}

std::vector<BackendInfo> backends() {
  std::vector<BackendInfo> list;
  for (const Backend* b : all_backends()) {
    BackendInfo info{b->name, b->built_for, false, ""};
    info.device = b->device;
    std::string why;
    info.available = b->runs_on(0, &why);
    info.status = info.available ? b->describe(0) : why;
    if (!b->run_by_authors) info.status += "; compiled, not run by the authors";
    list.push_back(std::move(info));
  }
  return list;
}

const char* version() { return KVSCOUT_VERSION; }

std::string explain(const ScoreFp4Args& args, const Options& options) {
  ScoreProblem p;
  const Accepted a = validate_inputs(args, p);
  const Backend& b = choose_backend(a.operation, a.device, options.backend, offers_score);
  const Launch launch = launch_of(options, a.device);
  return message("{}: {}; workspace {} bytes", b.name, b.explain ? b.explain(p, launch) : "no plan",
                 score_workspace(b, p, launch));
}

}  // namespace kvscout
