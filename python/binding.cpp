// The operations for Python, through tvm-ffi's plain C ABI.
//
// One exported function an operation. Each reads its arguments in order and returns one integer:
//   0   done
//   >0  bits of arguments that Python must convert first (int64 lengths, host lengths beside device
//   data) <0  minus the bytes of workspace that Python must bring
// Nothing is written unless 0 comes back. Two symbols of the runtime are imported, no C++ of it:
// one library serves every Python and every release of the runtime that has these two.
#include <tvm/ffi/c_api.h>
#include <tvm/ffi/extra/c_env_api.h>

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>

#include "arguments.h"
#include "kvscout/kvscout.h"

namespace kvscout::python {
namespace {

// Options::workspace of host calls: the caller is Python, so its binding may allocate.
struct Free {
  void operator()(void* p) const { std::free(p); }
};
using HostMemory = std::unique_ptr<void, Free>;
HostMemory host_memory(std::size_t bytes) {
  constexpr std::size_t kAlign = 256;
  return HostMemory(std::aligned_alloc(kAlign, (bytes + kAlign - 1) / kAlign * kAlign));
}

const char* python_name(Error::Code code) {
  return code == Error::invalid_argument ? "ValueError" : "RuntimeError";
}

// Runs `body`, which returns the status above, and turns exceptions into Python's.
template <class Body>
int guarded(TVMFFIAny* result, Body body) {
  try {
    result->type_index = kTVMFFIInt;
    result->zero_padding = 0;
    result->v_int64 = body();
    return 0;
  } catch (const Error& e) {
    TVMFFIErrorSetRaisedFromCStr(python_name(e.code()), e.what());
  } catch (const std::bad_alloc&) {
    TVMFFIErrorSetRaisedFromCStr("MemoryError", "kvscout: out of host memory");
  } catch (const std::exception& e) {
    TVMFFIErrorSetRaisedFromCStr("RuntimeError", e.what());
  }
  return -1;
}

// The stream: given by Python where the arrays' library has its own idea of a current one; else the
// runtime's, which is torch's current stream.
Options options_on(Device device, Arguments& a) {
  Options o;
  if (!a.is_none()) {
    o.stream = reinterpret_cast<void*>(a.integer("stream"));
  } else {
    a.skip();
    if (device.type == Device::cuda) o.stream = TVMFFIEnvGetStream(kDLCUDA, device.index);
  }
  return o;
}

// Runs with the caller's workspace, or host memory of ours, or tells Python what to bring. On a
// device the call is tried first: most need none, an error is thrown before anything is queued, and
// asking for the size validates everything a second time.
template <class Size, class Run>
std::int64_t with_workspace(const Tensor& given, Device device, Options& o, Size size, Run run) {
  HostMemory own;
  if (given.defined) {
    o.workspace = given.data;
    o.workspace_bytes = static_cast<std::size_t>(given.count() * bytes_of(given.dtype));
  } else if (device.type == Device::cuda) {
    try {
      run();
      return 0;
    } catch (const Error&) {
      const std::size_t needed = size();
      if (needed == 0) throw;
      return -static_cast<std::int64_t>(needed);
    }
  } else if (const std::size_t needed = size(); needed > 0) {
    own = host_memory(needed);
    if (!own) throw std::bad_alloc();
    o.workspace = own.get();
    o.workspace_bytes = needed;
  }
  run();
  return 0;
}

// numpy has no bfloat16 and no e4m3: Python passes their bytes and says what they are.
void read_type(Arguments& a, Tensor& t) {
  const std::int64_t type = a.integer_or("type", -1);
  if (type >= 0 && t.defined) t.dtype = static_cast<DType>(type);
}

// What both scores share, in the order of the argument lists in _call.py. `mode` is causal + 2 *
// reduce.
template <class Args>
void read_requests(Arguments& a, Device device, Args& args) {
  args.cu_seqlens_q = a.lengths("cu_seqlens_q", DType::i32, device);
  args.cu_seqlens_k = a.lengths("cu_seqlens_k", DType::i32, device);
  args.page_table = a.lengths("page_table", DType::i32, device);
  args.seqused_k = a.lengths("seqused_k", DType::i32, device);
  const std::int64_t mode = a.integer("mode");
  args.causal = mode & 1;
  args.reduce_heads = static_cast<Reduce>(mode >> 1);
  args.max_seqlen_q = a.integer_or("max_seqlen_q", 0);
  args.max_k_tiles = a.integer_or("max_k_tiles", 0);
}

// The end of the lists, which most calls leave out.
template <class Args>
Options read_rare(Arguments& a, Args& args, Tensor& q, Tensor& k) {
  if (a.next_is_tensor()) {
    args.q_offsets = a.lengths("q_offset", DType::i32, q.device);
  } else if (!a.is_none()) {
    args.has_q_offset = true;
    args.q_offset = a.integer("q_offset");
  } else {
    a.skip();
  }
  args.kv_block_start = a.integer_or("kv_block_start", 0);
  args.kv_block_step = a.integer_or("kv_block_step", 1);
  read_type(a, q);
  read_type(a, k);
  return options_on(q.device, a);
}
Options read_rare(Arguments& a, ScoreFp4Args& args) {
  return read_rare(a, args, args.q_fp4, args.k_fp4);
}
Options read_rare(Arguments& a, ScoreArgs& args) { return read_rare(a, args, args.q, args.k); }

Device read(Arguments& a, ScoreFp4Args& args) {
  args.q_fp4 = a.tensor("q_fp4");
  args.k_fp4 = a.tensor("k_fp4");
  const Device device = args.q_fp4.device;
  args.q_scale = a.tensor("q_scale", true);
  args.k_scale = a.tensor("k_scale", true);
  args.q_global_scale = a.scale("q_global_scale", device);
  args.k_global_scale = a.scale("k_global_scale", device);
  read_requests(a, device, args);
  return device;
}

Device read(Arguments& a, ScoreArgs& args) {
  args.q = a.tensor("q");
  args.k = a.tensor("k");
  read_requests(a, args.q.device, args);
  return args.q.device;
}

std::size_t workspace_of(const ScoreFp4Args& args, const Options& o) {
  return msa_proxy_score_fp4_workspace(args, o);
}
std::size_t workspace_of(const ScoreArgs& args, const Options& o) {
  return msa_proxy_score_workspace(args, o);
}
void run(const ScoreFp4Args& args, const Options& o) { msa_proxy_score_fp4(args, o); }
void run(const ScoreArgs& args, const Options& o) { msa_proxy_score(args, o); }

template <class Args>
std::int64_t score(const char* operation, const TVMFFIAny* values, std::int32_t count) {
  Arguments a(operation, values, count);
  Args args;
  const Device device = read(a, args);
  args.output = a.tensor("output");
  const Tensor workspace = a.workspace(device);
  Options o = read_rare(a, args);
  if (a.repairs) return static_cast<std::int64_t>(a.repairs);
  return with_workspace(
      workspace, device, o, [&] { return workspace_of(args, o); }, [&] { run(args, o); });
}

// For `bounds`: data count as host data.
void rehome(ScoreFp4Args& args) {
  for (Tensor* t : {&args.q_fp4, &args.k_fp4, &args.q_scale, &args.k_scale}) t->device = {};
}
void rehome(ScoreArgs& args) { args.q.device = args.k.device = {}; }

// (the arguments of the score) and, for output, int64 (2) on the host for max_seqlen_q and
// max_k_tiles. Lengths are read on the host, where Python has copied them; the data are not
// touched, wherever they are.
template <class Args>
std::int64_t bounds(const char* operation, const TVMFFIAny* values, std::int32_t count) {
  Arguments a(operation, values, count);
  Args args;
  read(a, args);
  const Tensor out = a.tensor("bounds");
  a.skip();
  read_rare(a, args);
  rehome(args);
  args.page_table.device = {};
  args.page_table.dtype = DType::i32;  // only its shape counts
  args.q_offsets = {};                 // bounds do not depend on it
  const Bounds b = bounds_of(args);
  static_cast<std::int64_t*>(out.data)[0] = b.max_seqlen_q;
  static_cast<std::int64_t*>(out.data)[1] = b.max_k_tiles;
  return 0;
}

std::int64_t select(const TVMFFIAny* values, std::int32_t count) {
  Arguments a("msa_topk_select", values, count);
  SelectArgs args;
  args.max_score = a.tensor("max_score");
  args.topk = a.small("topk");
  if (a.next_is_tensor()) {
    args.num_valid_pages_tensor = a.lengths("num_valid_pages", DType::i32, args.max_score.device);
  } else if (!a.is_none()) {
    args.has_num_valid_pages = true;
    args.num_valid_pages = a.integer("num_valid_pages");
  } else {
    a.skip();
  }
  args.output = a.tensor("output");
  args.force_begin_blocks = a.small("force_begin_blocks");
  args.force_end_blocks = a.small("force_end_blocks");
  args.skip_masked = a.flag("skip_masked");
  const Options o = options_on(args.max_score.device, a);
  if (a.repairs) return static_cast<std::int64_t>(a.repairs);
  msa_topk_select(args, o);
  return 0;
}

// (the arguments of the score), the rule, output, scores, workspace, the rare end.
struct IndexCall {
  IndexArgs args;
  Tensor workspace;
  Options options;
  explicit IndexCall(Arguments& a) {
    read(a, args.score);
    args.topk = a.small("topk");
    args.force_begin_blocks = a.small("force_begin_blocks");
    args.force_end_blocks = a.small("force_end_blocks");
    args.output = a.tensor("output");
    args.scores = a.tensor("scores");
    workspace = a.workspace(args.score.q_fp4.device);
    options = read_rare(a, args.score);
  }
};

std::int64_t index(const TVMFFIAny* values, std::int32_t count) {
  Arguments a("msa_index_select_fp4", values, count);
  IndexCall call(a);
  if (a.repairs) return static_cast<std::int64_t>(a.repairs);
  return with_workspace(
      call.workspace, call.args.score.q_fp4.device, call.options,
      [&] { return msa_index_select_fp4_workspace(call.args, call.options); },
      [&] { msa_index_select_fp4(call.args, call.options); });
}

// Bytes of workspace that `index` needs: a function of shapes and bounds, never of lengths.
std::int64_t index_workspace(const TVMFFIAny* values, std::int32_t count) {
  Arguments a("msa_index_select_fp4", values, count);
  const IndexCall call(a);
  if (a.repairs) return -static_cast<std::int64_t>(a.repairs);
  return static_cast<std::int64_t>(msa_index_select_fp4_workspace(call.args, call.options));
}

std::int64_t append(const TVMFFIAny* values, std::int32_t count) {
  Arguments a("msa_index_append_fp4", values, count);
  AppendArgs args;
  args.k = a.tensor("k");
  args.k_cache_fp4 = a.tensor("k_cache_fp4");
  args.k_cache_scale = a.tensor("k_cache_scale", true);
  args.slot_mapping = a.lengths("slot_mapping", DType::i64, args.k.device);
  args.global_scale = a.scale("global_scale", args.k.device);
  read_type(a, args.k);
  const Options o = options_on(args.k.device, a);
  if (a.repairs) return static_cast<std::int64_t>(a.repairs);
  msa_index_append_fp4(args, o);
  return 0;
}

std::int64_t quantize(const TVMFFIAny* values, std::int32_t count) {
  Arguments a("nvfp4_quantize", values, count);
  QuantizeArgs args;
  args.a = a.tensor("a", true);
  args.a_global_sf = a.scale("a_global_sf", args.a.device);
  args.layout = static_cast<SfLayout>(a.integer("sfLayout"));
  args.codes = a.tensor("codes", true);
  args.scales = a.tensor("scales", true);
  read_type(a, args.a);
  const Options o = options_on(args.a.device, a);
  nvfp4_quantize(args, o);
  return 0;
}

std::string join_backends() {
  std::string text;
  for (const BackendInfo& b : backends())
    text += b.name + "\t" + b.built_for + "\t" + (b.available ? "1" : "0") + "\t" + b.status + "\n";
  return text;
}

}  // namespace
}  // namespace kvscout::python

#define KVSCOUT_PYTHON_FUNCTION(name, ...)                                                    \
  extern "C" TVM_FFI_DLL_EXPORT int __tvm_ffi_##name(void*, const TVMFFIAny* values,          \
                                                     std::int32_t count, TVMFFIAny* result) { \
    using namespace kvscout::python; /* NOLINT */                                             \
    return guarded(result, [&]() -> std::int64_t { return __VA_ARGS__; });                    \
  }

KVSCOUT_PYTHON_FUNCTION(nvfp4_quantize, quantize(values, count))
KVSCOUT_PYTHON_FUNCTION(msa_proxy_score_fp4,
                        score<kvscout::ScoreFp4Args>("msa_proxy_score_fp4", values, count))
KVSCOUT_PYTHON_FUNCTION(msa_proxy_score,
                        score<kvscout::ScoreArgs>("msa_proxy_score", values, count))
KVSCOUT_PYTHON_FUNCTION(msa_proxy_score_fp4_bounds,
                        bounds<kvscout::ScoreFp4Args>("msa_proxy_score_fp4", values, count))
KVSCOUT_PYTHON_FUNCTION(msa_proxy_score_bounds,
                        bounds<kvscout::ScoreArgs>("msa_proxy_score", values, count))
KVSCOUT_PYTHON_FUNCTION(msa_topk_select, select(values, count))
KVSCOUT_PYTHON_FUNCTION(msa_index_select_fp4, index(values, count))
KVSCOUT_PYTHON_FUNCTION(msa_index_select_fp4_workspace, index_workspace(values, count))
KVSCOUT_PYTHON_FUNCTION(msa_index_append_fp4, append(values, count))

// A text in Python's hands: copied into memory that Python gives. Returns the bytes needed.
KVSCOUT_PYTHON_FUNCTION(backends, [&] {
  Arguments a("backends", values, count);
  const std::string text = join_backends();
  const kvscout::Tensor out = a.tensor("text");
  if (out.defined && out.count() >= static_cast<std::int64_t>(text.size()))
    std::memcpy(out.data, text.data(), text.size());
  return static_cast<std::int64_t>(text.size());
}())
