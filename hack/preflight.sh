#!/usr/bin/env bash
# Checks what a target needs on the machine, in less than a second: root, Go, free disk, kernel, Debian packages.
# As root on a system with apt it installs missing packages, and names them. Otherwise it says in one line what to install.
#
#   hack/preflight.sh [--check] STEP...     steps as in hack/cluster/internal/debian/packages.txt; --check installs nothing
#
# Without root the step "kernel" is left out with a notice, unless REQUIRE_KERNEL is set.
set -euo pipefail

cd "$(dirname "$0")/.."
list=hack/cluster/internal/debian/packages.txt
root=${PREFLIGHT_ROOT:-} # tests look at another tree
cache=${XDG_CACHE_HOME:-${HOME:?}/.cache}/istio-pod-network-controller
problems=()

say() { printf 'preflight: %s\n' "$*" >&2; }
problem() { problems+=("$*"); }
wants() { [[ " ${steps[*]} " == *" $1 "* ]]; }

# existing prints the nearest directory above a path that is there.
existing() {
  local dir=$1
  until [[ -d $dir ]]; do dir=$(dirname "$dir"); done
  echo "$dir"
}

check_root() {
  if [[ $uid == 0 ]]; then return; fi
  if wants up || wants fresh; then
    problem "needs root, because it makes namespaces, mounts and cgroups: sudo env \"PATH=\$PATH\" make ..."
  elif wants kernel && [[ ${REQUIRE_KERNEL:-} ]]; then
    problem "the tests that program network namespaces need root, and REQUIRE_KERNEL (or CI) says that they must run"
  elif wants kernel; then
    say "not root: the tests that program network namespaces are skipped. To run them: sudo env \"PATH=\$PATH\" make test"
    local kept=() step
    for step in "${steps[@]}"; do [[ $step == kernel ]] || kept+=("$step"); done
    steps=("${kept[@]}")
  fi
}

# check_go accepts an older Go that may fetch the one that go.mod asks for.
check_go() {
  local want version toolchain
  want=$(awk '$1 == "go" { split($2, v, "."); print v[1] "." v[2]; exit }' go.mod)
  if ! command -v go >/dev/null; then
    problem "needs Go $want in PATH: https://go.dev/dl (under sudo: sudo env \"PATH=\$PATH\" make ...)"
    return
  fi
  { read -r version; read -r toolchain; read -r gocache; read -r gomodcache; } < <(cd / && go env GOVERSION GOTOOLCHAIN GOCACHE GOMODCACHE)
  go=${version:-go of unknown version}
  local least=$want
  if [[ $toolchain != local* ]]; then least=1.21; fi
  if [[ $(printf '%s\n' "${go#go}" "$least" | sort -V | head -1) != "$least" ]]; then
    problem "needs Go $want, and $(command -v go) is $go: https://go.dev/dl"
  fi
}

# check_disk asks for what a first build takes, or for little when the cluster's programs are there.
check_disk() {
  local need=2 dir free seen=''
  if ! compgen -G "$cache/cluster/*/bin/kube-apiserver" >/dev/null; then need=6; fi
  if wants up && ! compgen -G "$cache/cluster/*/bin/kubelet" >/dev/null; then need=9; fi
  for dir in "$cache" "${gocache:-$cache}" "${gomodcache:-$cache}"; do
    dir=$(existing "$dir")
    free=$(($(df -Pk "$dir" | awk 'END { print $4 }') / 1024 / 1024))
    if [[ " $seen " == *" $dir "* ]]; then continue; fi
    seen+=" $dir"
    disk="$free GB free"
    if ((free < need)); then problem "needs $need GB of free disk under $dir, which has $free GB"; fi
  done
}

# check_kernel checks what the cluster needs and no package provides.
check_kernel() {
  if ! wants up; then return; fi
  [[ -e /proc/sys/net/ipv6 ]] || problem "the kernel has no IPv6: the cluster is dual stack (boot without ipv6.disable=1)"
  grep -q ' - cgroup2\? ' /proc/self/mountinfo || problem "no cgroup file system is mounted below /sys/fs/cgroup"
  if [[ $(stat -f -c %T "$(existing "$cache")") == overlayfs ]]; then
    problem "the cache $cache is on an overlay, as in most containers: name a directory on a disk by XDG_CACHE_HOME"
  fi
  case $cache/ in # checkCache of the kit, before a build of minutes
    /run/* | /var/run/* | /etc/* | /opt/* | /usr/libexec/* | /var/lib/* | /var/log/*)
      problem "the cache $cache is below a directory of which the node has its own: name one elsewhere by XDG_CACHE_HOME" ;;
  esac
}

# any_exists FILE|FILE...: reports whether one of some files exists.
any_exists() {
  local file
  for file in ${1//|/ }; do
    if [[ -e $root$file ]]; then return; fi
  done
  return 1
}

# look_for_packages sets missing and programs to the packages and the files that are not there.
look_for_packages() {
  local package file users why step
  missing=() programs=() looked=0
  while read -r package file users why; do
    if [[ -z $package || $package == \#* ]]; then continue; fi
    for step in ${users//,/ }; do
      if ! wants "$step"; then continue; fi
      looked=$((looked + 1))
      if ! any_exists "$file"; then
        missing+=("$package")
        programs+=("${file##*/} ($why)")
      fi
      break
    done
  done <"$list"
}

# install_packages keeps the packages from starting services, now and at the next boot: haproxy and nginx are only run by tests and copied into images.
install_packages() {
  local policy=$root/usr/sbin/policy-rc.d output
  if [[ ! -e $policy ]]; then
    # shellcheck disable=SC2064 # the name as it is now
    trap "rm -f '$policy'" EXIT
    printf '#!/bin/sh\nexit 101\n' >"$policy"
    chmod +x "$policy"
  fi
  say "installing with apt-get: ${missing[*]}"
  export DEBIAN_FRONTEND=noninteractive
  # A source that does not answer matters only if a package is not found.
  output=$(apt-get update -qq 2>&1) || true
  if ! output+=$'\n'$(apt-get install -y -qq --no-install-recommends -o DPkg::Lock::Timeout=120 "${missing[@]}" 2>&1); then
    printf '%s\n' "$output" >&2
    problem "apt-get could not install: ${missing[*]}"
    return
  fi
  if [[ " ${missing[*]} " == *" haproxy "* ]] && command -v systemctl >/dev/null; then systemctl disable -q haproxy || true; fi
  if [[ " ${missing[*]} " == *" nginx "* ]] && command -v systemctl >/dev/null; then systemctl disable -q nginx || true; fi
  if [[ " ${missing[*]} " == *" prometheus "* ]] && command -v systemctl >/dev/null; then systemctl disable -q prometheus || true; fi
  if [[ " ${missing[*]} " == *" docker.io "* ]] && command -v systemctl >/dev/null; then systemctl disable -q docker docker.socket containerd || true; fi
  look_for_packages
  if ((${#missing[@]})); then problem "installed, and still without ${programs[*]}"; fi
}

handle_packages() {
  local sudo='sudo '
  if [[ $uid == 0 ]]; then sudo=''; fi
  look_for_packages
  if ((${#missing[@]} == 0)); then return; fi
  if ! command -v apt-get >/dev/null; then
    problem "install the packages that contain: $(printf '%s, ' "${programs[@]}" | sed 's/, $//')"
  elif [[ $uid != 0 || $check || ${#problems[@]} != 0 ]]; then
    problem "missing packages: ${sudo}apt-get install --no-install-recommends -y ${missing[*]}"
  else
    install_packages
  fi
}

check=
if [[ ${1:-} == --check ]]; then check=1; shift; fi
steps=("$@")
if ((${#steps[@]} == 0)); then
  echo "usage: hack/preflight.sh [--check] STEP..." >&2
  exit 2
fi
for step in "${steps[@]}"; do
  if [[ " test kernel kernels race build images up crio fresh e2e release " != *" $step "* ]]; then
    echo "preflight: no step $step: there are test, kernel, kernels, race, build, images, up, crio, fresh, e2e, release" >&2
    exit 2
  fi
done
uid=$(id -u)
check_root
check_go
check_disk
check_kernel
handle_packages
if ((${#problems[@]})); then
  for line in "${problems[@]}"; do say "$line"; done
  exit 1
fi
say "$go, $disk, $looked packages: all there"
