#!/usr/bin/env bash
# Helm renders a chart's last template first, and a deeper one before all: a check in 00-check.yaml runs behind all others.
#
# A chart refuses values that cannot work by `fail`, in a template of its own. The first failure is the only one that people read.
#
# Expected: files are rendered by name, as directories list them, so a check in templates/00-check.yaml comes first, as in conf.d directories.
# Seen: the order is the other way round. The deepest path comes first, and in one directory the last name: with a check in 00-check.yaml and another error
#   in zz.yaml people read the latter, and a file of a directory below goes before both. Helm 3 and Helm 4 do the same. What violates values.schema.json is
#   said before any template is rendered, alone.
# Source: helm.sh/helm v3.22.0 and v4.3.1, pkg/engine/engine.go, sortTemplates (byPathLen, in reverse), for partials to be overridden by parent charts
# Date: 2026-12-01
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
source "$(dirname "$0")/common.sh"

mkdir -p "$dir/shop/templates/values"
printf 'apiVersion: v2\nname: shop\nversion: 1.0.0\n' >"$dir/shop/Chart.yaml"
echo '{"properties": {"port": {"type": "integer"}}}' >"$dir/shop/values.schema.json"

# refusing FILE...: templates that fail with their own names.
refusing() {
  rm -f "$dir"/shop/templates/*.yaml "$dir"/shop/templates/*/*.yaml
  for file in "$@"; do printf '{{ fail "refused by %s" }}\n' "$file" >"$dir/shop/templates/$file"; done
}

read -r -d '' render <<'END' || true
// Command render renders a chart with the value port, and prints the words of the first failure.
package main

import (
	"context"
	"fmt"
	"log"
	"os"
	"regexp"

	"helm.sh/helm/VERSION/pkg/action"
	CHARTS
)

func main() {
	chart, err := loader.Load(os.Args[1])
	if err != nil {
		log.Fatal(err)
	}
	install := action.NewInstall(&action.Configuration{})
	install.ReleaseName, install.Namespace, DRY = "shop", "shop", RUN
	values := map[string]any{}
	if len(os.Args) > 2 {
		values["port"] = os.Args[2]
	}
	_, err = install.RunWithContext(context.Background(), chart, values)
	fmt.Println(regexp.MustCompile("refused by [^ ]*yaml|got string, want integer").FindString(fmt.Sprint(err)))
}
END

for version in v3@v3.22.0 v4@v4.3.1; do
  name=${version%@*} charts='"helm.sh/helm/v3/pkg/chart/loader"' dry='install.DryRun, install.ClientOnly' run='true, true'
  if [[ $name == v4 ]]; then charts='"helm.sh/helm/v4/pkg/chart/v2/loader"' dry='install.DryRunStrategy' run='action.DryRunClient'; fi
  sed "s|VERSION|$name|; s|CHARTS|$charts|; s|DRY|$dry|; s|RUN|$run|" <<<"$render" | program "$name" "helm.sh/helm/$version"
  refusing 00-check.yaml zz.yaml
  expect "$name: 00-check.yaml or zz.yaml" "$("$dir/$name" "$dir/shop")" "refused by zz.yaml"
  refusing 00-check.yaml zz.yaml values/a.yaml values/b.yaml
  expect "$name: and two in a directory" "$("$dir/$name" "$dir/shop")" "refused by values/b.yaml"
  expect "$name: and the schema" "$("$dir/$name" "$dir/shop" text)" "got string, want integer"
done
