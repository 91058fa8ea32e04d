#!/usr/bin/env bash
# Proves the first hour: runs `make test` and `make demo` on a bare Debian with nothing but Go, git, make, iproute2 and ca-certificates.
#
#   hack/fresh.sh            a copy of the checkout, with what is not committed
#   hack/fresh.sh CMD...     another command instead of the two, such as bash
#   FRESH_COLD=1             with caches that are empty at first and removed afterwards: modules, what was compiled, the cluster's programs
#   hack/fresh.sh --due      nothing but the answer whether a run is due: since the last that passed on this machine, something has changed that a
#                            first build depends on (--passed notes a run that has passed)
#
# The Debian is a directory that debootstrap makes once and keeps in ~/.cache. A run puts a layer of memory over it, in mount and
# process namespaces of its own, so that all of it goes when the run ends. Go is the machine's, and so are the caches, unless it is
# cold. At the end it looks whether anything is left.
set -euo pipefail

cd "$(dirname "$0")/.."
source=$PWD
name=istio-pod-network-controller
release=bookworm
cache=${XDG_CACHE_HOME:-$HOME/.cache}/$name
tree=$cache/fresh/$release
stamp=$cache/fresh/passed
caches=${XDG_CACHE_HOME:-$HOME/.cache} # what the bare root has as its ~/.cache
if [[ ${FRESH_COLD:-} ]]; then caches=$cache/fresh/cold; fi
cgroup=$name-cluster # Plan.Cgroup of the kit
sysctls=(vm/overcommit_memory vm/panic_on_oom kernel/panic kernel/panic_on_oops kernel/keys/root_maxkeys kernel/keys/root_maxbytes)

say() { printf '\n=== fresh: %s (%ds)\n' "$1" "$SECONDS"; }

# mirror is where this machine's apt gets Debian from.
mirror() {
  local url
  url=$(cat /etc/apt/sources.list /etc/apt/sources.list.d/*.list 2>/dev/null | awk '$1 == "deb" { for (i = 2; i <= NF; i++) if ($i ~ /^https?:.*\/debian\/?$/) { print $i; exit } }')
  if [[ -z $url ]]; then
    url=$(cat /etc/apt/sources.list.d/*.sources 2>/dev/null | awk '$1 == "URIs:" && $2 ~ /\/debian\/?$/ { print $2; exit }')
  fi
  echo "${url:-http://deb.debian.org/debian}"
}

make_tree() {
  if [[ -d $tree ]]; then return; fi
  say "making a bare Debian $release, once: about a minute and 360 MB"
  rm -rf "$tree.partial"
  mkdir -p "$cache/fresh"
  debootstrap --variant=minbase --include=ca-certificates,git,iproute2,make "$release" "$tree.partial" "$(mirror)" >"$cache/fresh/debootstrap.log" || {
    tail -20 "$cache/fresh/debootstrap.log" >&2
    return 1
  }
  rm -f "$tree.partial"/var/cache/apt/archives/*.deb
  mv "$tree.partial" "$tree"
}

# key names all that a first build depends on: the pins, the packages, the code of the kit that builds, the scripts, and Go.
key() {
  {
    go version
    git ls-files -z --cached --others --exclude-standard '*go.mod' '*go.sum' Makefile .ci hack/cluster/kc hack/cluster/cmd/kc hack/cluster/internal/{cli,debian,image,layout,program} \
      hack/{build,demo,deploy,fresh,preflight,quick,test}.sh | xargs -0 sha256sum 2>/dev/null || true # one may be deleted and not committed
  } | sha256sum | cut -c1-16
}

# due reports whether a run is due.
due() { [[ $(cat "$stamp" 2>/dev/null) != "$(key)" ]]; }

# pass KEY notes that a run of such a checkout has passed.
pass() { mkdir -p "$cache/fresh" && echo "$1" >"$stamp"; }

# end removes what only this run had.
end() {
  rm -f "$work/pid"
  rmdir "$work/memory" "$work"
  if [[ ${FRESH_COLD:-} ]]; then rm -rf "$caches"; fi
}

# settings prints what the kit changes for the whole machine while its cluster is up.
settings() { (cd /proc/sys && grep -H . "${sysctls[@]}" 2>/dev/null || true); }

# enter is the first process of the new namespaces: it puts the file system together, makes it the root and runs the command there.
enter() {
  local work=$1 root=$1/memory/root checkout=/root/$name
  shift
  readlink /proc/self/ns/pid >"$work/pid"
  mount -t tmpfs -o mode=755 tmpfs "$work/memory"
  mkdir "$work"/memory/{root,upper,overlay}
  mount -t overlay -o "lowerdir=$tree,upperdir=$work/memory/upper,workdir=$work/memory/overlay" overlay "$root"
  mount -t proc proc "$root/proc"
  mount --rbind /sys "$root/sys"
  mount --rbind /dev "$root/dev"
  mount -t tmpfs -o mode=755 tmpfs "$root/run"
  mkdir -p "$root/run/lock" "$root/root/.cache" "$root$checkout"
  mount -t tmpfs -o mode=755 tmpfs "$root/root/.cache"
  share "$(go env GOROOT)" "$(go env GOROOT)"
  if [[ ${FRESH_COLD:-} ]]; then
    share "$caches/modules" /root/go/pkg/mod
    share "$caches/go-build" /root/.cache/go-build
  else
    share "$(go env GOMODCACHE)" /root/go/pkg/mod
    share "$(go env GOCACHE)" /root/.cache/go-build
  fi
  share "$caches/$name" "/root/.cache/$name"
  # The way to the network is the machine's: its resolver, its proxies and its authorities.
  cp -L /etc/resolv.conf "$root/etc/resolv.conf"
  cp -L /etc/ssl/certs/ca-certificates.crt "$root/etc/ssl/certs/ca-certificates.crt"
  grep -rhi '^acquire::.*proxy' /etc/apt/apt.conf /etc/apt/apt.conf.d >"$root/etc/apt/apt.conf.d/01proxy" 2>/dev/null || true
  copy_checkout "$root$checkout"
  mapfile -t environ < <(environment)
  cd "$root"
  mkdir -p mnt/old
  pivot_root . mnt/old
  umount -l /mnt/old
  cd "$checkout"
  exec env -i "${environ[@]}" "$@"
}

# environment is what a newcomer's shell has, and what leads to the network.
environment() {
  local variable
  printf '%s\n' HOME=/root "TERM=${TERM:-dumb}" "PATH=$(go env GOROOT)/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
  for variable in GOPROXY GOSUMDB GONOSUMDB GOPRIVATE; do echo "$variable=$(go env "$variable")"; done
  for variable in CI RACE; do
    if [[ -n ${!variable:-} ]]; then echo "$variable=${!variable}"; fi
  done
  for variable in http_proxy https_proxy no_proxy HTTP_PROXY HTTPS_PROXY NO_PROXY; do
    if [[ -n ${!variable:-} ]]; then echo "$variable=${!variable}"; fi
  done
}

# share FROM TO: shows a directory of the machine at a path of the new root.
share() {
  mkdir -p "$1" "$root$2"
  mount --bind "$1" "$root$2"
}

# copy_checkout makes what `git clone` would, with the changes that are not committed.
copy_checkout() {
  git -C "$source" ls-files -z --cached --others --exclude-standard |
    tar -C "$source" --null --no-recursion --ignore-failed-read -T - -c 2>/dev/null | tar -C "$1" --no-same-owner -x
  git -C "$1" init -q
  git -C "$1" add -A
  git -C "$1" -c user.name=fresh -c user.email=fresh@localhost commit -qm 'the checkout'
}

# timed runs a command, and prints how long it took, how much processor time all have taken so far, and how busy the machine is.
timed() {
  local began=$SECONDS failed=0
  "$@" || failed=1
  times >/tmp/times # a subshell would print its own
  printf '\n=== fresh: %s took %d s; so far %s of processor time (user, system), load %s\n' "$*" $((SECONDS - began)) "$(tail -1 /tmp/times)" \
    "$(cut -d' ' -f1 /proc/loadavg)"
  return "$failed"
}

# first_hour is what the README tells a newcomer to type, in the new root. It stops at the first failure. Each of the two installs its own
# packages: the tests come first, because the demo installs more.
first_hour() {
  local failed=0
  trap 'exit 130' INT TERM
  # Nothing may be skipped: make test has brought all that the tests need.
  export REQUIRE_KERNEL=1
  timed make test || return
  timed make demo || failed=1
  make demo-down || failed=1
  return "$failed"
}

# left names what a run has left on the machine.
left() {
  local process dir
  for process in /proc/[0-9]*; do
    if [[ $(readlink "$process/ns/pid") == "$(<"$work/pid")" ]] || grep -q "=$work/" "$process/mountinfo"; then
      echo "process ${process##*/}: $(tr '\0' ' ' <"$process/cmdline")"
    fi
  done 2>/dev/null
  for dir in "/sys/fs/cgroup/$cgroup" /sys/fs/cgroup/*/"$cgroup" "$caches/$name/cluster/data"; do
    if [[ -d $dir ]]; then echo "directory $dir"; fi
  done
  grep " $work/" /proc/self/mountinfo || true
  diff <(echo "$before") <(settings) | sed -n 's/^> /setting /p' || true
}

case ${1:-} in
  --enter) shift; enter "$@" ;;
  --first-hour) first_hour; exit ;;
  --due) due; exit ;;
  --passed) pass "$(key)"; exit ;;
esac

if [[ $(id -u) != 0 ]]; then
  echo "fresh: needs root" >&2
  exit 1
fi
if [[ -e /run/$name-cluster/state.json ]]; then
  if [[ $(find /sys/fs/cgroup -path "*/$cgroup/*" -name cgroup.procs -exec cat {} + 2>/dev/null) ]]; then
    echo "fresh: a cluster is up on this machine: end it with 'make cluster-down'" >&2
    exit 1
  fi
  say "removing what is left of a cluster that has died"
  hack/cluster/kc down
fi
make_tree
began=$(key) # before the run: what is edited meanwhile has not passed
if [[ ${FRESH_COLD:-} ]]; then rm -rf "$caches"; fi # of a run that was killed
before=$(settings)
work=$(mktemp -d)
mkdir "$work/memory"
trap end EXIT
whole=
if (($# == 0)); then
  whole=1
  rm -f "$stamp" # until this run has passed, one is due
  set -- hack/fresh.sh --first-hour
fi
say "running in a bare Debian $release: $*"
status=0
# The end of the first process of a process namespace ends all others in it.
unshare --mount --propagation private --pid --fork --kill-child hack/fresh.sh --enter "$work" "$@" || status=$?
say "looking for what is left"
remains=$(left)
if [[ -n $remains ]]; then
  printf 'fresh: left behind:\n%s\n' "$remains" >&2
  status=1
fi
if [[ $whole && $status == 0 ]]; then pass "$began"; fi
say "done, exit status $status"
exit "$status"
