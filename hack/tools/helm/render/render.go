// Package render renders the chart, without a cluster, as Helm 3 and as Helm 4 do.
package render

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"sync"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"

	"istio-pod-network-controller/hack/tools/helm/pairs"
)

// Name is the release, its namespace, and the name of most of its objects.
const Name = "istio-pod-network-controller"

// Request is one `helm install --dry-run`.
type Request struct {
	// Chart is a directory.
	Chart  string
	Values map[string]any
	// Kinds (group/version/kind) are what the cluster has in addition to the common ones.
	Kinds []string
	// Version is what the cluster says of itself; empty means v1.37.0.
	Version string
}

// Release is what Helm makes of a request.
type Release struct {
	Manifest, Notes string
	// Hooks are in the order of their files.
	Hooks []Hook
}

// Hook is an object that Helm makes at events, and deletes by policies: When.
type Hook struct {
	Manifest string
	Weight   int
	When     string
}

// Engine is a version of Helm.
type Engine interface {
	Render(context.Context, Request) (Release, error)
	// Lint returns what `helm lint --strict` has against a chart with values.
	Lint(chart string, values map[string]any) []error
	// Definitions returns the files that Helm makes before the others at an installation, by their names.
	Definitions(chart string, values map[string]any) (map[string]string, error)
}

// Engines are both versions, by their names.
func Engines() map[string]Engine { return map[string]Engine{"Helm 3": helm3{}, "Helm 4": helm4{}} }

// ErrDiffers is in the error of Both if the versions do not agree.
var ErrDiffers = errors.New("the versions of Helm differ")

// Both renders by both versions, which must agree: on each object, on notes and hooks, and on what they refuse, word for word.
func Both(ctx context.Context, request Request) (Release, error) {
	var three Release
	var err3 error
	var beside sync.WaitGroup
	beside.Go(func() { three, err3 = helm3{}.Render(ctx, request) })
	four, err4 := helm4{}.Render(ctx, request)
	beside.Wait()
	if diff := cmp.Diff(three, four); diff != "" || words(err3) != words(err4) {
		return four, fmt.Errorf("%w: errors of Helm 3: %w, of Helm 4: %w, releases (-3 +4):\n%s", ErrDiffers, err3, err4, diff)
	}
	return four, err4
}

// words are the lines of an error in one order: the schema's faults come in any.
func words(err error) string {
	lines := strings.Split(fmt.Sprint(err), "\n")
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

// Documents are the objects of a manifest, in its order.
func (r Release) Documents() []string { return documents(r.Manifest) }

// Values reads the text of a values file. A name at the top may be a path, as for --set: {a.b: 1} is {a: {b: 1}}.
func Values(text string) (map[string]any, error) {
	given, values := map[string]any{}, map[string]any{}
	err := yaml.Unmarshal([]byte(text), &given)
	for _, path := range slices.Sorted(maps.Keys(given)) { // a before a.b
		pairs.Set(values, path, given[path])
	}
	return values, err
}

// documents splits a manifest. Helm 4 keeps the empty lines at the end of a template, which Helm 3 cuts off: here each document ends in one line's end.
func documents(manifest string) []string {
	var found []string
	for _, doc := range regexp.MustCompile(`(?m)^---[ \t]*$`).Split(manifest, -1) {
		if doc = strings.TrimSpace(doc); doc != "" {
			found = append(found, doc+"\n")
		}
	}
	return found
}

// normal is a manifest of such documents.
func normal(manifest string) string { return "---\n" + strings.Join(documents(manifest), "---\n") }
