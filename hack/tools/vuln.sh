#!/usr/bin/env bash
# Looks for known vulnerabilities in what the product links. The database is a Go module, so only the module proxy is asked.
#
#   hack/tools/vuln.sh             says what is found, and fails if the product calls what is vulnerable
#   hack/tools/vuln.sh DIRECTORY   writes the same as OpenVEX documents (https://openvex.dev), named as the SBOMs; VERSION is the product's
#
# GOVULNCHECK is the program; `make vuln` names it. VULNDB is the version of golang.org/x/vulndb, else the newest.
set -euo pipefail

cd "$(dirname "$0")/../.."
module=golang.org/x/vulndb
told=$(cd / && go mod download -json "$module@${VULNDB:-latest}")
field() { sed -n "s/^\t\"$1\": \"\(.*\)\",\$/\1/p" <<<"$told"; }
version=$(field Version)
database=${XDG_CACHE_HOME:-${HOME:?}/.cache}/istio-pod-network-controller/vulndb/$version
if [[ ! -d $database ]]; then
  rm -rf "$database.partial"
  (cd / && go run "$module/cmd/indexdb@$version" -vulns "$(field Dir)/data/osv" -out "$database.partial")
  mv "$database.partial" "$database"
fi
scan() { "${GOVULNCHECK:?the govulncheck program: use make vuln}" -db "file://$database" -C "$1" "${@:2}" ./...; }

if [[ $# == 0 ]]; then
  echo "vuln: by $module $version"
  status=0
  for part in . cmd/kubectl-pod_network; do scan "$part" || status=1; done
  exit "$status"
fi
at=$(sed -E 's/.*([0-9]{4})([0-9]{2})([0-9]{2})([0-9]{2})([0-9]{2})([0-9]{2})-[0-9a-f]+$/\1-\2-\3T\4:\5:\6Z/' <<<"$version") # the database's time
for part in .:istio-pod-network-controller cmd/kubectl-pod_network:kubectl-pod_network; do
  name=${part#*:}
  scan "${part%:*}" -format openvex |
    sed -e "s|\"Unknown Author\"|\"istio-pod-network-controller, by $module $version\"|" -e "s|\"Unknown Product\"|\"pkg:golang/$name@v${VERSION:?of the product}\"|" \
      -e "s|\"timestamp\": \"[^\"]*\"|\"timestamp\": \"$at\"|" -e '/"tooling": .*"$/s|$|,\n  "statements": []|' >"$1/$name.openvex.json"
done
