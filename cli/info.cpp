// kvscout info: what was built, what runs here, and what a call would do.

#include <thread>

#include "json.h"
#include "shape.h"
#include "text.h"
#include "verbs.h"

namespace kvscout::tool {
namespace {

struct InfoOptions {
  std::vector<std::string> files, use;
  Shape shape;
  std::string backend;
  bool plan = false, json = false;
  int threads = 0;
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
  return explain(ShapedProblem(o.shape).args, options);
}

int run_info(const InfoOptions& o) {
  const std::string plan = o.plan ? plan_of(o) : "";
  if (o.json) {
    Json::Array all;
    for (const BackendInfo& b : backends())
      all.push_back(Json::Object{{"name", b.name},
                                 {"built_for", b.built_for},
                                 {"available", b.available},
                                 {"status", b.status}});
    Json report;
    report.set("version", version());
    report.set("threads", std::thread::hardware_concurrency());
    report.set("backends", std::move(all));
    if (o.plan) report.set("plan", plan);
    print("{}\n", report.text(2));
    return kOk;
  }
  print("kvscout {}, {} hardware threads\n", version(), std::thread::hardware_concurrency());
  for (const BackendInfo& b : backends())
    print("{} {:<12} {:<36} {}\n", b.available ? "*" : "-", b.name, b.built_for, b.status);
  print(
      "* runs here; a call takes the first that fits, or the one that --backend or KVSCOUT_BACKEND "
      "names\n");
  if (o.plan) print("plan: {}\n", plan);
  return kOk;
}

}  // namespace

void add_info(CommandLine& line) {
  Verb verb = line.verb(
      "info", "back ends, devices, what was built; the plan of a call",
      "Example: kvscout info --plan --queries 4 --keys 1000000 --q-heads 8 --k-heads 1 --batch 2");
  auto o = std::make_shared<InfoOptions>();
  verb.files(o->files, "the problem to plan (default: the shape given by the options)", false);
  verb.use(o->use);
  verb.flag("--plan", o->plan, "what msa_proxy_score_fp4 would do");
  o->shape.add_to(verb);
  verb.backend(o->backend, "plan for this back end");
  verb.threads(o->threads);
  verb.json(o->json);
  verb.run([o] { return run_info(*o); });
}

}  // namespace kvscout::tool
