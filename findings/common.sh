# Functions of the findings, which source this file. $dir is the finding's own folder.

# debian PROGRAM PACKAGE VERSION: prints the version of a Debian package. If its program is missing, that version is installed, and no service of it is
# started. With another version that is there the finding runs all the same, and says so.
debian() {
  local have
  if ! command -v "$1" >/dev/null; then
    install_package "$2=$3" >"$dir/apt.log" 2>&1 || { cat "$dir/apt.log" >&2 && exit 1; }
  fi
  have=$(dpkg-query --show --showformat='${Version}' "$2" 2>/dev/null) || have='of unknown version'
  echo "$2 $have$(if [[ $have != "$3" ]]; then echo " (seen with $3)"; fi)"
}

install_package() {
  local policy=/usr/sbin/policy-rc.d
  if [[ ! -e $policy ]]; then
    trap "rm -rf '$dir' $policy" EXIT
    printf '#!/bin/sh\nexit 101\n' >"$policy"
    chmod 755 "$policy"
  fi
  export DEBIAN_FRONTEND=noninteractive
  apt-get install -y -qq --no-install-recommends "$1" || { apt-get update -qq && apt-get install -y -qq --no-install-recommends "$1"; }
}

# program NAME [MODULE@VERSION...]: builds the Go program on standard input with these modules, as $dir/NAME.
program() {
  local name=$1 log=$dir/$1.log
  mkdir "$dir/$name.src"
  cat >"$dir/$name.src/main.go"
  shift
  (
    cd "$dir/$name.src"
    export GOWORK=off GOFLAGS=-mod=mod CGO_ENABLED=0
    go mod init finding
    if (($#)); then go get "$@"; fi
    go build -o "$dir/$name" .
  ) >"$log" 2>&1 || { cat "$log" >&2 && exit 1; }
  go version | cut -d' ' -f3
  if (($#)); then printf '%s\n' "$@"; fi
}

# inside: runs the script on standard input in a new network namespace, whose loopback is up, with $dir as its working directory.
inside() {
  unshare --net bash -euo pipefail -c "cd '$dir'; ip link set lo up; $(cat)"
}

# peer, for scripts of inside: makes a second namespace, held by the process $peer, and joins both. eth0 has 10.9.0.2 here, and c0 has 10.9.0.1 there.
peer() {
  unshare --net sleep 60 &
  peer=$!
  trap 'kill $peer' EXIT
  until [[ $(readlink /proc/$peer/ns/net) != "$(readlink /proc/self/ns/net)" ]]; do sleep 0.05; done
  ip link add eth0 type veth peer name c0 netns $peer
  ip addr add 10.9.0.2/24 dev eth0
  ip link set eth0 up
  there ip addr add 10.9.0.1/24 dev c0
  there ip link set c0 up
}

# there COMMAND...: runs a command in the second namespace.
there() { nsenter --net --target "$peer" "$@"; }

export -f peer there

# expect WHAT GOT WANT: prints what was seen, and ends the finding if it is something else than before.
expect() {
  echo "$1: $2"
  if [[ $2 != "$3" ]]; then
    echo "changed: $1 was $3" >&2
    exit 1
  fi
}
