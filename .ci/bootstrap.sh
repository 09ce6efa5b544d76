#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Prepares a machine with apt to build and test agspeed. It installs missing system packages, a CPython and the virtual
# environment with pinned packages, and configures the build. It changes nothing that is already there. A run with
# nothing to do takes about a second. `make setup` calls it. A list of packages as argument replaces the usual one.
#
# If CI=true, a new build treats compiler warnings as errors.
#
# The environment is .venv with the newest torch of .ci/torch-versions.txt, and the build is build/dev. With TORCH=2.11
# the environment is .venv-torch2.11 with torch 2.11, and the build is build/torch2.11, beside the first ones.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

PACKAGES=${1:-.ci/apt-packages.txt}
REQUIREMENTS=.ci/requirements.txt
VERSIONS=.ci/torch-versions.txt
TORCH=${TORCH:-}
[[ "$TORCH" != "$(tail -n 1 "$VERSIONS" | cut -d' ' -f1)" ]] || TORCH=  # the newest
VENV=.venv${TORCH:+-torch$TORCH}
BUILD=build/${TORCH:+torch$TORCH}
[[ -n "$TORCH" ]] || BUILD=build/dev

say() { echo "agspeed setup: $*"; }
fail() { say "$*" >&2; exit 1; }

# Prints the first interpreter that runs, has its headers and can make a virtual environment. A name on PATH may be a
# shim that fails when it is called, so each candidate is tried.
find_python() {
  local version candidate
  for version in 3.12 3.13 3.11; do
    for candidate in "python$version" "${PYENV_ROOT:-$HOME/.pyenv}"/versions/"$version"*/bin/"python$version" \
                     /usr/local/bin/"python$version" /usr/bin/"python$version"; do
      if "$candidate" - "$version" >/dev/null 2>&1 <<'PROBE'
import ensurepip, os, ssl, sys, sysconfig
assert "%d.%d" % sys.version_info[:2] == sys.argv[1] and sys.implementation.name == "cpython"
assert os.path.exists(os.path.join(sysconfig.get_path("include"), "Python.h"))
PROBE
      then
        command -v "$candidate"
        return 0
      fi
    done
  done
  return 1
}

missing_packages() {
  local name flag
  while read -r name flag; do
    [[ -z "$name" || "$name" == \#* ]] && continue
    [[ "$(dpkg-query -W -f='${db:Status-Status}' "$name" 2>/dev/null || true)" == installed ]] && continue
    if [[ "$flag" == optional ]]; then
      # The name is recorded, so that a system without the package does not look for it in every run.
      grep -qsx "$name" "$BUILD/.optional-packages" && continue
      mkdir -p "$BUILD" && echo "$name" >>"$BUILD/.optional-packages"
    fi
    echo "$name $flag"
  done <"$PACKAGES"
}

install_packages() {
  local wanted=("$@") sudo=() required optional=() name
  if ((EUID != 0)); then
    if command -v sudo >/dev/null && { sudo -n true 2>/dev/null || [[ -t 0 ]]; }; then
      sudo=(sudo)
    else
      sudo=(false)
    fi
  fi
  required=()
  while read -r name flag; do
    [[ -z "$name" ]] && continue
    if [[ "$flag" == optional ]]; then optional+=("$name"); else required+=("$name"); fi
  done < <(printf '%s\n' "${wanted[@]}")
  if [[ "${sudo[*]}" == false ]]; then
    ((${#required[@]} == 0)) && { say "skipping optional packages (neither root nor sudo): ${optional[*]}"; return; }
    fail "these system packages are missing and this user is neither root nor able to use sudo," \
         "so please have them installed and run again: ${required[*]}"
  fi
  command -v apt-get >/dev/null || fail "this system has no apt-get; install the equivalents of: ${required[*]} ${optional[*]}"
  say "installing system packages:" "${required[@]}" "${optional[@]}"
  export DEBIAN_FRONTEND=noninteractive
  "${sudo[@]}" apt-get update -qq
  local unknown=()
  for name in "${required[@]}"; do
    [[ "$(apt-cache policy "$name")" == *"Candidate: "[!\(]* ]] || unknown+=("$name")
  done
  ((${#unknown[@]} == 0)) || fail "apt offers no package named ${unknown[*]}; agspeed needs a release with MLIR 22 packages," \
                                  "such as Debian 12 with its security repository"
  if ((${#required[@]})); then "${sudo[@]}" apt-get install -y -qq --no-install-recommends "${required[@]}"; fi
  for name in "${optional[@]}"; do
    "${sudo[@]}" apt-get install -y -qq --no-install-recommends "$name" || say "optional package $name is not available; going on without"
  done
}

system_packages() {
  local missing=()
  mapfile -t missing < <(missing_packages)
  # A virtual environment that works already needs no interpreter from the system.
  if ! "$VENV/bin/python" -c '' 2>/dev/null && ! find_python >/dev/null; then
    missing+=(python3 python3-dev python3-venv)
  fi
  ((${#missing[@]} == 0)) || install_packages "${missing[@]}"
}

virtual_environment() {
  "$VENV/bin/python" -c 'import sys, pip; assert (3, 11) <= sys.version_info < (3, 14)' 2>/dev/null && return
  local python
  python="$(find_python)" || fail "no working CPython 3.12, 3.13 or 3.11 with headers and venv was found;" \
                                  "install python3.12 with its -dev and -venv packages, or put one on PATH"
  say "creating $VENV with $("$python" --version)"
  "$python" -m venv "$VENV" || fail "$python cannot create a virtual environment; install its venv package (python3-venv)"
}

# Prints the pinned packages of the environment, with the row of $VERSIONS for TORCH, or the last one.
requirements() {
  local row torch torchvision
  row="$(if [[ -n "$TORCH" ]]; then grep "^${TORCH//./\\.} " "$VERSIONS" || true; else tail -n 1 "$VERSIONS"; fi)"
  [[ -n "$row" ]] || fail "TORCH=$TORCH is no release of torch that agspeed is built for; $VERSIONS has" \
                          "$(grep -v '^#' "$VERSIONS" | cut -d' ' -f1 | paste -sd' ')"
  read -r _ torch torchvision <<<"$row"
  cat "$REQUIREMENTS"
  printf 'torch==%s\ntorchvision==%s\n' "$torch" "$torchvision"
}

python_packages() {
  local stamp="$VENV/.agspeed-requirements"
  [[ -f "$stamp" && "$WANTED" == "$(<"$stamp")" ]] && return
  say "installing the Python packages of $REQUIREMENTS into $VENV, with $(tail -n 2 <<<"$WANTED" | paste -sd' ');" \
      "this takes some minutes and 6 GB of disk"
  install_with_uv || pip_install -r <(echo "$WANTED")
  echo "$WANTED" >"$stamp"
}

pip_install() { "$VENV/bin/python" -m pip install --quiet --disable-pip-version-check "$@"; }

# uv unpacks on all cores, and pip on one. uv does not read pip's settings, so pip is used if an index is set for it. uv
# compiles bytecode here, because no process would if PYTHONDONTWRITEBYTECODE is set.
install_with_uv() {
  ! "$VENV/bin/python" -m pip config list | grep -q index || return 1
  pip_install "$(grep '^uv==' <<<"$WANTED")" || return 1
  "$VENV/bin/uv" pip install --quiet --system-certs --compile-bytecode --python "$VENV/bin/python" -r - <<<"$WANTED" && return
  say "uv could not install them; trying pip"
  return 1
}

configure() {
  [[ -f "$BUILD/build.ninja" ]] && return
  local werror=OFF
  [[ "${CI:-}" != true ]] || werror=ON
  say "configuring $BUILD; its output goes to $BUILD/configure.log"
  mkdir -p "$BUILD"
  cmake --preset dev -B "$BUILD" -DPython_EXECUTABLE="$PWD/$VENV/bin/python" -DAG_WERROR="$werror" \
    >"$BUILD/configure.log" 2>&1 && return
  tail -n 40 "$BUILD/configure.log" >&2
  fail "CMake could not configure $BUILD; the lines above are the end of $BUILD/configure.log"
}

python_environment() {
  virtual_environment
  python_packages
}

# apt and the Python packages take equally long, so both are installed at the same time if an interpreter is there.
# The Python packages get a process group of their own, which ends if apt fails or a user presses Ctrl-C.
all_packages() {
  local environment
  if ! find_python >/dev/null; then
    system_packages
    python_environment
    return
  fi
  set -m
  python_environment &
  environment=$!
  set +m
  trap "kill -- -$environment 2>/dev/null || true" EXIT
  system_packages
  wait "$environment"
  trap - EXIT
}

WANTED="$(requirements)"
all_packages
configure
