#!/usr/bin/env bash
# Planted faults: each line of mutations.list is compiled from a changed copy of one file and linked with the
# finished objects of a build in place of the original; the tests it names must fail. A fault that survives, a
# change that does not apply, or a filter that fails without any fault, fails this script.
#
#   mutations.sh ROOT BUILD [CXX]
set -euo pipefail
root=$1 build=$2 cxx=${3:-c++}
list=$root/tests/mutations.list
scratch=$build/mutations
jobs=${KVSCOUT_JOBS:-2}
flags=(-std=c++20 -O1 -ffp-contract=off -DFMT_HEADER_ONLY)
[ "$(uname -m)" = x86_64 ] && flags+=(-march=x86-64-v2)
command -v ccache >/dev/null && cxx="ccache $cxx"
libraries=("$build/tests/cases/libkvscout_cases.a" "$build/src/libkvscout.a" -ltbb -lpthread)

# Compiles SOURCE (below the root) with changed headers before the others.
compile() {  # compile TREE SOURCE OBJECT
  local source=$root/$2
  [ -f "$1/$2" ] && source=$1/$2
  $cxx "${flags[@]}" -I "$1/include" -I "$1/src" -I "$root/include" -I "$root/src" -I "$root/tests" -c "$source" -o "$3"
}

one() {  # one LINE
  local name file change binary filter
  IFS='|' read -r name file change binary filter <<<"$1"
  name=$(sed 's/ *$//' <<<"$name") file=$(tr -d ' ' <<<"$file") binary=$(tr -d ' ' <<<"$binary") filter=$(tr -d ' ' <<<"$filter")
  change=$(sed 's/^ *//; s/ *$//' <<<"$change")
  local tree=$scratch/${name// /_}
  rm -rf "$tree" && mkdir -p "$tree/$(dirname "$file")"
  sed -E "$change" "$root/$file" >"$tree/$file"
  if cmp -s "$root/$file" "$tree/$file"; then echo "DOES NOT APPLY  $name"; return 1; fi

  local objects=() source=$file
  case $filter in  # a changed header is compiled into the test that looks at it
    Format* | ScaleLayout* | Order*) source=tests/format_test.cpp ;;
    Span*) source=tests/span_test.cpp ;;
    Sm120Maps*) source=tests/sm120_maps_test.cpp ;;
    Validate*) objects=("$build/tests/CMakeFiles/kvscout_tests.dir/validate_test.cpp.o") ;;
    *) objects=("$build/tests/CMakeFiles/kvscout_conformance.dir/conformance.cpp.o") ;;
  esac
  local main=()
  [ "$binary" = tests ] && main=(-lgtest_main)
  if ! compile "$tree" "$source" "$tree/changed.o" 2>"$tree/log"; then
    echo "DOES NOT BUILD  $name"; cat "$tree/log"; return 1
  fi
  $cxx -o "$tree/run" "$tree/changed.o" "${objects[@]}" "${main[@]}" -lgtest "${libraries[@]}"

  if ! "$build/tests/kvscout_$binary" --gtest_brief=1 --gtest_filter="$filter" >"$tree/without" 2>&1 ||
    grep -q '^\[=*\] 0 tests' "$tree/without"; then
    echo "FAILS WITHOUT   $name: the tests $filter"; return 1
  fi
  if timeout 60 "$tree/run" --gtest_brief=1 --gtest_filter="$filter" >"$tree/with" 2>&1; then
    echo "SURVIVES        $name: $filter"; return 1
  fi
  echo "caught          $name ($(grep -c '^\[  FAILED  \]' "$tree/with" || true) of the tests $filter)"
}

if [ "${4:-}" ]; then one "$4"; exit; fi
mapfile -t lines < <(grep -v '^#' "$list" | grep '|')
failed=0
printf '%s\0' "${lines[@]}" | xargs -0 -n 1 -P "$jobs" bash "$0" "$root" "$build" "${3:-c++}" || failed=1
echo "${#lines[@]} planted faults$([ $failed = 0 ] && echo ', all caught')"
((failed == 0 && ${#lines[@]} >= 10))
