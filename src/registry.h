// Who answers: the ordered list of back ends that were built, the one that computes a call.
#pragma once

#include <span>

#include "backend.h"

namespace kvscout {

std::span<const Backend* const> all_backends();

// The first back end that runs on `device` and for which `offers` is true; `forced`
// (Options::backend, else KVSCOUT_BACKEND) narrows the list to one. Throws Error(unsupported)
// naming what was found and built.
const Backend& choose_backend(const char* operation, Device device, const char* forced,
                              bool (*offers)(const Backend&));

}  // namespace kvscout
