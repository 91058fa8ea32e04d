package charttest

import (
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"istio-pod-network-controller/hack/tools/helm/pairs"
	"istio-pod-network-controller/hack/tools/helm/render"
)

// oldNames are the names that a template refuses, with what it says of them.
func oldNames(t *testing.T) map[string]any {
	t.Helper()
	_, rest, _ := strings.Cut(read(t, chartDir+"/templates/_names.tpl"), `{{- define "agent.oldNames" -}}`)
	list, _, _ := strings.Cut(rest, "{{- end -}}")
	names := map[string]any{}
	for line := range strings.Lines(strings.TrimSpace(list)) {
		name, now, _ := strings.Cut(strings.TrimSpace(line), ": ")
		names[name] = strings.ReplaceAll(strings.Trim(now, `"`), `\"`, `"`)
	}
	return names
}

// existing are the values of the chart, by their paths: the rows of the table of README.md.
func existing(t *testing.T) []string {
	t.Helper()
	var found []string
	for _, row := range regexp.MustCompile("(?m)^\\| `([\\w.]+)` \\|").FindAllStringSubmatch(read(t, chartDir+"/README.md"), -1) {
		found = append(found, row[1])
	}
	return found
}

// A value is one row of the table: eighty can be read.
func TestValuesAreFew(t *testing.T) {
	if n, lines := len(existing(t)), strings.Count(read(t, chartDir+"/values.yaml"), "\n"); n > 80 || n < 40 || lines > 300 {
		t.Errorf("%d values, want 80 at most; values.yaml has %d lines, want 300 at most", n, lines)
	}
}

// The schema lets through what the template names, and nothing else.
func TestOldNames_schemaAndTemplate_haveTheSame(t *testing.T) {
	allowed := map[string]bool{}
	var walk func(prefix string, object map[string]any)
	walk = func(prefix string, object map[string]any) {
		properties, _ := object["properties"].(map[string]any)
		for name, property := range properties {
			inside, _ := property.(map[string]any)
			if pairs.IsOld(property) {
				allowed[prefix+name] = true
			}
			walk(prefix+name+".", inside)
		}
	}
	walk("", parse(t, read(t, chartDir+"/values.schema.json")))
	same(t, slices.Sorted(maps.Keys(oldNames(t))), slices.Sorted(maps.Keys(allowed)), "old names")
}

// Each value of an older chart is still there, or in the list, which names a value that is there.
func TestOldNames_everyValueOfTheOldChart_isKnown(t *testing.T) {
	old, now := oldNames(t), existing(t)
	keys, _ := at(parse(t, read(t, chartDir+"/values.schema.json")), "properties", "redirection", "properties", "defaults", "properties").(map[string]any)
	for key := range keys {
		now = append(now, "redirection.defaults."+key)
	}
	isThere := func(name string) bool {
		return slices.ContainsFunc(now, func(n string) bool { return n == name || strings.HasPrefix(n, name+".") })
	}
	for name := range strings.FieldsSeq(read(t, "testdata/values-before-groups.txt")) { // of the last chart without groups
		listed := slices.ContainsFunc(slices.Collect(maps.Keys(old)), func(o string) bool { return o == name || strings.HasPrefix(name, o+".") })
		if isThere(name) == listed {
			t.Errorf("%s is there: %t, and in the list of old names: %t", name, isThere(name), listed)
		}
	}
	for name, to := range old {
		to, _ := to.(string)
		if place, _, _ := strings.Cut(strings.ReplaceAll(to, ":", ","), ","); place != "gone" && !isThere(place) {
			t.Errorf("%s is now %q, which is no value", name, place)
		}
	}
}

// All old names are in one failure, also those beside new ones, and where a release keeps the values of the old chart.
func TestOldNames_areRefusedTogether(t *testing.T) {
	refuses(t, "podsFrom: api", "values of an older chart:\npodsFrom: it is now pods.from")
	refuses(t, "{pods.from: kubelet, hooks.nri.mode: off, nri: off, image: {digest: ''}, admission: {waitTimeout: 1s}, metrics: {service: false}, sidecars: {enabled: true}, nameOverride: a}",
		"admission.waitTimeout: gone: the container waits 60s, and the kubelet starts it again\nimage.digest: it is now image.tag, which takes a digest, too\n"+
			"metrics.service: gone: there is a Service unless monitoring.address is \"0\"\nnameOverride: gone: fullnameOverride names all objects\nnri: it is now hooks.nri.mode\nsidecars: it is now proxies, with the same names in it")
	dir := t.TempDir() // --reuse-values: the defaults are the old chart's
	must(t, os.CopyFS(dir, os.DirFS(chartDir)))
	must(t, os.WriteFile(filepath.Join(dir, "values.yaml"), []byte(`{platform: kubernetes, kubernetesDistribution: "", image: {repository: a, tag: "", digest: "", pullPolicy: Always},
  serviceAccount: {create: true}, containerRuntime: auto, podsFrom: auto, metrics: {secure: false}, inspect: {enabled: false}, admission: {enabled: auto, readinessGate: true,
  waitContainer: false, waitTimeout: 60s, requiredPlugins: false, rewriteProbes: true, failurePolicy: Fail, restrictAgent: auto, allowOptOut: true}}`), 0o600))
	_, err := installAs(t, render.Request{Chart: dir, Values: map[string]any{}})
	if err == nil || !strings.Contains(err.Error(), "values of an older chart:\nadmission.waitTimeout: ") || !strings.Contains(err.Error(), "\npodsFrom: it is now pods.from") {
		t.Errorf("kept values of an older chart: %v", err)
	}
}

// A document that names a value names one of this chart. Cilium and Istio have a cni, too.
func TestOldNames_documentsUseNone(t *testing.T) {
	old := oldNames(t)
	delete(old, "cni")
	used := regexp.MustCompile("`(?:" + strings.Join(slices.Collect(maps.Keys(old)), "|") + `)[=.]\w+`)
	for _, pattern := range []string{"*.md", "docs/*.md", "docs/reference/*.md", "chart/*/*.md"} {
		files, err := filepath.Glob(filepath.Join(rootDir, pattern))
		if err != nil || len(files) == 0 {
			t.Fatalf("%s: %d files, %v", pattern, len(files), err)
		}
		for _, file := range files {
			for _, found := range used.FindAllString(read(t, file), -1) {
				t.Errorf("%s has %s, a value of an older chart", file, found)
			}
		}
	}
}
