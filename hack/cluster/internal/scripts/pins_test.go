package scripts

import (
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// Most packages that are compiled import one of these modules. In another version than the cluster's programs have, each is compiled once more, with
// all that import it.
var shared = regexp.MustCompile(`(?m)^(?:require)?\s+((?:golang\.org/x/|google\.golang\.org/|k8s\.io/|sigs\.k8s\.io/|go\.opentelemetry\.io/|github\.com/go-logr/|github\.com/google/gnostic-)\S+) (v\S+)`)

func TestPins_modulesThatMostPackagesImport_haveTheVersionsOfTheClustersPrograms(t *testing.T) {
	const root, programs = "../../../..", "../../../../hack/cluster/programs/go.mod"
	pinned := map[string]string{}
	for _, match := range shared.FindAllStringSubmatch(read(t, programs), -1) {
		pinned[match[1]] = match[2]
	}
	if len(pinned) < 20 {
		t.Fatalf("%s pins %d such modules", programs, len(pinned))
	}
	var files []string
	for _, pattern := range []string{"go.mod", "*/go.mod", "*/*/go.mod", "*/*/*/go.mod"} {
		found, err := filepath.Glob(filepath.Join(root, pattern))
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, found...)
	}
	for _, file := range files {
		// The linter has dependencies of its own, and Istio is bound to its releases'.
		if strings.Contains(file, "/hack/tools/") || strings.Contains(file, "/istio/") {
			continue
		}
		for _, match := range shared.FindAllStringSubmatch(read(t, file), -1) {
			if want := pinned[match[1]]; want != "" && want != match[2] {
				t.Errorf("%s: %s %s, want %s", strings.TrimPrefix(file, root+"/"), match[1], match[2], want)
			}
		}
	}
}
