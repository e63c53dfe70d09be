#include "registry.h"

#include <cstdlib>
#include <cstring>

#include "message.h"

namespace kvscout {

#define KVSCOUT_BACKEND(name) extern const Backend name##_backend;
#include "backends.inc"
#undef KVSCOUT_BACKEND

std::span<const Backend* const> all_backends() {
#define KVSCOUT_BACKEND(name) &name##_backend,
  static constexpr const Backend* list[] = {
#include "backends.inc"
  };
#undef KVSCOUT_BACKEND
  return list;
}

namespace {

const char* words(Device::Type type) { return type == Device::cuda ? "CUDA" : "host"; }

std::string names_built() {
  std::string names;
  for (const Backend* b : all_backends())
    names += message("{}{} ({})", names.empty() ? "" : ", ", b->name, b->built_for);
  return names;
}

}  // namespace

const Backend& choose_backend(const char* operation, Device device, const char* forced,
                              bool (*offers)(const Backend&)) {
  if (!forced || !*forced) forced = std::getenv("KVSCOUT_BACKEND");
  if (forced && !*forced) forced = nullptr;

  std::string reasons;
  bool known = false;
  for (const Backend* b : all_backends()) {
    if (forced && std::strcmp(forced, b->name) != 0) continue;
    known = true;
    if (b->device != device.type) {
      if (forced) reasons = message("{} serves {} memory", b->name, words(b->device));
      continue;
    }
    std::string why;
    if (!offers(*b)) {
      why = message("does not offer {}", operation);
    } else if (b->runs_on(device.index, &why)) {
      return *b;
    }
    reasons += message("{}{} {}", reasons.empty() ? "" : "; ", b->name, why);
  }
  if (forced && !known)
    throw Error(Error::unsupported, message("{}: backend: got '{}', expected one of: {}", operation,
                                            forced, names_built()));
  if (reasons.empty()) reasons = "none was built for this kind of device";
  throw Error(Error::unsupported,
              message("{}: no back end for {} device {}: {}; built: {}", operation,
                      words(device.type), device.index, reasons, names_built()));
}

}  // namespace kvscout
