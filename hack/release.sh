#!/usr/bin/env bash
# Builds a release to build/release: programs for linux/amd64 and linux/arm64, one image index for both, the chart, the plugin of kubectl for six
# platforms with krew's manifest, an SBOM for each program, the provenance, and SHA256SUMS.
#
#   hack/release.sh            of the checkout; RELEASE_FORCE=1 also with changes that are not committed
#   hack/release.sh --check    shows that it is reproducible: builds the commit in two fresh clones at different paths, compares every
#                              byte, and runs the arm64 programs with qemu
#
# The version is that of the commit's tag vX.Y.Z, which must be the chart's version. Without a tag it is X.Y.Z-dev+COMMIT.
# HELM and CYCLONEDX name the two tools; `make release` does. RELEASE_URL is where the files will be, for krew's manifest, and RELEASE_SOURCE the
# repository, for the provenance.
set -euo pipefail

cd "$(dirname "$0")/.."
name=istio-pod-network-controller
architectures=(amd64 arm64)
platforms=({linux,darwin,windows}-{amd64,arm64})
url=${RELEASE_URL:-https://RELEASE_URL}
source=${RELEASE_SOURCE:-https://RELEASE_SOURCE}
: "${HELM:?the helm program: use make release}" "${CYCLONEDX:?the cyclonedx-gomod program: use make release}"
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

build() {
  local arch dir
  for arch in "${architectures[@]}"; do
    say "programs for linux/$arch"
    dir=$work/programs/$arch
    mkdir -p "$dir"
    CGO_ENABLED=0 GOOS=linux GOARCH=$arch GOFLAGS='' GOEXPERIMENT='' GOWORK=off GOAMD64=v1 GOARM64=v8.0 \
      go build -trimpath -buildvcs=true -ldflags='-s -w' -o "$dir/" . ./cmd/...
  done
  local platform suffix
  for platform in "${platforms[@]}"; do
    say "the plugin of kubectl for $platform"
    suffix=''
    if [[ $platform == windows-* ]]; then suffix=.exe; fi
    CGO_ENABLED=0 GOOS=${platform%-*} GOARCH=${platform#*-} GOFLAGS='' GOEXPERIMENT='' GOWORK=off GOAMD64=v1 GOARM64=v8.0 \
      go -C cmd/kubectl-pod_network build -trimpath -buildvcs=true -ldflags="-s -w -X $name/internal/cmdline.stamp=$stamp" \
      -o "$work/plugins/$platform/kubectl-pod_network$suffix" .
  done
  # A second opinion: what the program says by Go's own stamps.
  local said program
  for program in "$work/programs/$(go env GOHOSTARCH)/$name" "$work/plugins/$(go env GOHOSTOS)-$(go env GOHOSTARCH)/kubectl-pod_network"; do
    said=$("$program" --version)
    if [[ $said != *"version $version "* ]]; then fail "$program says \"$said\", and the version is $version"; fi
  done
}

describe() {
  local arch program
  say "an SBOM for each program"
  mkdir "$work/sboms"
  for arch in "${architectures[@]}"; do
    for program in "$work/programs/$arch"/*; do sbom "$program" "linux-$arch"; done
  done
  for program in "$work/plugins"/*/*; do sbom "$program" "$(basename "$(dirname "$program")")"; done
}

# sbom PROGRAM PLATFORM
sbom() {
  "$CYCLONEDX" bin -json -noserial -version "v${version/+/-}" -output "$work/sboms/$(basename "$1" .exe)-$2.cdx.json" "$1" 2>"$work/sbom.log" ||
    { cat "$work/sbom.log" >&2; exit 1; }
}

pack() {
  say "the chart, the archives, the image index and the checksums"
  "$HELM" package "chart/$name" --version "$version" --app-version "${version/+/-}" --destination "$work" >/dev/null
  go -C hack/cluster run ./cmd/release -name "$name" -version "$version" -revision "$commit" -time "$time" -programs "$work/programs" \
    -chart "$work/$name-$version.tgz" -sboms "$work/sboms" -plugins "$work/plugins" -krew "$PWD/hack/krew.yaml" -url "$url" -source "$source" -go "$(go env GOVERSION)" \
    -documents "$PWD/LICENSE" -output "$PWD/$out"
}

release() {
  work=$(mktemp -d)
  trap 'rm -rf "$work"' EXIT
  out=build/release
  rm -rf "$out"
  mkdir -p "$out"
  build
  describe
  pack
  say "$version is in $out"
  (cd "$out" && find . -type f -printf '%10s  %P\n' | sort -k2)
}

# clone_and_release DIRECTORY: the commit, and not what lies around here.
clone_and_release() {
  git clone --quiet --no-hardlinks . "$1"
  git -C "$1" checkout --quiet --detach "$commit"
  (cd "$1" && hack/release.sh)
}

# run_arm64 DIRECTORY: what the arm64 program computes is what this machine's computes.
run_arm64() {
  local qemu machine program
  qemu=$(command -v qemu-aarch64-static || command -v qemu-aarch64) || fail "no qemu-aarch64: hack/preflight.sh release installs it"
  for machine in "${architectures[@]}"; do
    mkdir -p "$check/$machine"
    tar -xzf "$1/build/release/$name-$version-linux-$machine.tar.gz" -C "$check/$machine" --strip-components=1
  done
  program=$check/arm64/$name
  diff <("$check/$(go env GOHOSTARCH)/$name" rules apply --dry-run --backend nftables --pod config/samples/pod.yaml) \
    <("$qemu" "$program" rules apply --dry-run --backend nftables --pod config/samples/pod.yaml) || fail "the arm64 program computes other rules"
  "$qemu" "$program" --version | grep -qF "$version" || fail "the arm64 program does not say $version"
  for program in "$check"/arm64/istio-pod-network-{probe,wait}; do
    "$qemu" "$program" -h >/dev/null 2>&1 || fail "$program -h fails"
  done
  CNI_COMMAND=VERSION "$qemu" "$check/arm64/istio-pod-network-cni" <<<'{"cniVersion":"1.0.0"}' | grep -q supportedVersions || fail "the arm64 CNI plugin does not say its versions"
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
  say "comparing, and running the arm64 programs"
  diff -r "$check/one/build/release" "$check/a-longer-path/two/build/release" || fail "two builds of $commit differ"
  (cd "$check/one/build/release" && sha256sum --quiet -c SHA256SUMS)
  run_arm64 "$check/one"
  say "reproducible: two builds of $version in two paths are equal, and the arm64 programs run"
}

case ${1:-} in
  '') find_version; release ;;
  --check) check ;;
  *) echo "usage: hack/release.sh [--check]" >&2; exit 2 ;;
esac
