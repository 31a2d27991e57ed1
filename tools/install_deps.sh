#!/usr/bin/env bash
# Installs what building and testing assay needs, from the packages of Debian 12 or Ubuntu 24.04. Says what it installs,
# uses sudo when not root, does nothing when all is there. With "fuzz" or "tidy": also what
# `make fuzz` or `make tidy` needs.
set -euo pipefail

packages=(
  g++ cmake ninja-build pkg-config make git
  libfmt-dev libspdlog-dev nlohmann-json3-dev libcli11-dev
  libpcre2-dev libutf8proc-dev
  prometheus-cpp-dev
  libgtest-dev libgmock-dev
  clang-format-14
  python3 python3-venv
)
if [ "${1:-}" = fuzz ]; then packages+=(clang-14 libclang-rt-14-dev); fi
if [ "${1:-}" = tidy ]; then packages+=(clang-tidy-14); fi
# Beast and Asio, headers only. Debian 12 has 1.81 (its default, 1.74, is too old), Ubuntu 24.04 has 1.83.
boost_choices=(libboost1.83-dev libboost1.81-dev)

installed() { [ "$(dpkg-query -W -f '${db:Status-Status}' "$1" 2>/dev/null)" = installed ]; }
available() { [ -n "$(apt-cache madison "$1" 2>/dev/null)" ]; }

if ! command -v dpkg-query >/dev/null || ! command -v apt-get >/dev/null; then
  echo "deps: this is not Debian or Ubuntu. Install by hand: ${packages[*]}, Boost 1.81 or newer" >&2
  exit 1
fi

missing=()
for package in "${packages[@]}"; do
  installed "$package" || missing+=("$package")
done

boost_installed=no
for package in "${boost_choices[@]}"; do
  if installed "$package"; then boost_installed=yes; fi
done

if [ "${#missing[@]}" -eq 0 ] && [ "$boost_installed" = yes ]; then
  echo "deps: all there"
  exit 0
fi

root=()
if [ "$(id -u)" -ne 0 ]; then
  command -v sudo >/dev/null || { echo "deps: need root or sudo to install: ${missing[*]}" >&2; exit 1; }
  root=(sudo)
fi
run_apt() { "${root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get "$@" </dev/null; }

echo "deps: updating the package lists"
run_apt update -qq

if [ "$boost_installed" = no ]; then
  for package in "${boost_choices[@]}"; do
    if available "$package"; then missing+=("$package"); boost_installed=chosen; break; fi
  done
  [ "$boost_installed" = chosen ] || { echo "deps: none of ${boost_choices[*]} is available" >&2; exit 1; }
fi

echo "deps: installing ${missing[*]}"
run_apt install -y -qq --no-install-recommends "${missing[@]}"
echo "deps: done"
