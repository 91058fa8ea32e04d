#!/usr/bin/env bash
# Builds a release to build/release: programs for Linux on four architectures, one image index for them, the chart (also as an OCI archive), the plugin of kubectl for
# eight platforms with krew's manifest, an SBOM for each program, the known vulnerabilities of what they are made of as OpenVEX, the provenance, and SHA256SUMS.
#
#   hack/release.sh            of the checkout; RELEASE_FORCE=1 also with changes that are not committed
#   hack/release.sh --check    shows that it is reproducible: builds the commit in two fresh clones at different paths, compares every
#                              byte, and runs the programs of the other architectures with qemu
#
# The version is that of the commit's tag vX.Y.Z, which must be the chart's version. Without a tag it is X.Y.Z-dev+COMMIT.
# HELM, CYCLONEDX and GOVULNCHECK name the tools and GOTOOLCHAIN Go's release; `make release` does. RELEASE_URL is where the files will be, for krew's manifest, and RELEASE_SOURCE the
# repository, for the provenance.
set -euo pipefail

cd "$(dirname "$0")/.."
name=istio-pod-network-controller
plugin=kubectl-pod_network
architectures=(amd64 arm64 ppc64le s390x)
platforms=({linux,darwin,windows}-{amd64,arm64} linux-{ppc64le,s390x})
url=${RELEASE_URL:-https://RELEASE_URL}
source=${RELEASE_SOURCE:-https://RELEASE_SOURCE}
: "${HELM:?the helm program: use make release}" "${CYCLONEDX:?the cyclonedx-gomod program: use make release}" "${GOVULNCHECK:?the govulncheck program: use make release}"
say() { printf '==> %s (%ds)\n' "$*" "$SECONDS"; }
fail() { printf 'release: %s\n' "$*" >&2; exit 1; }

# find_version sets version, commit, time, and stamp: the tag of a release, which Go stamps only into the module at the root.
find_version() {
  local chart
  chart=$(awk '/^version:/ { print $2 }' "chart/$name/Chart.yaml")
  commit=$(git rev-parse HEAD)
  time=$(git log -1 --format=%ct)
  # As Go's stamps: of several version tags on a commit the highest counts.
  tag=$(git -c versionsort.suffix=- tag --points-at HEAD --list 'v[0-9]*.[0-9]*.[0-9]*' --sort=version:refname | tail -1)
  if [[ -z $tag ]]; then
    version=$chart-dev+${commit:0:12}
  elif [[ $tag != "v$chart" ]]; then
    fail "the commit is tagged $tag, and the chart's version is $chart: change chart/$name/Chart.yaml and internal/cmdline/release.go, or the tag"
  else
    version=$chart
  fi
  stamp=$tag
  if [[ -n $(git status --porcelain) ]]; then
    stamp=
    if [[ -z ${RELEASE_FORCE:-} ]]; then
      git status --short >&2
      fail "the checkout has changes that are not committed: commit them, or set RELEASE_FORCE=1 for a build that nobody can repeat"
    fi
    version=$chart-dev+${commit:0:12}.modified
  fi
}

# compile DIRECTORY OS-ARCHITECTURE ARGUMENTS...: builds with nothing of the caller's settings.
compile() {
  CGO_ENABLED=0 GOOS=${2%-*} GOARCH=${2#*-} GOFLAGS='' GOEXPERIMENT='' GOWORK=off GOAMD64=v1 GOARM64=v8.0 GOPPC64=power8 \
    go -C "$1" build -tags=grpcnotrace -trimpath -buildvcs=true "${@:3}"
}

build() {
  local arch platform
  for arch in "${architectures[@]}"; do
    say "programs for linux/$arch"
    mkdir -p "$work/programs/$arch"
    compile . "linux-$arch" -ldflags='-s -w' -o "$work/programs/$arch/" . ./cmd/...
  done
  for platform in "${platforms[@]}"; do
    say "the plugin of kubectl for $platform"
    mkdir -p "$work/plugins/$platform"
    compile "cmd/$plugin" "$platform" -ldflags="-s -w -X $name/internal/cmdline.stamp=$stamp" -o "$work/plugins/$platform/" .
    # People download it.
    if [[ $(find "$work/plugins/$platform" -type f -size +40M) ]]; then fail "the plugin for $platform is larger than 40 MiB"; fi
  done
  # A second opinion: what the program says by Go's own stamps.
  local said program
  for program in "$work/programs/$(go env GOHOSTARCH)/$name" "$work/plugins/$(go env GOHOSTOS)-$(go env GOHOSTARCH)/$plugin"; do
    said=$("$program" --version)
    if [[ $said != *"version $version "* ]]; then fail "$program says \"$said\", and the version is $version"; fi
  done
}

describe() {
  local program platform
  say "an SBOM for each program"
  mkdir "$out/sbom"
  for program in "$work"/programs/*/* "$work"/plugins/*/*; do
    platform=$(basename "$(dirname "$program")")
    if [[ $program == */programs/* ]]; then platform=linux-$platform; fi
    sbom "$program" "$out/sbom/$(basename "$program" .exe)-$platform.cdx.json"
  done
  say "known vulnerabilities"
  VERSION=${version/+/-} hack/tools/vuln.sh "$out/sbom"
  if grep -l '"status": "affected"' "$out"/sbom/*.openvex.json && [[ $tag ]]; then fail "no release calls what is known to be vulnerable: make vuln says what that is"; fi
}

# sbom PROGRAM FILE: with the commit's time, and without the checksums of the tool that writes it, which are other ones on another architecture.
sbom() {
  local at
  at=$(date -u -d "@$time" +%Y-%m-%dT%H:%M:%SZ)
  "$CYCLONEDX" bin -json -noserial -version "v${version/+/-}" -output "$2" "$1" 2>"$work/sbom.log" || { cat "$work/sbom.log" >&2; exit 1; }
  sed -i -e "s/\"timestamp\": \"[^\"]*\"/\"timestamp\": \"$at\"/" -e '/"tools": \[/,/^    \]/ {/"hashes": \[/,/\]/d}' "$2"
  if ! grep -q "\"timestamp\": \"$at\"" "$2" || grep -A9 '"tools": \[' "$2" | grep -q hashes; then
    fail "$2 still has what differs each time: cyclonedx-gomod writes it in another way"
  fi
}

# archive FILE DIRECTORY
archive() { "$work/release" -time "$time" archive "$out/$1" "$work/$2"; }

# put DIRECTORY FILE...: copies files, and the license.
put() {
  mkdir -p "$work/$1/$1"
  cp LICENSE "${@:2}" "$work/$1/$1/"
}

pack() {
  local arch
  say "the chart, the archives, the image index and the checksums"
  go -C hack build -o "$work/release" ./cluster/cmd/release
  for arch in "${architectures[@]}"; do
    put "$name-$version-linux-$arch" "$work/programs/$arch"/*
    archive "$name-$version-linux-$arch.tar.gz" "$name-$version-linux-$arch"
  done
  "$work/release" -time "$time" -name "$name" -version "$version" -revision "$commit" image "$out/$name-$version-image.oci.tar" "$work/programs"
  # helm gives all files the present time.
  "$HELM" package "chart/$name" --version "$version" --app-version "${version/+/-}" --destination "$work" >/dev/null
  mkdir "$work/chart"
  tar -xmzf "$work/$name-$version.tgz" -C "$work/chart"
  archive "$name-$version.tgz" chart
  "$work/release" -time "$time" -name "$name" -version "$version" -revision "$commit" chart "$out/$name-$version-chart.oci.tar" "$out/$name-$version.tgz"
  pack_plugins
}

pack_plugins() {
  local platform dir file suffix
  sed "s/VERSION/$version/" hack/krew.yaml >"$out/pod-network.yaml"
  for platform in "${platforms[@]}"; do
    dir=$plugin-$version-$platform
    put "$dir" "$work/plugins/$platform"/*
    if [[ $platform == windows-* ]]; then
      file=$dir.zip suffix=.exe
      printf '@kubectl-pod_network __complete %%*\r\n' >"$work/$dir/$dir/kubectl_complete-pod_network.cmd"
    else
      file=$dir.tar.gz suffix=''
      printf '#!/bin/sh\nexec kubectl-pod_network __complete "$@"\n' >"$work/$dir/$dir/kubectl_complete-pod_network"
    fi
    chmod +x "$work/$dir/$dir"/kubectl*
    archive "$file" "$dir"
    cat >>"$out/pod-network.yaml" <<EOF
  - selector:
      matchLabels:
        os: ${platform%-*}
        arch: ${platform#*-}
    uri: $url/$file
    sha256: $(sha256sum "$out/$file" | cut -d' ' -f1)
    bin: $plugin$suffix
    files:
    - from: "$dir/*"
      to: .
EOF
  done
}

# sums prints the checksums of all files.
sums() { (cd "$out" && find . -type f -printf '%P\n' | LC_ALL=C sort | xargs sha256sum); }

# provenance says what all of it was built from: an in-toto statement with SLSA's predicate (https://slsa.dev/spec/v1.0/provenance), which anybody gets
# who builds the commit again. It has no time and no machine.
provenance() {
  local built="urn:$name:hack/release.sh:v1" from="{\"uri\": \"git+$source\", \"digest\": {\"gitCommit\": \"$commit\"}}" subjects vulndb
  vulndb=$(sed -n 's/.*"author": ".* by \(.*\) \(v.*\)",/\1@\2/p' "$out/sbom/$name.openvex.json")
  subjects=$(sums | sed -E 's|^(\S+)  (.*)$|    {"name": "\2", "digest": {"sha256": "\1"}},|')
  cat <<EOF
{
  "_type": "https://in-toto.io/Statement/v1",
  "subject": [
${subjects%,}
  ],
  "predicateType": "https://slsa.dev/provenance/v1",
  "predicate": {
    "buildDefinition": {
      "buildType": "$built",
      "externalParameters": {"source": $from, "version": "$version"},
      "resolvedDependencies": [$from, {"uri": "pkg:generic/go@$(go env GOVERSION)", "name": "go"}, {"uri": "pkg:golang/$vulndb"}]
    },
    "runDetails": {"builder": {"id": "$built"}, "metadata": {"invocationId": "$commit"}}
  }
}
EOF
}

release() {
  work=$(mktemp -d)
  trap 'rm -rf "$work"' EXIT
  out=$PWD/build/release
  rm -rf "$out"
  mkdir -p "$out"
  build
  describe
  pack
  provenance >"$work/provenance"
  mv "$work/provenance" "$out/provenance.intoto.json"
  sums >"$work/sums"
  mv "$work/sums" "$out/SHA256SUMS"
  say "$version is in build/release"
  (cd "$out" && find . -type f -printf '%10s  %P\n' | sort -k2)
}

# clone_and_release DIRECTORY: the commit, and not what lies around here.
clone_and_release() {
  git clone --quiet --no-hardlinks . "$1"
  git -C "$1" checkout --quiet --detach "$commit"
  (cd "$1" && hack/release.sh)
}

# run_foreign DIRECTORY: what the programs of the other architectures compute is what this machine's compute.
run_foreign() {
  local qemu machine program
  local -A named=([arm64]=aarch64)
  for machine in "${architectures[@]}"; do
    mkdir -p "$check/$machine"
    tar -xzf "$1/build/release/$name-$version-linux-$machine.tar.gz" -C "$check/$machine" --strip-components=1
  done
  for machine in "${architectures[@]}"; do
    if [[ $machine == "$(go env GOHOSTARCH)" ]]; then continue; fi
    qemu=qemu-${named[$machine]:-$machine}
    qemu=$(command -v "$qemu-static" || command -v "$qemu") || fail "no $qemu: hack/preflight.sh release installs it"
    program=$check/$machine/$name
    diff <("$check/$(go env GOHOSTARCH)/$name" rules apply --dry-run --backend nftables --pod config/samples/pod.yaml) \
      <("$qemu" "$program" rules apply --dry-run --backend nftables --pod config/samples/pod.yaml) || fail "the program for $machine computes other rules"
    "$qemu" "$program" --version | grep -F "$version" || fail "the program for $machine does not say $version"
    for program in "$check/$machine"/istio-pod-network-{probe,wait}; do
      "$qemu" "$program" -h >/dev/null 2>&1 || fail "$program -h fails"
    done
    CNI_COMMAND=VERSION "$qemu" "$check/$machine/istio-pod-network-cni" <<<'{"cniVersion":"1.0.0"}' | grep -q supportedVersions ||
      fail "the CNI plugin for $machine does not say its versions"
  done
}

check() {
  check=$(mktemp -d)
  trap 'rm -rf "$check"' EXIT
  commit=$(git rev-parse HEAD)
  mkdir "$check/a-longer-path"
  clone_and_release "$check/one"
  clone_and_release "$check/a-longer-path/two"
  pushd "$check/one" >/dev/null
  find_version # of the commit, without what is changed in this checkout
  popd >/dev/null
  say "comparing, and running the programs of other architectures"
  diff -r "$check/one/build/release" "$check/a-longer-path/two/build/release" || fail "two builds of $commit differ"
  (cd "$check/one/build/release" && sha256sum --quiet -c SHA256SUMS)
  run_foreign "$check/one"
  say "reproducible: two builds of $version in two paths are equal, and the programs of all architectures run"
}

case ${1:-} in
  '') find_version; release ;;
  --check) check ;;
  *) echo "usage: hack/release.sh [--check]" >&2; exit 2 ;;
esac
